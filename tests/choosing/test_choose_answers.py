"""What the answer says: its null, seeds that were stuck, noise, models without attention, code to paste."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.choosing.present import show_codes
from regard.choosing.report import save_verdict
from regard.choosing.report.entries import entry
from regard.choosing.suite import Answer
from regard.choosing.tasks.embedded import MADE
from regard.choosing.tasks.models import Match
from regard.choosing.training.asking import anew, asked_by, named
from regard.choosing.training.candidates import STABILIZERS, ScoreSizes, candidates
from regard.choosing.training.chance import Chance
from regard.choosing.training.costs import Cost
from regard.choosing.training.intervals import RowsTested
from regard.choosing.training.judging import judge
from regard.choosing.training.marks import standing, use
from regard.choosing.training.paste import runnable
from regard.choosing.training.rows import BaselineRow, CandidateRow, Outcome
from regard.choosing.training.table import as_text
from regard.choosing.training.verdict import Verdict
from regard.choosing.training.words import opening, recommendation
from regard.text import Text

SIZES = ScoreSizes(8, 8, 8, True)
KNOWN = {
    one.name: one for one in candidates(SIZES, ("cosine", "additive"), ("none",), (8,), (1, 2))
}
FIRST = "scaled_dot heads=1"
STUCK = {FIRST: [0.80, 0.81, 0.80, 0.79, 0.80], "cosine heads=1": [0.95, 0.96, 0.512, 0.95, 0.97]}
PLAIN = {FIRST: [0.50, 0.51, 0.49, 0.50], "cosine heads=1": [0.80, 0.79, 0.81, 0.80]}

TWO = {
    FIRST: [0.50, 0.51, 0.49, 0.50, 0.51],
    "scaled_dot heads=2": [0.60, 0.95, 0.55, 0.90, 0.62],
    "additive h=8 heads=2": [0.86, 0.87, 0.86, 0.86, 0.87],
}


def verdict_of(qualities: dict[str, list[float]], **more: Any) -> Verdict:
    """A verdict from made-up qualities by candidate; the first is the null of all."""
    rows = [
        CandidateRow(
            KNOWN[name], Cost(1e-3, 1, 100), "final", quality=dict(enumerate(values, 1)),
            null=KNOWN[name].null, rate=0.01,
        )
        for name, values in qualities.items()
    ]  # fmt: skip
    seeds = list(rows[0].quality)
    facts = {
        "settings": {"candidates": list(KNOWN), "steps": 100, "rates": [0.01]},
        "trainings": 9, "seconds": 1.0, "machine": {"name": "a"}, **more.pop("facts", {}),
    }  # fmt: skip
    judged = judge(rows, next(iter(qualities)), seeds, 0.01)
    order = sorted(rows, key=lambda row: -row.mean().value)
    return Verdict(*judged, order, "accuracy", 0.01, seeds, facts=facts, **more)


def told(verdict: Verdict) -> str:
    return " ".join(text.en for text in recommendation(verdict))


class TestFewSeeds:
    @pytest.mark.parametrize("count", [1, 2])
    def test_decide_nothing_and_have_no_interval(self, count: int) -> None:
        found = verdict_of({name: values[:count] for name, values in PLAIN.items()})
        assert found.outcome is Outcome.UNDECIDED and found.winner == FIRST
        assert f"(no interval: {count} seed" in told(found) and "[" not in told(found)
        assert "nobody can tell a lead from noise; give seeds=5." in told(found) and "±" not in str(
            found
        )
        assert f"只有 {count} 个种子，没有区间" in recommendation(found)[0].zh

    def test_of_the_same_lead_are_not_sure_of_it(self) -> None:
        found = verdict_of({FIRST: [0.6, 0.7], "cosine heads=1": [0.75, 0.85]})
        assert found.outcome is Outcome.UNDECIDED and "[15.0, 15.0]" not in str(found)


class TestStuckSeeds:
    def test_are_told_in_place_of_no_difference(self) -> None:
        found = verdict_of(STUCK)
        assert found.outcome is Outcome.UNDECIDED
        said = recommendation(found)[0]
        assert said.en.startswith(
            "Not decided: cosine, 1 head is better than scaled dot, 1 head in 4 of 5 seeds, stuck in one "
            "(seed 3: 51.2%)"
        )
        assert "5 个种子中有 4 个" in said.zh and "种子 3：51.2%" in said.zh
        row = found.row("cosine heads=1")
        assert "stuck in 1 of 5 seeds (seed 3: 51.2%)" in standing(found, row).en
        assert found.as_dict()["candidates"][0]["outlying_seeds"] in (None, {"3": 0.512})

    def test_take_the_victory_from_scaled_dot(self) -> None:
        """One stuck seed puts cosine behind on the mean, and another alternative far behind."""
        low = [0.95, 0.96, 0.05, 0.95, 0.97]
        found = verdict_of(
            {FIRST: STUCK[FIRST], "cosine heads=1": low, "additive h=8 heads=1": [0.5] * 5}
        )
        assert found.outcome is Outcome.UNDECIDED and "4 of 5 seeds" in told(found)

    def test_of_the_null_are_told_too(self) -> None:
        found = verdict_of({FIRST: STUCK["cosine heads=1"], "cosine heads=1": [0.99] * 5})
        assert "scaled dot, 1 head is stuck in one (seed 3: 51.2%)" in told(found)

    def test_do_not_make_it_unlearned(self) -> None:
        found = verdict_of(STUCK, chance=Chance(0.5, 0.02))
        assert found.learned


class TestOwnNull:
    """Two additive heads against one dot head is a statement about heads."""

    def test_is_what_a_candidate_is_compared_with(self) -> None:
        found = verdict_of(TWO)
        row = found.row("additive h=8 heads=2")
        null = found.null_of(row)
        assert null is not None and null.candidate.name == "scaled_dot heads=2"
        over = found.over(row)
        assert over is not None and over.value == pytest.approx(0.14) and over.low < 0
        assert found.outcome is Outcome.UNDECIDED
        assert (
            "additive, 8 hidden, 2 heads, is ahead of scaled dot, 2 heads by 14.0 points"
            in told(found)
        )
        assert "] of accuracy over 5 seeds" in told(found)
        record = found.as_dict()
        assert record["candidates"][0]["compared_with"] == "scaled_dot heads=2"

    def test_leaves_what_is_surely_better_than_the_first_for_now(self) -> None:
        found = verdict_of(TWO)
        assert found.winner == "additive h=8 heads=2" and use(found).en.endswith(", for now")
        assert "for now: it is ahead of scaled dot, 1 head by 36.2 points" in told(found)
        assert "the two differ in more than the score. If leads" in told(found)
        assert "not decided: use it for now" in str(found) and "winner" not in str(found)

    def test_with_more_heads_may_win_itself(self) -> None:
        rows = dict(TWO) | {"scaled_dot heads=2": [0.85, 0.86, 0.86, 0.85, 0.86]}
        found = verdict_of(rows)
        assert (found.outcome, found.winner) == (Outcome.ALTERNATIVE, "scaled_dot heads=2")
        assert "Use scaled dot, 2 heads: it is ahead of scaled dot, 1 head by" in told(found)

    def test_is_beaten_by_a_score_with_as_many_heads(self) -> None:
        rows = dict(TWO) | {"scaled_dot heads=2": [0.70, 0.71, 0.69, 0.70, 0.71]}
        found = verdict_of(rows)
        assert (found.outcome, found.winner) == (Outcome.ALTERNATIVE, "additive h=8 heads=2")
        assert "it is ahead of scaled dot, 2 heads by 16.2 points" in told(found)

    def test_of_other_parameters_says_so(self) -> None:
        found = verdict_of(PLAIN)
        found.row("cosine heads=1").parameters = 130
        assert "ahead of scaled dot, 1 head (130 parameters against its 100) by" in told(found)
        assert "130 parameters against 100" in str(found)


class TestNoise:
    """Random data gave "no score learned anything", and then "use additive"."""

    def test_is_not_recommended(self, tmp_path: Path) -> None:
        found = verdict_of(PLAIN, chance=Chance(0.85, 0.01))
        assert found.outcome is Outcome.UNDECIDED and found.winner == FIRST
        assert str(found).startswith(
            "No recommendation: no score is shown to have learned more than guessing"
        )
        assert "Use " not in str(found) and "score = " not in str(found)
        assert use(found).en == "no recommendation" and "winner" not in str(found)
        record = found.as_dict()
        assert (record["winner"], record["code"], record["decided"]) == (None, None, False)
        page = save_verdict(found, tmp_path / "a.html").read_text(encoding="utf-8")
        assert "No recommendation" in page and "score = " not in page

    @pytest.mark.parametrize(
        ("control", "learned"),
        [
            ([0.79, 0.81, 0.80, 0.78], False),
            ([0.5, 0.52, 0.49, 0.5], True),
            (None, True),
            ([0.5], True),
        ],
    )
    def test_is_what_shuffled_targets_give_as_well(self, control, learned) -> None:
        found = verdict_of(PLAIN, control=control, chance=Chance(0.5, 0.01))
        assert found.learned is learned is (found.outcome is Outcome.ALTERNATIVE)
        if not learned:
            assert (
                "the best has 80.0%, and 79.5% (78.0% to 81.0%) when the targets of the training"
                in str(found)
            )
            assert "无法推荐" in recommendation(found)[0].zh
            assert found.as_dict()["shuffled_targets"] == control

    def test_of_the_rows_counts(self) -> None:
        """All seeds are better than the control, on rows that happen to be lucky."""
        found = verdict_of(PLAIN, control=[0.77] * 4)
        best = found.row("cosine heads=1")
        assert found.learned
        generator = torch.Generator().manual_seed(0)
        again = (0.8 + 0.05 * torch.randn(200, generator=generator)).tolist()
        best.replicates = dict.fromkeys(best.quality, again)
        best.tested = {seed: RowsTested("a", 64, True) for seed in best.quality}
        assert not found.learned


def test_random_data_gets_no_recommendation(tmp_path: Path) -> None:
    """As trained: 300 rows of random queries, keys and targets."""
    generator = torch.Generator().manual_seed(3)
    query, key = (torch.randn(300, *dims, generator=generator) for dims in ((8,), (6, 8)))
    rows = (query, key, torch.randint(0, 6, (300,), generator=generator))
    parts = [
        tuple(x[part] for x in rows) for part in (slice(160), slice(160, 220), slice(220, 300))
    ]
    found = regard.choose(
        Match, parts, dims=8, projected=True, scores=("cosine",), stabilizers=("none",), rates=(0.01,), steps=15,
        seeds=3, minutes=2, vitals=False, progress=False, storage=tmp_path / "a.journal",
    )  # fmt: skip
    assert not found.recommended and str(found).startswith("No recommendation")
    cosine = found.row("cosine")
    assert cosine.tested[1].units == 80 and len(cosine.replicates[2]) == 200
    assert "MRR" in str(found)
    spread = found.lead(cosine)
    assert spread is not None and spread.rows is not None and spread.rows.deviation > 0.005


class TestWithoutAttention:
    def baseline(self, value: float) -> list[BaselineRow]:
        name = Text("logistic regression", "逻辑回归")
        other = Text("nearest neighbour", "最近邻")
        return [
            BaselineRow(other, dict.fromkeys(range(1, 5), 0.3), seconds=0.1),
            BaselineRow(name, dict.fromkeys(range(1, 5), value), seconds=0.5),
        ]

    def test_a_model_that_is_as_good_is_said_first(self) -> None:
        found = verdict_of(PLAIN, baselines=self.baseline(0.97))
        first = recommendation(found)[0]
        assert first.en.startswith(
            "No score is shown to beat logistic regression, which has no attention"
        )
        assert "accuracy 97.0%" in first.en and "behind by 17.0 points" in first.en
        assert "逻辑回归" in first.zh and "落后" in first.zh
        assert found.as_dict()["beats_without_attention"] is False

    def test_one_seed_shows_nothing_either_way(self) -> None:
        few = {name: values[:1] for name, values in PLAIN.items()}
        first = recommendation(verdict_of(few, baselines=self.baseline(0.97)))[0]
        assert first.en.startswith("Too early to say whether a score beats logistic regression")
        assert (
            "behind by 17 points (no interval: 1 seed)" in first.en and "all that" not in first.en
        )
        assert first.zh.startswith("还不能断定") and "逻辑回归" in first.zh

    def test_a_model_that_is_beaten_stands_in_the_table(self, tmp_path: Path) -> None:
        found = verdict_of(PLAIN, baselines=self.baseline(0.6))
        assert recommendation(found)[0].en.startswith("Use cosine")
        lines = as_text(found, 90).splitlines()
        assert any("logistic regression" in x and "without attention" in x for x in lines)
        record = found.as_dict()
        assert [one["label"] for one in record["without_attention"]] == [
            "nearest neighbour",
            "logistic regression",
        ]
        assert json.loads(json.dumps(record))["beats_without_attention"] is True
        page = save_verdict(found, tmp_path / "a.html").read_text(encoding="utf-8")
        assert "logistic regression" in page and "最近邻" in page


def test_notes_on_the_data_stand_above_the_table(tmp_path: Path) -> None:
    note = Text("97% of the rows are of one class.", "97% 的行属于同一类。")
    found = verdict_of(PLAIN, facts={"notes": [note]})
    assert opening(found)[-1] == ("Note: " + note.en, "注意：" + note.zh)
    assert str(found).index(note.en) < str(found).index("candidate ")
    assert found.as_dict()["notes"] == [note.en]
    page = save_verdict(found, tmp_path / "a.html").read_text(encoding="utf-8")
    assert note.en in page and note.zh in page


def test_advice_is_given_in_the_words_of_the_asker() -> None:
    few = {name: values[:1] for name, values in PLAIN.items()}
    assert "seeds=5" in str(verdict_of(few)) and "--seeds" not in str(verdict_of(few))
    command = replace(verdict_of(few), asked_by="command")
    assert "--seeds 5" in str(command) and "seeds=" not in str(command)
    # Time ran out: more seeds is not what is lacking.
    facts = {"settings": {"candidates": list(KNOWN), "steps": 100, "seeds": [1, 2, 3, 4, 5]}}
    assert "Only 1 of 5 seeds is finished, too few to decide; resume=True trains the rest." in str(
        verdict_of(few, facts=facts)
    )
    cut = replace(verdict_of(few, facts=facts), asked_by="command")
    assert "--resume trains the rest" in str(cut) and "--seeds" not in str(cut)


def test_advice_of_a_run_names_what_the_asker_can_give(tmp_path: Path) -> None:
    names = ("resume", "minutes", "storage")
    assert [named(name) for name in names] == ["resume=", "minutes=", "storage="]
    assert (named("seeds", 5), named("resume", True), anew()) == (
        "seeds=5",
        "resume=True",
        "resume=False",
    )
    with asked_by("command"):
        assert [named(name) for name in names] == ["--resume", "--minutes", "--storage"]
        assert (named("seeds", 5), named("resume", True), anew()) == (
            "--seeds 5",
            "--resume",
            "no --resume",
        )
        assert named("seeds", 5, "python") == "seeds=5"
    assert named("seeds", 5) == "seeds=5"


def test_the_test_part_may_be_too_small_to_decide() -> None:
    found = verdict_of(
        {FIRST: [0.80, 0.81, 0.80, 0.79], "cosine heads=1": [0.82, 0.83, 0.82, 0.81]}
    )
    assert found.outcome is Outcome.ALTERNATIVE
    generator = torch.Generator().manual_seed(0)
    for row in found.rows:
        again = (0.8 + 0.03 * torch.randn(200, generator=generator)).tolist()
        row.replicates = dict.fromkeys(row.quality, again)
        row.tested = {seed: RowsTested("a", 100, True) for seed in row.quality}
    judged = judge(found.rows, FIRST, found.seeds, 0.01)
    found = replace(found, **judged._asdict())
    assert found.outcome is Outcome.UNDECIDED and found.seeds_to_decide is None
    rows = found.needs.rows
    assert rows is not None and 1000 < rows < 10_000
    assert f"too small to decide it, whatever the seeds: about {rows:,} rows would do" in told(
        found
    )
    assert found.as_dict()["test_rows_to_decide"] == rows


class TestCode:
    @pytest.mark.parametrize("projected", [True, False])
    def test_runs_as_it_is_printed(self, projected: bool) -> None:
        """`Normalized` was a NameError."""
        every = list(dict.fromkeys(name for names in STABILIZERS.values() for name in names))
        sizes = ScoreSizes(8, 8, 8, projected)
        made = candidates(sizes, list(STABILIZERS), every, (8, 16), (1,))
        for one in made:
            names: dict[str, Any] = {}
            exec(runnable(one.code), names)  # noqa: S102 - our own code
            query, key = torch.randn(2, 1, 3, 8), torch.randn(2, 1, 4, 8)
            assert regard.attention(query, key, key, names["score"]).isfinite().all(), one.name

    def test_of_a_verdict_has_its_imports(self) -> None:
        found = verdict_of(PLAIN)
        assert found.code.startswith("import regard\n") and str(found).endswith(found.code)
        shown = entry(Answer(next(iter(MADE.values()))(), found), 1).code
        exec(shown, {})  # noqa: S102 - our own code

    def test_of_many_tasks_runs_together(self, capsys: pytest.CaptureFixture[str]) -> None:
        from rich.console import Console

        task = next(iter(MADE.values()))()
        show_codes([Answer(task, verdict_of(PLAIN))] * 2, Console(width=60))
        exec(capsys.readouterr().out, {})  # noqa: S102 - our own code

    def test_of_ones_own_score_stays_a_comment(self) -> None:
        assert runnable("# your own: scores['mine']()") == "# your own: scores['mine']()"
