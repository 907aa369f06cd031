"""The documentation as a site: every page in its place, no dead link, nothing from the network."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
AT_ROOT = [
    ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md")
]
PAGES = [*sorted(DOCS.rglob("*.md")), *(path for path in AT_ROOT if path.exists())]
CODE = re.compile(r"^( *)(```+).*?^\1\2[ \t]*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
STATE = r"(v=1&chapter=[1-8]&lang=(en|zh))?"  # of the playground


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub and the site make them."""
    found = set()
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", title.strip().lower())
        found.add(kept.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_resolve(page):
    dead = []
    for target in LINK.findall(CODE.sub("", page.read_text())):
        address = urlsplit(target)
        if address.scheme:
            continue
        path = (page.parent / unquote(address.path)).resolve() if address.path else page
        anchored = path.suffix == ".md" and address.fragment
        if not path.exists() or (anchored and unquote(address.fragment) not in headings(path)):
            dead.append(target)
    assert not dead


def test_nav_names_every_page():
    config = pytest.importorskip("mkdocs.config", reason="the site is built with regard[docs]")
    sys.path.insert(0, str(ROOT))
    try:
        loaded = config.load_config(str(ROOT / "mkdocs.yml"))
        nav = loaded.plugins.on_config(loaded).nav
    finally:
        sys.path.remove(str(ROOT))
    named = list(leaves(nav))
    assert len(named) == len(set(named))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    made = {"index.md", "index.zh.md", "examples.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    assert pages == set(named) - made


def test_architecture_is_a_page_that_is_read():
    """At most 25 words in a cell of a table; two charts, which the site can draw."""
    text = (DOCS / "architecture.md").read_text()
    cells = [
        cell for row in re.findall(r"^\|(.*)\|$", text, re.MULTILINE) for cell in row.split("|")
    ]
    assert len(cells) > 40
    assert [cell for cell in cells if len(cell.split()) > 25] == []
    assert len(re.findall(r"^```mermaid$", text, re.MULTILINE)) == 2


class TestFlowcharts:
    @pytest.fixture
    def drawer(self, monkeypatch):
        monkeypatch.syspath_prepend(str(ROOT))
        return importlib.import_module("mkdocs_flowchart")

    def test_boxes_and_edges_are_drawn_and_do_not_overlap(self, drawer):
        text = """flowchart TD
            a["one<br/>more"]
            b["two"]
            c["three & four"]
            a --> b & c
            b --> c
        """
        paths, rows = drawer.laid_out(text)
        assert [[len(box.lines) for box in row] for row in rows] == [[2], [1, 0], [1]]
        assert [len(path) for path in paths] == [2, 3, 2]
        for left, right in itertools.pairwise(rows[1]):
            assert left.x + left.half < right.x - right.half
        drawn = drawer.draw(text, "a chart")
        assert drawn.count("<rect") == 3 and drawn.count("marker-end") == 3
        assert "three &amp; four" in drawn and "\n" not in drawn

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("graph LR", "begins with 'flowchart TD'"),
            ('flowchart TD\na["x"]\na -.-> a', "not a node or an edge"),
            ('flowchart TD\na["x"]\na --> b', "not declared: b"),
            ('flowchart TD\na["x"]\nb["y"]\na --> b\nb --> a', "in a circle"),
        ],
    )
    def test_what_cannot_be_drawn_is_an_error(self, drawer, text, message):
        with pytest.raises(ValueError, match=message):
            drawer.draw(text, "a chart")


def test_lists_are_written_as_the_site_wants_them(monkeypatch):
    pytest.importorskip("mkdocs", reason="the site is built with regard[docs]")
    monkeypatch.syspath_prepend(str(ROOT))
    spec = importlib.util.spec_from_file_location("mkdocs_hooks", ROOT / "mkdocs_hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    github = (
        "- one\n  more\n\n  ```python\n  x = 1\n  ```\n\n- two\n\nend\n\n```\n- no\n  list\n```"
    )
    site = "- one\n    more\n\n    ```python\n    x = 1\n    ```\n\n- two\n\nend\n\n```\n- no\n  list\n```"
    assert "\n".join(hooks.nested(github.split("\n"))) == site
    assert list(hooks.nested(["1. one", "   more"])) == ["1. one", "    more"]
    changed = hooks.beside_fences("a\n```\na\n```\na", lambda text: text.replace("a", "b"))
    assert changed == "b\n```\na\n```\nb"


