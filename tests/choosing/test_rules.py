"""The rules of thumb say what the committed results say: every number of a sentence is compared."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from regard.choosing.evidence import CitedNumber, reach
from regard.choosing.rules import RULES, Rule

RESULTS = Path(__file__).parents[2] / "benchmarks"
NUMBER = re.compile(r"\d+(?:\.\d+)?")
CASES = [(rule, one) for rule in RULES for one in rule.evidence]
TOLD = [f"{rule.score}: {one.told} of {one.claim}" for rule, one in CASES]


@cache
def result(claim: str) -> dict[str, Any]:
    return json.loads((RESULTS / "claims" / f"{claim}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("rule", "evidence"), CASES, ids=TOLD)
def test_a_number_is_the_one_that_was_measured(rule: Rule, evidence: CitedNumber) -> None:
    assert evidence.claim in rule.claims
    assert evidence.written(result(evidence.claim)) == evidence.told, evidence.path


@pytest.mark.parametrize(
    "rule", RULES, ids=[f"{rule.score}: {rule.condition.en}" for rule in RULES]
)
def test_every_number_of_a_sentence_has_evidence(rule: Rule) -> None:
    told = [one.told for one in rule.evidence]
    for text in rule.because:
        assert sorted(NUMBER.findall(text)) == sorted(told), text


def test_most_rules_give_a_number() -> None:
    assert sum(bool(rule.evidence) for rule in RULES) >= len(RULES) / 2


def test_the_check_can_fail() -> None:
    """Additive's 47 points are not what heads of scaled dot gain."""
    (heads,) = [rule for rule in RULES if "several things" in rule.condition.en]
    scaled, additive = [one for one in heads.evidence if one.minus]
    assert ("scaled dot" in scaled.path, "additive" in additive.path) == (True, True)
    wrong = scaled._replace(path=additive.path, minus=additive.minus)
    assert wrong.written(result("F2")) == additive.told != scaled.told


def test_paths_reach_items_means_and_facts() -> None:
    made = {
        "facts": [{"label": {"en": "lead", "zh": "领先"}, "value": 0.125}],
        "numbers": {"runs": [{"size": 4, "quality": [0.5, 0.7]}, {"size": 8, "quality": [1.0]}]},
    }
    assert CitedNumber("12.5", "X", "facts>label=lead>value", times=100).written(made) == "12.5"
    four = CitedNumber("60", "X", "numbers>runs>size=4>quality", times=100)
    assert four.written(made) == "60"
    assert four._replace(told="40", times=-100, plus=100).written(made) == "40"
    assert four._replace(minus="numbers>runs>1>quality").written(made) == "-40"
    assert reach(made, "numbers>runs>*>quality>0") == [0.5, 1.0]
    with pytest.raises(ValueError, match="not enough values"):
        reach(made, "numbers>runs>size=5>quality")


def test_the_default_stays_where_the_task_of_unlike_dims_found_no_difference() -> None:
    """docs/choosing.md says so beside claim E3, whose keys have more noise."""
    found = json.loads((RESULTS / "results" / "choose.json").read_text(encoding="utf-8"))
    (task,) = [one for one in found["tasks"] if one["name"] == "unlike dims"]
    page = (RESULTS.parent / "docs" / "choosing.md").read_text(encoding="utf-8")
    said = "finds no difference that matters" in " ".join(page.split())
    assert said == (task["verdict"]["outcome"] != "alternative")
