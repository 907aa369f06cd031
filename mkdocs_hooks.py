"""What the site needs beyond docs/: the README as its home page, and files that pages link to.

The pages are written for a reader of the repository. The site copies the files outside docs/ that they link
to and points the links at the copies; a link that resolves to nothing is left alone, and the strict build
stops at it. Links to the playground that `regard play` serves point at the copy of it in the site, and
Mermaid charts, which GitHub renders, become SVG.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import mkdocs_flowchart
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from regard.cli.play import PORT
from regard.play.build import build

ROOT = Path(__file__).parent
HOME = {"README.md": "index.md", "README.zh-CN.md": "index.zh.md", "examples": "examples.md"}
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md")
# The theme would fetch this for search in pages opened from disk; ours does the same.
FETCHED = "https://unpkg.com/iframe-worker/shim"
OURS = "assets/worker-from-disk.js"
SERVED, PLAYGROUND = f"http://127.0.0.1:{PORT}/", "playground.html"
LANGUAGES = {"en": "English", "zh": "ZH 中文"}
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ \t]*$\n?", re.MULTILINE | re.DOTALL)
CHART = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#][^)\s#]*)((?:#[^)\s]*)?\))")
ITEM = re.compile(r"^(?:[-*+]|\d+\.) ")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each folder in the nav by its pages; a folder without pages is left out."""
    docs = Path(config.docs_dir)
    entries = []
    for entry in config.nav or []:
        match entry:
            case dict() if str(next(iter(entry.values()))).endswith("/"):
                (title, folder), *_ = entry.items()
                if pages := listed(docs, docs / folder):
                    entries.append({title: pages})
            case _:
                entries.append(entry)
    if (ROOT / "README.zh-CN.md").exists():
        entries.insert(1, {"ZH 中文": "index.zh.md"})
    config.nav = entries
    return config


def listed(docs: Path, folder: Path) -> list:
    """The pages of a folder, its index first, then the same for the folders in it."""
    paths = sorted(folder.glob("*.md"), key=lambda path: (path.stem != "index", path.name))
    pages: list = [path.relative_to(docs).as_posix() for path in paths]
    for inner in sorted(path for path in folder.glob("*") if path.is_dir()):
        if any(inner.rglob("*.md")):
            pages.append({LANGUAGES.get(inner.name, inner.name): listed(docs, inner)})
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the root of the repository, and the files outside docs/ that pages link to."""
    for name in (*HOME, *PROJECT):
        path = ROOT / name
        if path.is_file():
            files.append(
                File.generated(config, HOME.get(name, name), content=path.read_text("utf-8"))
            )
    files.append(File.generated(config, HOME["examples"], content=examples()))
    files.append(File.generated(config, PLAYGROUND, content=build()))
    for page in list(files.documentation_pages()):
        for target in outside(page):
            path = ROOT / target
            if files.get_file_from_path(target) is None and path.is_file():
                files.append(File.generated(config, target, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the files of the site, and indent lists as Python's Markdown requires."""
    here = posixpath.dirname(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        target = repository_path(page.file, match[2])
        found = HOME.get(target) or target.removeprefix("docs/")
        if match[2] == SERVED:
            found = PLAYGROUND
        elif "://" in match[2] or files.get_file_from_path(found) is None:
            return match[0]
        return match[1] + posixpath.relpath(found, here or ".") + match[3]

    if 'class="wide"' in markdown:  # a table that needs the room
        page.meta["hide"] = ["toc"]
    markdown = CHART.sub(lambda match: chart(match[1], page.title or ""), markdown)
    text = "\n".join(nested(markdown.split("\n")))
    return beside_fences(text, lambda part: LINK.sub(lead, part))


def chart(source: str, title: str) -> str:
    """A Mermaid chart as a picture inside the page."""
    return f'<div class="flowchart">{mkdocs_flowchart.draw(source, f"Chart: {title}")}</div>'


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Replace the script that the theme would fetch from the network by our copy."""
    return output.replace(FETCHED, posixpath.relpath(OURS, posixpath.dirname(page.url) or "."))


def repository_path(file: File, target: str) -> str:
    """The path in the repository that a link in a page points to."""
    at_root = {HOME.get(name, name) for name in (*HOME, *PROJECT)}
    folder = (
        "" if file.src_uri in at_root else posixpath.join("docs", posixpath.dirname(file.src_uri))
    )
    return posixpath.normpath(posixpath.join(folder, target))


def outside(file: File) -> Iterator[str]:
    """The paths from the root that a page links to and that are not in docs/."""
    text = FENCE.sub("", file.content_string)
    for match in LINK.finditer(text):
        target = repository_path(file, match[2])
        if "://" not in match[2] and not target.startswith(("docs/", "..")) and target not in HOME:
            yield target


def beside_fences(text: str, change: Callable[[str], str]) -> str:
    """The text with `change` applied to everything except blocks of code."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def nested(lines: list[str]) -> Iterator[str]:
    """The lines, with the content of list items indented by four spaces; GitHub accepts two or three."""
    depth, code = 0, False  # indentation of the current item's text, 0 outside of lists
    for line in lines:
        if line.startswith("```"):
            code = not code
        if item := None if code else ITEM.match(line):
            depth = item.end()
        elif line.strip() and not line.startswith(" "):
            depth = 0
        yield " " * 4 + line[depth:] if 0 < depth < 4 and line[:depth].isspace() else line


def examples() -> str:
    """A page of all examples: what each does, and its code."""
    parts = ["# Examples\n\nScripts of at most 60 lines that check what they say."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text("utf-8")
        says = ast.get_docstring(ast.parse(text)) or ""
        code = text.split('"""\n', 1)[1].strip()
        parts.append(f"## {path.name}\n\n{says}\n\n```python\n{code}\n```")
    return "\n\n".join(parts) + "\n"
