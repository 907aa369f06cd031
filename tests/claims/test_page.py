"""The page of claims in docs/."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.claims import Claim, all_claims
from regard.claims.report.page import main, marked, page, write_figures
from regard.claims.running.store import Result, load_results

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def text(claims: dict[str, Claim], results: dict[str, Result]) -> str:
    return page(claims, results, "claims")


def test_it_says_everything_about_a_claim(text: str) -> None:
    body = text[text.index("### C1\n") : text.index("### C2\n")]
    for part in (
        r"**`score`s are \<made up>, as \| here.**",
        "*does not hold here*: Because of `this`.",
        "](claims/C1.svg)",
        "| slope | 1.0023 | [0.9961, 1.0084] |",
        "| lead | −2.50\N{NO-BREAK SPACE}points | [−3.40, −1.60] |",
        "**What this means for choosing a score.** Choose what you like.",
        "The number is above 1.",
        "The same for both.",
        "```sh\nregard claims run C1 --full --seed 7\n```",
    ):
        assert part in body


def test_the_table_has_every_claim(text: str, claims: dict[str, Claim]) -> None:
    rows = [line for line in text.splitlines() if line.startswith(("| [", "| G1"))]
    assert len(rows) == len(claims)
    assert rows[-1].endswith("| not run |")
    assert "**3** holds, **1** holds with conditions" in text
    assert "## C. Scale and stability" in text
    assert "### G1" not in text


def test_what_strangers_wrote_is_text(text: str) -> None:
    assert "<script" not in text.replace(r"\<script", "")
    assert marked("a*b_c | `d*e` <f>\n# g") == r"a\*b\_c \| `d*e` \<f> # g"


def test_figures_are_written_and_old_ones_removed(
    claims: dict[str, Claim], results: dict[str, Result], tmp_path: Path
) -> None:
    (tmp_path / "G1.svg").write_text("of a result that is gone")
    few = {name: claims[name] for name in ("A1", "G1")}
    write_figures(few, results, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["A1.svg"]
    assert "Verdana" in (tmp_path / "A1.svg").read_text()


def test_mistakes_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="usage"):
        main([])
    with pytest.raises(SystemExit, match=r"no results in .*regard claims run --full --out"):
        main([str(tmp_path), str(tmp_path / "claims.md")])


def test_the_page_is_what_the_committed_results_give(committed: Path) -> None:
    claims = all_claims()
    results = load_results(committed, claims)
    written = (DOCS / "claims.md").read_text(encoding="utf-8")
    again = (
        f"python -m regard.claims.report.page {committed.relative_to(DOCS.parent)} docs/claims.md"
    )
    assert written == page(claims, results, "claims"), f"write it again: {again}"
    assert {path.stem for path in (DOCS / "claims").glob("*.svg")} == set(claims) & set(results)