def leaves(nav: object) -> Iterator[str]:
    match nav:
        case str():
            yield nav
        case dict():
            for value in nav.values():
                yield from leaves(value)
        case list():
            for value in nav:
                yield from leaves(value)


class Seen(HTMLParser):
    """What a built page leads to, what it loads, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.leads, self.loads, self.ids = [], [], set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id"))
        if tag == "a" and given.get("href"):
            self.leads.append(given["href"])
        for name in ("src", "href"):
            if tag in ("script", "img", "link", "iframe", "source") and given.get(name):
                self.loads.append(given[name])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocstrings", reason="the site is built with regard[docs]")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr.strip(), done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_warnings_dead_links_or_network(site):
    seen = {page: Seen(page) for page in site.rglob("*.html")}
    assert len(seen) > 40
    wrong = []
    for page, found in seen.items():
        if page.name == "404.html":
            continue  # served from any address, so that its links begin at the root
        wrong += [
            f"{page.name} loads {x}" for x in found.loads if urlsplit(x).scheme not in ("", "data")
        ]
        for target in [*found.leads, *found.loads]:
            address = urlsplit(target)
            if address.hostname == "127.0.0.1":
                wrong.append(f"{page.name} leads to a server: {target}")
            if address.scheme:
                continue
            path = (page.parent / unquote(address.path)).resolve() if address.path else page
            if not path.is_file():
                wrong.append(f"{page.name} leads to {target}")
            elif path.name == "playground.html" != page.name:
                if not re.fullmatch(STATE, address.fragment):
                    wrong.append(f"{page.name} leads to {target}")
            elif address.fragment and path in seen:
                ids = seen[path].ids
                if unquote(address.fragment) not in ids and not address.fragment.startswith("__"):
                    wrong.append(f"{page.name} leads to {target}")
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    wrong += re.findall(r"(?:url\(|@import )[\"']?https?:[^)\s]*", styles)
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_open_from_disk_and_fit_a_phone(site, browser, scheme):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 844})
    page, wrong = context.new_page(), []
    page.on("console", lambda m: m.type in ("error", "warning") and wrong.append(m.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda r: r.url.startswith(("file:", "data:")) or wrong.append(r.url))
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":
            continue
        page.goto(path.as_uri())
        sideways = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if sideways > 0:
            wrong.append(f"{path.name} is {sideways} px too wide")
    assert page.evaluate("document.body.dataset.mdColorScheme") == {
        "light": "default",
        "dark": "slate",
    }.get(scheme)
    context.close()
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", ["index.html", "index.zh.html", "choosing.html", "scores.html"])
def test_on_a_phone_wide_tables_say_that_they_go_on(site, browser, name):
    """They ran off the edge without a hint; now it is shaded, and the names of the rows stay."""
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto((site / name).as_uri())
    frame = page.locator(".md-typeset__scrollwrap").first
    assert frame.evaluate("frame => frame.scrollWidth > frame.clientWidth + 50")
    assert "local" in frame.evaluate("frame => getComputedStyle(frame).backgroundAttachment")
    frame.evaluate("frame => { frame.scrollLeft = frame.scrollWidth; }")
    box = frame.locator("tbody td:first-child").first.bounding_box()
    assert 0 <= box["x"] < 20 and box["width"] < 200
    page.close()


@pytest.mark.slow
def test_search_works_from_disk(site, browser):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.click("input[name=query]")
    page.keyboard.type("alignment")
    page.wait_for_selector(".md-search-result__item")
    assert "alignment" in page.inner_text(".md-search-result__list").lower()
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize(("language", "chapter"), [("en", 3), ("zh", 7)])
def test_a_chapter_leads_to_its_state_of_the_playground(site, browser, language, chapter):
    (path,) = (site / "learn" / language).glob(f"{chapter}-*.html")
    page, wrong = browser.new_page(), []
    page.on("console", lambda m: m.type in ("error", "warning") and wrong.append(m.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(path.as_uri())
    page.click("a[href*='playground.html']")
    page.wait_for_function("window.regard !== undefined")
    state = page.evaluate("regard.state()")
    assert page.evaluate("location.protocol") == "file:"
    assert (state["chapter"], state["lang"]) == (chapter, language)
    page.close()
    assert not wrong
