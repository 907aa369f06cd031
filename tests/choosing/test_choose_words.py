"""Sentences of an answer that a newcomer can read: what they name, in which order, and what they never say."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regard.choosing.present import answer_table, line, note
from regard.choosing.report import save_verdict
from regard.choosing.report.overview import summary
from regard.choosing.suite import Answer, Suite
from regard.choosing.tasks.embedded import MADE
from regard.choosing.training import run
from regard.choosing.training.chance import Chance
from regard.choosing.training.intervals import RowsTested
from regard.choosing.training.marks import margin, use
from regard.choosing.training.phrases import led, spread
from regard.choosing.training.rows import Outcome
from regard.choosing.training.verdict import Verdict
from regard.choosing.training.words import recommendation
from regard.measuring.statistics import Estimate
from regard.text import Text

from .conftest import Finished, again
from .test_choose_answers import FIRST, PLAIN, TWO, told, verdict_of

TASK = next(iter(MADE.values()))()
SAME = {FIRST: [0.800, 0.801, 0.799], "cosine heads=1": [0.809, 0.810, 0.808]}
SCALED_DOT = Text("scaled dot", "缩放点积")
ACCURACY = Text("accuracy", "准确率")


def answered(qualities: dict[str, list[float]], **more: Any) -> Answer:
    """The answer of a task with these qualities."""
    found = verdict_of(qualities, **more)
    found.facts["seconds"] = 31.0
    return Answer(TASK, found)


class TestTooFewRows:
    """100% beside 54% (29% to 67%) of shuffled targets was "no score learned anything"."""

    def small(self, **more: Any) -> Verdict:
        qualities = {FIRST: [1.0] * 3, "cosine heads=1": [1.0] * 3}
        found = verdict_of(qualities, control=[0.667, 0.667, 0.292], **more)
        for row in found.rows:
            row.tested = dict.fromkeys(row.quality, RowsTested("a", 24, True))
        return found

    def test_are_not_called_nothing_learned(self, tmp_path: Path) -> None:
        found = self.small()
        assert found.learned is None and not found.recommended
        assert found.as_dict()["learned"] is None and found.as_dict()["winner"] is None
        first, second = recommendation(found)
        assert first.en == (
            "No recommendation: the best score has 100.0%, above the 54.2% (29.2% to 66.7%) when the targets of "
            "the training rows are shuffled, but 24 test rows and 3 seeds are too few to be sure."
        )
        assert "54.2%（29.2% 到 66.7%）" in first.zh and "24 个测试行、3 个种子太少" in first.zh
        assert second.en == "Give more rows, or more seeds (seeds=5)."
        page = save_verdict(found, tmp_path / "a.html").read_text(encoding="utf-8")
        for words in (str(found), margin(found).en, use(found).en):
            assert "learned" not in words and "Check" not in words and "noise" not in words
        assert "too little data to tell" in page and "nothing learned" not in page

    def test_are_told_of_among_many_tasks(self) -> None:
        many = summary(Suite([Answer(TASK, self.small()), answered(PLAIN)]))
        assert many[0].en.startswith(f"No recommendation for {TASK.name}: too few rows or seeds")
        assert many[0].zh.endswith("请增加。") and len(many) == 2

    def test_of_guesses_need_more_rows_whatever_the_seeds(self) -> None:
        found = verdict_of({FIRST: [0.6] * 3, "cosine heads=1": [0.75] * 3})
        found = replace(found, chance=Chance(0.5, 0.15))
        assert found.learned is None and "75.0%, above the 50.0% of guessing" in told(found)
        assert recommendation(found)[1].en == "Give more rows."


def test_where_nothing_was_learned_a_plain_table_has_neither_query_nor_key() -> None:
    found = verdict_of(PLAIN, control=[0.79, 0.81, 0.80, 0.78])
    assert "Check that each target belongs to the inputs of its row." in told(found)
    assert "query" not in told(found)


def test_all_numbers_come_from_the_seeds_that_all_finalists_have(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One finalist had two seeds and the others three: the mean contradicted the lead."""
    read_final = run.read_final

    def cut(rows: Any, trials: Any) -> None:
        read_final(rows, trials)
        del rows["cosine"].quality[2]

    monkeypatch.setattr(run, "read_final", cut)
    found = again(finished.copy(tmp_path), resume=True)
    assert found.seeds == [1] and "±" not in str(found)
    for row in found.finalists:
        assert set(row.quality) == set(row.replicates) == set(row.tested) == {1}
    means = [row.mean().value for row in found.finalists]
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("qualities", [PLAIN, SAME, TWO])
def test_one_alternative_is_the_best_one(qualities: dict[str, list[float]]) -> None:
    found = verdict_of(qualities)
    best = found.best_alternative
    assert best is not None and found.over(best) == found.over_null
    if found.outcome is not Outcome.ALTERNATIVE:
        assert f"the best alternative, {best.candidate.label.en}, is ahead of" in told(found)


