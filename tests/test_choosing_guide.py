"""docs/choosing.md says what the committed results say, of every score and of every rule."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "choosing.md").read_text()
RESULTS = ROOT / "benchmarks" / "claims"
LINK = re.compile(r"\[([A-Z]\d+) (\S)\]\(claims\.md#(\w+)\)")


@pytest.fixture(scope="module")
def writer():
    """benchmarks/choosing.py, which is a script and no package's."""
    spec = importlib.util.spec_from_file_location("choosing", ROOT / "benchmarks" / "choosing.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_every_score_has_a_row_with_every_property():
    table = PAGE[PAGE.index("| | idea") : PAGE.index("</div>")].strip().splitlines()
    assert {line.count("|") for line in table} == {9}
    named = {re.search(r"<br>`(\w+)`", line)[1] for line in table[2:]}
    not_bare = {"Score", "InnerScore", "PairwiseScore", "Projected"}
    scores = {
        name
        for name, value in vars(regard).items()
        if isinstance(value, type) and issubclass(value, regard.Score) and name not in not_bare
    }
    assert named == scores
    assert all(all(cell.strip() for cell in line.split("|")[2:-1]) for line in table[2:])


def test_every_claim_that_a_rule_of_the_chooser_rests_on_is_here():
    from regard.choosing.rules import RULES

    named = {name for name, _, _ in LINK.findall(PAGE)}
    assert {name for rule in RULES for name in rule.claims} <= named
