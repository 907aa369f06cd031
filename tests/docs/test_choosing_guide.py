"""docs/choosing.md says what the committed results say, of every score and of every rule."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "choosing.md").read_text()
RESULTS = ROOT / "benchmarks" / "claims"
LINK = re.compile(r"\[([A-Z]\d+) (\S)\]\(claims\.md#(\w+)\)")


@pytest.fixture
def writer(monkeypatch):
    """benchmarks/choosing.py, which is a script and no package's."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("choosing")


def test_verdicts_are_those_of_the_results(writer):
    """If this fails after a run of the claims: `python benchmarks/choosing.py`, and read it again."""
    assert writer.written(PAGE) == PAGE


def test_a_changed_verdict_changes_the_page(writer, monkeypatch):
    """The check above can fail."""
    real = writer.result
    other = {"verdict": "does not hold here"}
    monkeypatch.setattr(writer, "result", lambda name: real(name) | (other if name == "G1" else {}))
    after = writer.written(PAGE)
    assert "[G1 ✗](claims.md#g1)" in after and "*does not hold here*" in after


def test_every_link_leads_to_its_claim():
    claims = (ROOT / "docs" / "claims.md").read_text()
    links = LINK.findall(PAGE)
    assert len(links) > 50 and PAGE.count("](claims.md#") == len(links)
    for name, _, anchor in links:
        assert anchor == name.lower() and f"\n### {name}\n" in claims
        assert (RESULTS / f"{name}.json").exists()


def test_marks_are_explained(writer):
    legend = PAGE[PAGE.index("Each link leads") : PAGE.index("**In short.**")].replace("\n", " ")
    for verdict, mark in writer.MARKS.items():
        assert f"{mark} {verdict}" in legend
    known = {json.loads(path.read_text())["verdict"] for path in RESULTS.glob("*.json")}
    assert known <= set(writer.MARKS)


def test_every_score_has_a_column_with_every_property():
    table = PAGE[PAGE.index("| | **scaled dot**") : PAGE.index("</div>")].strip()
    head, _, *rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()]
    named = {re.search(r"<br>`(\w+)`", cell)[1] for cell in head[1:]}
    not_bare = {"Score", "InnerScore", "PairwiseScore", "Projected"}
    scores = {
        name
        for name, value in vars(regard).items()
        if isinstance(value, type) and issubclass(value, regard.Score) and name not in not_bare
    }
    assert named == scores
    assert all(len(row) == len(head) and all(cell.strip() for cell in row) for row in rows)
    properties = {
        "idea", "formula", "cost of a pair", "measured cost", "parameters", "query dim = key dim?",
        "does well", "does badly", "typical models",
    }  # fmt: skip
    assert {row[0].strip().strip("*") for row in rows} == properties
    # GAT has none: what is said of it follows from its formula.
    for name, *cells in list(zip(head, *rows, strict=True))[1:]:
        assert ("`GAT`" in name) != any(LINK.search(cell) for cell in cells)


def test_costs_are_those_that_were_measured(writer):
    found = json.loads((ROOT / "benchmarks" / "results" / "choose-shape.json").read_text())
    times = {row["name"]: row["forward_backward_ratio"] for row in found["results"]}
    row = writer.costs("`ScaledDot` | `LowRank` | `GATv2` | `GAT`").split("|")[2:-1]
    told = [f"{times[name]:.1f}x" for name in ("scaled_dot", "low_rank", "gatv2")]
    assert [cell.split(",")[0].strip() for cell in row] == [*told, "not measured"]


def test_the_last_chapter_names_the_same_cost(writer):
    cost = f"{writer.front.costs()['additive'].times:.1f}"
    for language, words in (("en", f"{cost} times the time of"), ("zh", f"{cost} 倍")):
        page = ROOT / "docs" / "learn" / language / "8-which-one.md"
        assert words in page.read_text(encoding="utf-8").replace("\n", " ")


def test_every_claim_that_a_rule_of_the_chooser_rests_on_is_here():
    from regard.choosing.rules import RULES

    named = {name for name, _, _ in LINK.findall(PAGE)}
    assert {name for rule in RULES for name in rule.claims} <= named
