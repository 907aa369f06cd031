"""The answer in plain text: it fits the terminal, and numbers are those of a person."""

from __future__ import annotations

import pytest

from regard.choosing.training.candidates import ScoreSizes, candidates
from regard.choosing.training.costs import Cost
from regard.choosing.training.judging import judge
from regard.choosing.training.marks import margin, standing
from regard.choosing.training.phrases import level, spread
from regard.choosing.training.rows import CandidateRow
from regard.choosing.training.table import as_text
from regard.choosing.training.verdict import Verdict
from regard.measuring.statistics import Estimate

SCORES = ("scaled_dot", "additive", "cosine", "bilinear")
KNOWN = candidates(ScoreSizes(16, 16, 16, True), SCORES, ("none", "layer_norm"), (16, 64), (2,))


def verdict_of(*qualities: list[float], metric: str = "accuracy") -> Verdict:
    """Finalists with these qualities, and behind them candidates of every other fate."""
    made = [CandidateRow(one, Cost(1.5e-3, 1, 1)) for one in KNOWN]
    for row, values in zip(made, qualities, strict=False):
        row.status, row.quality = "final", dict(enumerate(values))
    final, others = made[: len(qualities)], made[len(qualities) :]
    for row, step in zip(others, (100, 25), strict=False):
        row.status, row.searched = "halved", (step, 0.1)
    others[2].status, others[2].reason = "failed", "RuntimeError: this model " + "never works " * 9
    seeds = list(range(len(qualities[0])))
    judged = judge(final, "scaled_dot", seeds, 0.01)
    facts = {"settings": {"candidates": [one.name for one in KNOWN], "steps": 100}}
    return Verdict(*judged, made, metric, 0.01, seeds, facts=facts)


QUALITIES = ([0.80, 0.60, 0.70], [0.9012, 0.8021, 0.7233], [0.70, 0.80, 0.75])


@pytest.mark.parametrize("width", [64, 80, 100])
@pytest.mark.parametrize("metric", ["accuracy", "r2", "own"])
def test_all_but_the_code_fits_the_terminal(width: int, metric: str) -> None:
    *lines, code = as_text(verdict_of(*QUALITIES, metric=metric), width).splitlines()
    assert max(map(len, lines)) <= width and code.startswith("score = ")
    assert not any(line.endswith(" ") for line in lines)


def test_the_table_has_a_header_and_every_candidate() -> None:
    verdict = verdict_of(*QUALITIES)
    lines = as_text(verdict, 80).splitlines()
    head = next(line for line in lines if line.startswith("candidate"))
    assert head.split("  ")[0] == "candidate"
    for name in ("accuracy", "over scaled dot", "a step"):
        assert name in head
    text = " ".join(" ".join(lines).split())
    assert all(row.candidate.label.en.split(" +")[0] in text for row in verdict.rows)
    assert "+10.9 [" in text and "not among the finalists" in text and "dropped at step 25" in text
    assert "failed: RuntimeError: this model" in text


def test_who_did_not_get_to_the_final_is_told_in_both_languages() -> None:
    verdict = verdict_of(*QUALITIES)
    last, early = verdict.rows[3:5]
    assert standing(verdict, last) == ("not among the finalists", "未进入决赛")
    assert standing(verdict, early) == ("dropped at step 25", "第 25 步落选")


def test_sentences_are_whole_where_no_width_is_given() -> None:
    assert str(verdict_of(*QUALITIES)).splitlines()[1].startswith("Use scaled dot for now")


def test_a_small_lead_has_its_sign() -> None:
    text = as_text(verdict_of([0.50, 0.51, 0.52], [0.52, 0.52, 0.53], metric="r2"), 80)
    assert " +0.013 [" in text


def test_rounding_is_no_spread() -> None:
    values = [0.1 + 0.2, 0.3, 0.3]
    verdict = verdict_of(values, [1.0, 1.0, 1.0])
    assert 0 < verdict.rows[0].mean().high - verdict.rows[0].mean().value < 1e-12
    assert level(verdict, verdict.rows[0]) == "30% ±0"
    assert "e-" not in str(verdict)


def test_zero_has_no_sign() -> None:
    verdict = verdict_of([0.5, 0.5, 0.5], [0.5 - 1e-7, 0.5, 0.5 - 1e-7])
    assert "-0.0" not in str(verdict) + margin(verdict).en
    assert spread(verdict, Estimate(-1e-9, -1e-9, 0.0)).en == "0.0 points [0.0, 0.0]"