class TestLead:
    @pytest.mark.parametrize(
        ("estimate", "english", "chinese"),
        [
            ((0.074, -0.013, 0.161), "ahead of scaled dot by 7.4 points [-1.3, 16.1] of accuracy",
             "比缩放点积领先 7.4 个百分点 [-1.3, 16.1]"),
            ((-0.02, -0.03, -0.01), "behind scaled dot by 2.0 points [1.0, 3.0] of accuracy",
             "比缩放点积落后 2.0 个百分点 [1.0, 3.0]"),
            ((1e-5, -0.02, 0.02), "level with scaled dot in accuracy (0.0 points [-2.0, 2.0])",
             "与缩放点积持平（0.0 个百分点 [-2.0, 2.0]）"),
        ],
    )  # fmt: skip
    def test_reads_in_order(self, estimate, english: str, chinese: str) -> None:
        found = led(verdict_of(PLAIN), Estimate(*estimate), SCALED_DOT, ACCURACY)
        assert found == (english, chinese)

    @pytest.mark.parametrize(
        ("value", "said"),
        [(0.0, "level (no interval: 1 seed)"), (1e-13, "level (no interval: 1 seed)"),
         (-0.01, "behind by 1 point (no interval: 1 seed)"),
         (0.02, "ahead by 2 points (no interval: 1 seed)")],
    )  # fmt: skip
    def test_of_one_seed_is_no_nought_and_no_1_points(self, value: float, said: str) -> None:
        one = verdict_of({name: values[:1] for name, values in PLAIN.items()})
        found = Estimate(value, float("-inf"), float("inf"))
        assert led(one, found).en == said
        assert "e-" not in spread(one, found).en

    def test_says_whose_step_it_is(self) -> None:
        said = recommendation(verdict_of(PLAIN))[-1]
        assert said.en == (
            "Nothing cheaper is shown to be as good. A training step with cosine, 1 head takes 1.00 ms and 1 B "
            "(100 parameters)."
        )
        assert "训练一步（余弦，1 个头）耗时" in said.zh


class TestTables:
    def shown(self, answers: list[Answer], width: int) -> list[str]:
        console = Console(file=io.StringIO(), width=width)
        console.print(answer_table(answers, width))
        return console.file.getvalue().splitlines()  # type: ignore[attr-defined] # it is a StringIO

    def test_a_lead_has_a_sign_and_no_brackets_in_brackets(self) -> None:
        said = line(answered(SAME))
        assert said.endswith(
            "scaled dot, 1 head; best other: +0.9 points [0.9, 0.9], too little to matter; 31 s"
        )
        null = verdict_of({FIRST: PLAIN["cosine heads=1"], "cosine heads=1": PLAIN[FIRST]})
        assert null.outcome is Outcome.NULL
        assert margin(null).en.startswith("best other: -30.0 points [-")
        assert margin(verdict_of(TWO)).en.startswith("not decided: +14.0 points [")

    def test_80_columns_are_enough(self) -> None:
        rows = self.shown([answered(SAME), answered(PLAIN), answered(TWO)], 80)
        assert max(map(len, rows)) <= 80 and "…" not in "".join(rows)
        assert any("+30.0 points [27.4, 32.6]" in row for row in rows)  # in one piece
        # Blank, header and line; then no task takes more than four lines.
        assert len(rows) <= 3 + 3 + 3 + 4 + 1

    def test_the_note_claims_intervals_only_where_there_are_some(self) -> None:
        few = {name: values[:1] for name, values in PLAIN.items()}
        assert "95% intervals" in note([answered(PLAIN)])
        assert "95%" not in note([answered(few)])
        assert "With fewer than 3 seeds they have no interval." in note([answered(few)])
        assert "paired over 1 seed and" in note([answered(few)])
