"""Builds the playground's page from its sources: one file that opens from disk.

The sources in `page/` are a template, style sheets and JavaScript modules. Browsers load no modules from
disk. So each module becomes a function that returns its exports, in the order of the imports.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "page"
FIRST = "app.js"
IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:const|function|class) (\w+))", re.MULTILINE)
LEFT_OVER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


class BadSource(ValueError):
    """A source of the page uses syntax that `build` does not support."""


def build() -> str:
    """The page as HTML; the same sources give the same page."""
    style, script = styles(), bundle()
    # The page may use this style and this script alone, and fetches, embeds and sends nothing.
    policy = "; ".join(
        [
            "default-src 'none'",
            f"style-src '{digest(style)}'",
            f"script-src '{digest(script)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    page = source("index.html")
    for mark, text in {"@POLICY@": policy, "@STYLE@": style, "@SCRIPT@": script}.items():
        page = page.replace(mark, text)
    return page


def write_page(path: Path) -> Path:
    """Write the page to `path`, and return the path."""
    path.write_text(build(), encoding="utf-8")
    return path


def source(name: str) -> str:
    """The text of a source file of the page."""
    return (FOLDER / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """The hash by which a content security policy allows an inline text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def styles() -> str:
    """The style sheet. Dark colours are in it twice: for the system's setting and the reader's choice."""
    dark = source("dark.css")
    return (
        source("style.css")
        + f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{\n{dark}}} }}\n'
        + f':root[data-theme="dark"] {{\n{dark}}}\n'
    )


def bundle() -> str:
    """All modules as one script."""
    done: dict[str, str] = {}
    add(FIRST, done, ())
    return '"use strict";\n' + "\n".join(done.values())


def add(name: str, done: dict[str, str], path: tuple[str, ...]) -> None:
    """Add a module to `done`, after the modules that it imports; `path` leads to it."""
    if name in path:
        raise BadSource(f"{name} imports itself through {' and '.join(path)}")
    if name in done:
        return
    text = source(name)
    for _, needed in IMPORT.findall(text):
        add(needed, done, (*path, name))
    done[name] = module(name, text)


def module(name: str, text: str) -> str:
    """A module as a function that is called once: `const scores_js = (() => {...})();`."""
    body = IMPORT.sub(lambda match: f"const {{ {match[1]} }} = {variable(match[2])};\n", text)
    exported = EXPORT.findall(body)
    body = EXPORT.sub("", body)
    if wrong := LEFT_OVER.search(body):
        raise BadSource(
            f'{name}: {wrong[0]!r} is not supported; use `import {{ a }} from "./b.js";` on one line, '
            "and `export` before const, function or class"
        )
    if "</script" in body.lower():
        raise BadSource(f"{name} contains </script, which would end the script element")
    return f"const {variable(name)} = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();"


def variable(name: str) -> str:
    """The variable of a module in the script."""
    return name.replace(".", "_")
