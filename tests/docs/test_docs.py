"""Every Python block in docs/ and the README runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("**/*.md"), ROOT / "README.md"])
FENCE = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(
        page, match, id=f"{page.name}:{page.read_text()[: match.start()].count(chr(10)) + 1}"
    )
    for page in PAGES
    for match in FENCE.finditer(page.read_text())
]


# A machine may have no font for the Chinese words of a picture; it shows boxes in their place.
@pytest.mark.filterwarnings("ignore:Glyph .* missing from font:UserWarning")
@pytest.mark.parametrize(("page", "match"), BLOCKS)
def test_block_runs(page: Path, match: re.Match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "continue" not in match[1], "blocks stand alone"
    line = page.read_text()[: match.start()].count("\n") + 1
    code = compile("\n" * line + match[2], str(page.relative_to(ROOT)), "exec")
    exec(code, {"__name__": f"docs_{page.stem}"})  # noqa: S102 - running the pages is the test


def test_user_scores_are_short():
    """The page promises scores in under 20 lines each."""
    page = (ROOT / "docs" / "write-a-score.md").read_text()
    for match in FENCE.finditer(page):
        body = match[2]
        written = body[body.index("class ") : body.index("\n\n\nq, k, v")]
        lines = [line for line in written.splitlines() if line.strip()]
        assert len(lines) < 20
