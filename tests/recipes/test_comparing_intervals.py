"""Intervals and verdicts of comparisons: they cover, they are paired, and the sentences say what was found."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from regard.measuring.statistics import Estimate
from regard.recipes.comparing.intervals import Sampled, sample
from regard.recipes.comparing.results import Compared, ComparedRow, MetricWords
from regard.recipes.comparing.sentences import sentences, to_use, winner
from regard.recipes.comparing.table import change, titled
from regard.recipes.metrics import ACCURACY, RMSE, Metric
from regard.text import Text

MEAN = Metric("mean", Text("mean", "均值"), lambda rows: float(rows[:, 0].mean()))


def drawn_rows(
    generator: np.random.Generator, seeds: int, rows: int, lead: float
) -> dict[str, list[np.ndarray]]:
    """Two contenders with noise of seeds and of rows; rows have a difficulty that both share."""
    hard = generator.normal(size=rows)
    found: dict[str, list[np.ndarray]] = {"a": [], "b": []}
    for _ in range(seeds):
        for name, level in (("a", 0.0), ("b", lead)):
            own = level + 0.1 * generator.normal() + hard + 0.5 * generator.normal(size=rows)
            found[name].append(own[:, None])
    return found


@pytest.mark.parametrize("seeds", [3, 6])
def test_intervals_cover_the_truth(seeds: int) -> None:
    generator = np.random.default_rng(0)
    means, leads = 0, 0
    for repeat in range(150):
        found = sample(drawn_rows(generator, seeds, 60, 0.3), MEAN, draws=200, seed=repeat)
        one = found["b"].interval(seed=repeat)
        means += one.low <= 0.3 <= one.high
        two = found["b"].minus(found["a"]).interval(seed=repeat)
        leads += two.low <= 0.3 <= two.high
    assert 0.89 <= means / 150 <= 0.995
    assert 0.89 <= leads / 150 <= 0.995


def test_pairing_takes_the_difficulty_of_rows_out() -> None:
    found = sample(drawn_rows(np.random.default_rng(1), 4, 100, 0.3), MEAN, draws=500)
    alone, paired = found["b"].interval(), found["b"].minus(found["a"]).interval()
    assert paired.high - paired.low < 0.9 * (alone.high - alone.low)


def test_more_intervals_together_are_wider() -> None:
    found = sample(drawn_rows(np.random.default_rng(1), 4, 100, 0.3), MEAN, draws=500)["b"]
    one, many = found.interval(), found.interval(several=8)
    assert many.low < one.low < one.high < many.high


def test_rows_may_differ_by_seed_but_not_by_contender() -> None:
    rows = [np.ones((n, 1)) for n in (5, 7)]
    assert sample({"a": rows, "b": rows}, ACCURACY, draws=10)["a"].mean == 100
    with pytest.raises(ValueError, match="cannot be paired"):
        sample({"a": rows, "b": rows[::-1]}, ACCURACY, draws=10)
    with pytest.raises(ValueError, match="at least one"):
        sample({"a": []}, ACCURACY, draws=10)


def test_seeds_that_split_anew_have_rows_of_their_own() -> None:
    """Equally many rows were taken for the same rows: what is unrelated was resampled together."""
    rows = [np.random.default_rng(0).random((50, 1))] * 4
    same = sample({"a": rows}, MEAN, draws=800)["a"].draws
    own = sample({"a": rows}, MEAN, draws=800, same_rows=False)["a"].draws
    assert np.abs(np.corrcoef(same.T) - 1).max() < 1e-6
    assert np.abs(np.corrcoef(own.T) - np.eye(4)).max() < 0.15
    assert own.mean(1).std() < 0.6 * same.mean(1).std()  # half, with four seeds


def test_intervals_of_seeds_that_split_anew_cover_the_truth() -> None:
    generator, hit = np.random.default_rng(0), 0
    for repeat in range(150):
        both = [drawn_rows(generator, 1, 60, 0.3) for _ in range(4)]
        rows = {name: [one[name][0] for one in both] for name in ("a", "b")}
        found = sample(rows, MEAN, draws=100, seed=repeat, same_rows=False)
        lead = found["b"].minus(found["a"]).interval(seed=repeat)
        hit += lead.low <= 0.3 <= lead.high
    assert hit / 150 >= 0.94


def test_one_seed_has_the_noise_of_rows_alone() -> None:
    rows = np.random.default_rng(0).integers(0, 2, (400, 1)).astype(float)
    found = sample({"a": [rows]}, ACCURACY, draws=500)["a"].interval()
    assert 3.5 < (found.high - found.low) / 2 < 6.5  # 1.96 * 100 * sqrt(.25 / 400) = 4.9


def test_a_large_comparison_takes_seconds() -> None:
    rows = np.random.default_rng(0).random((1000, 10))
    began = time.perf_counter()
    sample({str(k): [rows, rows, rows] for k in range(10)}, RMSE)
    assert time.perf_counter() - began < 20


def outcome(
    *,
    greater: bool = True,
    seeds: int = 3,
    against: tuple[str, str, Estimate] | None = None,
    **differences: Estimate,
) -> Compared:
    """A result with given differences; names that start with `no` are controls."""

    def row(name: str, change: Estimate | None) -> ComparedRow:
        kind = "control" if name.startswith("no") else "score"
        value = 50 + (change.value if change else 0)
        return ComparedRow(name, Text(name, name), kind, {}, 1, 1.0, Estimate(value, value - 1, value + 1), change,
                           (value,) * seeds, 10, 1.0, 0.1)  # fmt: skip

    rows = [row("dot", None), *(row(k, v) for k, v in differences.items())]
    rows.sort(key=lambda one: -one.value.value if greater else one.value.value)
    metric = MetricWords("x", Text("quality", "质量"), greater, 1)
    return Compared(
        "x", Text("X", "X"), metric, "dot", tuple(rows), against, tuple(range(seeds)), (9,) * seeds
    )


def test_a_shown_lead_is_recommended() -> None:
    found = outcome(additive=Estimate(1.2, 0.4, 2.0), cosine=Estimate(2.0, -0.1, 4.0))
    assert winner(found).name == to_use(found) == "additive"
    assert sentences(found)[0].en == "Use additive: it is ahead of dot by 1.2 [0.4, 2.0] (quality)."
    assert sentences(found)[0].zh == "使用additive：比dot领先 1.2 [0.4, 2.0]（质量）。"


def test_smaller_is_better() -> None:
    found = outcome(greater=False, additive=Estimate(-1.2, -2.0, -0.4))
    assert "Use additive: it is ahead of dot by 1.2 [0.4, 2.0]" in sentences(found)[0].en


def test_nothing_shown_is_not_decided() -> None:
    found = outcome(additive=Estimate(1.2, -0.4, 2.0))
    assert winner(found) is None
    assert "Not decided" in sentences(found)[0].en
    assert "Use dot for now" in sentences(found)[0].en


def test_two_seeds_decide_nothing() -> None:
    found = outcome(seeds=2, additive=Estimate(1.2, 0.4, 2.0))
    assert winner(found) is None
    assert "2 seeds decide nothing" in sentences(found)[0].en


def test_reference_ahead_of_all() -> None:
    found = outcome(additive=Estimate(-1.2, -2.0, -0.4))
    assert sentences(found)[0].en == "Use dot: it is ahead of every other score."
    assert to_use(found) == "dot"


@pytest.mark.parametrize(
    ("lead", "said"),
    [
        (
            Estimate(-3.0, -4.0, -2.0),
            "Use none, which has no attention: no score beats it here. The best one, dot, is behind by 3.0 [2.0, 4.0].",
        ),
        (Estimate(-1.0, -4.0, 2.0), "No score is shown to beat none"),
        (
            Estimate(3.0, 2.0, 4.0),
            "is ahead of none, which has no attention, by 3.0 [2.0, 4.0].",
        ),
    ],
)
def test_attention_that_loses_is_said_plainly(lead: Estimate, said: str) -> None:
    found = outcome(none=Estimate(1.0, 0.5, 2.0), against=("dot", "none", lead))
    first = lead.high < 0
    assert said in sentences(found)[0 if first else 1].en, "what matters most comes first"
    assert to_use(found) == ("none" if first else None)
    assert sentences(found)[1].zh


def test_two_seeds_do_not_make_attention_lose() -> None:
    lead = Estimate(-3.0, -4.0, -2.0)
    found = outcome(seeds=2, none=Estimate(1.0, 0.5, 2.0), against=("dot", "none", lead))
    assert "No score is shown to beat none: the best one, dot, is behind" in sentences(found)[1].en


def test_baseline_is_called_one() -> None:
    lead = Estimate(3.0, 2.0, 4.0)
    found = outcome(none=Estimate(-3.0, -4.0, -2.0), against=("dot", "none", lead))
    rows = [
        dataclasses.replace(one, kind="baseline") if one.name == "none" else one
        for one in found.rows
    ]
    told = sentences(dataclasses.replace(found, rows=tuple(rows)))[1]
    assert told.en.endswith("ahead of none, the best baseline, by 3.0 [2.0, 4.0].")


def test_lead_that_rounds_to_nothing_is_not_called_level() -> None:
    """It was "level within [-78.6, 69.6]", which reads as if the two were equal."""
    for lead in (Estimate(0.04, -0.4, 0.5), Estimate(-0.04, -0.5, 0.4)):
        told = sentences(outcome(additive=lead))[0].en
        assert "additive, is neither ahead nor behind: 0.0 [−0.4, 0.5] (quality)" in told
        assert "too few" not in told


def test_wide_interval_says_that_test_rows_are_too_few() -> None:
    told = sentences(outcome(additive=Estimate(0.04, -78.6, 69.6)))[0]
    assert "neither ahead nor behind: 0.0 [−78.6, 69.6]" in told.en
    assert told.en.endswith("test rows are too few to tell.") and told.zh.endswith("不足以判断。")


def test_difference_without_width_has_no_interval() -> None:
    for value, said in ((0.0, "0.0"), (1.2, "+1.2"), (-1.2, "−1.2")):
        found = outcome(additive=Estimate(value, value, value))
        assert change(found, found.row("additive")).en == f"{said} (the same on every seed)"
    told = sentences(outcome(additive=Estimate(0.0, 0.0, 0.0)))[0].en
    assert "is neither ahead nor behind: 0.0, the same on every seed (quality)" in told


def test_kind_of_a_row_goes_into_the_brackets_of_its_title() -> None:
    row = dataclasses.replace(
        outcome(none=Estimate(1.0, 0.0, 2.0)).row("none"),
        title=Text("no edges (MLP)", "无边（MLP）"),
    )
    assert "".join(titled(row, "en")) == "no edges (MLP; no attention)"
    assert "".join(titled(row, "zh")) == "无边（MLP；无注意力）"


def test_intervals_end_at_the_bounds_of_the_metric() -> None:
    rows = [np.array([[1.0]] * (19 - wrong) + [[0.0]] * wrong) for wrong in (0, 1, 2)]
    found = sample({"a": rows}, ACCURACY, draws=200)["a"]
    assert found.interval().high > 100
    assert found.interval(bounds=ACCURACY.bounds).high == 100
    assert ACCURACY.widest() == (-100, 100)


def test_an_interval_holds_its_mean_where_all_draws_are_alike():
    """Of one test row it ended a rounding error above the mean, and no chart could be drawn."""
    values = np.array([0.8947368421052632, 0.8947368421052633, 0.8947368421052632])
    for count in (1, 3):
        own = values[:count]
        found = Sampled(own, np.repeat(own[None], 7, 0)).interval()
        assert found.low <= found.value <= found.high
    rows = {"only": [np.array([[0.1 * 3]])] * 3}
    found = sample(rows, MEAN)["only"].interval()
    assert found.low <= found.value <= found.high
