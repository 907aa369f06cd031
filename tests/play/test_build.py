"""The page as a file: whole, the same each time, with no way out to a network."""

from __future__ import annotations

import base64
import hashlib
import importlib
import re
from pathlib import Path

import pytest

from regard.play import build as made
from regard.play import write_page

build = importlib.import_module("regard.play.build")  # the package has a function of that name
LARGEST = 200_000  # bytes
LONGEST, LONGEST_FUNCTION = 400, 60  # lines, as for Python
SOURCES = sorted(build.FOLDER.iterdir())
SCRIPTS = [path for path in SOURCES if path.suffix == ".js"]


@pytest.fixture(scope="module")
def page() -> str:
    return made()


def test_it_is_the_same_each_time_and_small(page: str, tmp_path: Path) -> None:
    assert write_page(tmp_path / "page.html").read_text(encoding="utf-8") == made() == page
    assert 20_000 < len(page.encode()) < LARGEST
    assert not re.search(r"@[A-Z]+@", page)


def test_it_names_no_address(page: str) -> None:
    names = re.findall(r"""(?:\bhttps?:|\bwss?:|\bftp:|["'(]//)[^\s"'<)]*""", page)
    assert set(names) == {"http://www.w3.org/2000/svg"}  # a name space, never fetched
    for way in ("fetch(", "XMLHttpRequest", "WebSocket", "EventSource", "sendBeacon", "import(",
                "@import", "url(", "eval(", "innerHTML", "new Function"):  # fmt: skip
        assert way not in page


def test_the_policy_allows_its_own_script_and_style_alone(page: str) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"<[^>]*\son\w+=", page[: page.index("<script>")])
    assert not re.search(r"<[^>]*\sstyle=", page)


def test_every_source_is_used_and_short(page: str) -> None:
    for path in SCRIPTS:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= LONGEST
        assert f"const {build.variable(path.name)} = (() => {{" in page
    assert {path.name for path in SOURCES} - {path.name for path in SCRIPTS} == {
        "index.html", "style.css", "dark.css",
    }  # fmt: skip


def test_functions_are_short() -> None:
    """From a line that opens a function at the margin to the one that closes it."""
    for path in SCRIPTS:
        text = path.read_text(encoding="utf-8")
        for body in re.findall(r"^(?:export )?(?:async )?function.*?^\}", text, re.M | re.S):
            assert body.count("\n") < LONGEST_FUNCTION, (path.name, body.splitlines()[0])


def test_both_languages_say_the_same_things() -> None:
    text = (build.FOLDER / "text.js").read_text(encoding="utf-8")
    english, chinese = text.split("\n  zh: {")
    # The names of what is said, and of what is filled in.
    pattern = re.compile(r"^    (\w+): .*$", re.MULTILINE)
    found = [
        {match[1]: sorted(re.findall(r"\{(\w+)\}", match[0])) for match in pattern.finditer(half)}
        for half in (english, chinese)
    ]
    assert found[0] == found[1]
    assert len(found[0]) > 60


def test_every_word_asked_for_is_there() -> None:
    text = (build.FOLDER / "text.js").read_text(encoding="utf-8")
    known = set(re.findall(r"^    (\w+):", text, re.MULTILINE))
    html = (build.FOLDER / "index.html").read_text(encoding="utf-8")
    asked = set(re.findall(r'data-(?:text|label)="(\w+)"', html))
    for path in SCRIPTS:
        source = path.read_text(encoding="utf-8")
        asked |= set(re.findall(r'say\((?:state\.)?lang, "(\w+)"', source))
        asked |= set(re.findall(r'word\("(\w+)"', source))
    assert len(asked) > 40
    assert asked <= known


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"app.js": 'import { a } from "./app.js";\n'}, "imports itself"),
        ({"app.js": 'import * as a from "./a.js";\n'}, "is not supported"),
        ({"app.js": "export default 1;\n"}, "is not supported"),
        ({"app.js": 'const a = "</script>";\n'}, "end the script"),
    ],
)
def test_a_source_it_cannot_read_is_refused(
    files: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    with pytest.raises(build.BadSource, match=said):
        build.bundle()


def test_modules_keep_their_names_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.js").write_text('import { b } from "./b.js";\nconst a = b + 1;\n')
    (tmp_path / "b.js").write_text("const a = 1;\nexport const b = a;\n")
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    assert build.bundle() == (
        '"use strict";\n'
        "const b_js = (() => {\nconst a = 1;\nconst b = a;\nreturn { b };\n})();\n"
        "const app_js = (() => {\nconst { b } = b_js;\nconst a = b + 1;\nreturn {  };\n})();"
    )
