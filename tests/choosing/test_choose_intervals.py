"""Intervals hold for new seeds and new rows: simulated, with nothing trained."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from regard.choosing.training import intervals
from regard.choosing.training.intervals import (
    BUNDLES,
    RowsTested,
    bundles,
    draws,
    lead,
    level_of,
    outlying,
    read_record,
    row_record,
    row_replicates,
)
from regard.choosing.training.metrics import (
    GOALS,
    IGNORED,
    ROW_SUMS,
    accuracy,
    extras_of,
    mrr,
    ndcg,
    r2,
)

SEEDS = range(1, 6)


def sample(quality: dict[int, float], replicates: dict[int, Any], rows: int | None = None) -> Any:
    """A row as intervals need it."""
    tested = {} if rows is None else {seed: RowsTested("a", rows, True) for seed in quality}
    return SimpleNamespace(quality=quality, replicates=replicates, tested=tested)


def outputs(kind: str, count: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets of a metric."""
    torch.manual_seed(0)
    if kind == "accuracy":
        return torch.randn(count, 2, 4), torch.randint(0, 4, (count, 2))
    if kind == "r2":
        target = 1000 + torch.randn(count, 3)
        return target + 0.5 * torch.randn(count, 3), target
    return torch.randn(count, 6), torch.randint(0, 3, (count, 6)).float()


class TestReplicates:
    @pytest.mark.parametrize("kind", list(GOALS))
    def test_are_the_metric_on_rows_drawn_again(self, kind: str) -> None:
        output, target = outputs(kind)
        fast = row_replicates(output, target, kind)
        metric = GOALS[kind].metric
        slow = [
            float(metric(output[rows], target[rows]))
            for count in draws(len(target))[:5]
            for rows in [torch.arange(len(target)).repeat_interleave(count.long())]
        ]
        assert len(fast) == intervals.REPLICATES
        assert fast[:5] == pytest.approx(slow, rel=2e-5)

    def test_of_a_metric_of_ones_own_are_the_same_ones(self) -> None:
        output, target = outputs("accuracy")
        own = row_replicates(output, target, lambda a, b: accuracy(a, b))
        assert own == pytest.approx(row_replicates(output, target, accuracy)[: len(own)], abs=1e-6)
        assert len(own) == intervals.OWN_REPLICATES

    def test_draw_whole_groups(self) -> None:
        """Copies of a row are one row: counted as many, the noise would look small."""
        output, target = outputs("accuracy", 40)
        names = np.repeat([f"speaker {i}" for i in range(40)], 25)
        many = [x.repeat_interleave(25, 0) for x in (output, target)]
        grouped = row_replicates(*many, accuracy, names)
        alone = row_replicates(output, target, accuracy)
        assert np.std(grouped) == pytest.approx(np.std(alone), rel=0.15)
        assert np.std(row_replicates(*many, accuracy)) < np.std(alone) / 3

    def test_of_many_rows_have_the_spread_of_rows(self) -> None:
        places, units = bundles(3 * BUNDLES)
        assert units == BUNDLES and int(places.bincount().min()) == 3
        right = (torch.rand(50_000, generator=torch.Generator().manual_seed(1)) < 0.8).double()
        output = torch.stack([1 - right, right], -1)
        found = row_replicates(output, torch.ones(50_000, dtype=torch.long), accuracy)
        assert np.std(found) == pytest.approx(math.sqrt(0.16 / 50_000), rel=0.15)

    @pytest.mark.parametrize(
        ("output", "target", "metric"),
        [
            (torch.randn(9, 2), torch.zeros(1, dtype=torch.long), accuracy),  # not one for each row
            (torch.randn(9, 1), torch.zeros(9, 1), r2),  # a target without variance
            (torch.randn(9, 1), torch.zeros(9, 1), lambda a, b: 1 / 0),
            (torch.randn(1, 2), torch.zeros(1, dtype=torch.long), accuracy),
        ],
    )
    def test_are_none_where_they_cannot_be_computed(self, output, target, metric) -> None:
        assert row_replicates(output, target, metric) == []

    def test_groups_must_be_those_of_the_rows(self) -> None:
        with pytest.raises(ValueError, match="the group of each row: 300, got 2"):
            row_replicates(*outputs("r2"), r2, ["a", "b"])

    def test_are_kept_and_read_again(self) -> None:
        output, target = outputs("accuracy")
        batches = [(torch.randn(150, 2), half) for half in target.split(150)]
        kept = row_record(output, batches, accuracy)
        swapped = row_record(output, batches[::-1], accuracy)
        assert kept["key"] == swapped["key"] and kept["units"] == 300 and kept["bounded"]
        row = SimpleNamespace(replicates={}, tested={}, extras={})
        read_record(row, 3, kept | {"extras": {"mrr": 0.5}})
        read_record(row, 4, None)  # a training of an earlier version
        assert (
            row.tested == {3: RowsTested(kept["key"], 300, True)} and len(row.replicates[3]) == 200
        )


def simulated(
    generator: np.random.Generator, count: int, seed_noise: float, fresh: bool = False
) -> list[Any]:
    """Two candidates alike: right or wrong on rows that are easy or hard, for both or for one of them."""
    seeds, shape = len(SEEDS), (2, len(SEEDS), count)
    hard = generator.normal(size=(1, seeds if fresh else 1, count))
    own = 0.0 if fresh else 0.8 * generator.normal(size=(2, 1, count))
    luck = seed_noise * generator.normal(size=(2, seeds, 1))
    right = (hard + own + 0.6 * generator.normal(size=shape) < 0.4 + luck).astype(float)
    # What `row_replicates` gives for an accuracy, of all at once.
    again = torch.tensor(right) @ draws(count).T / count
    found = []
    for quality, replicates in zip(right.mean(-1), again.tolist(), strict=True):
        one = sample(
            dict(zip(SEEDS, quality, strict=True)), dict(zip(SEEDS, replicates, strict=True)), count
        )
        if fresh:
            one.tested = {seed: RowsTested(str(seed), count, True) for seed in SEEDS}
        found.append(one)
    return found


class TestCoverage:
    """Of intervals that are said to hold in 95% of cases, at least 93% must."""

    @pytest.mark.parametrize(
        ("count", "seed_noise", "fresh"), [(60, 0.02, False), (300, 0.15, False), (100, 0.1, True)]
    )
    def test_of_leads(self, count: int, seed_noise: float, fresh: bool) -> None:
        generator = np.random.default_rng(22)
        # Both have the same distribution, so the true lead on new rows is 0.
        pairs = [simulated(generator, count, seed_noise, fresh) for _ in range(300)]
        found = [lead(*pair, list(SEEDS)).estimate() for pair in pairs]
        held = sum(one.low <= 0 <= one.high for one in found) / len(found)
        assert held >= 0.93
        if seed_noise < 0.1:  # rows matter most: over seeds alone, as it was once, they do not hold
            bare = [sample(one.quality, {}) for pair in pairs for one in pair]
            old = [
                lead(*two, list(SEEDS)).estimate()
                for two in zip(bare[::2], bare[1::2], strict=True)
            ]
            assert sum(one.low <= 0 <= one.high for one in old) / len(old) < 0.8

    def test_of_a_mean_with_its_rows(self) -> None:
        generator = np.random.default_rng(5)
        truth = 0.5 + 0.5 * math.erf(0.4 / math.sqrt(1 + 0.64 + 0.36 + 0.01) / math.sqrt(2))
        found = [
            level_of(simulated(generator, 100, 0.1)[0], list(SEEDS)).estimate() for _ in range(200)
        ]
        assert sum(one.low <= truth <= one.high for one in found) / len(found) >= 0.93


class TestLead:
    def test_of_fewer_than_three_seeds_has_no_interval(self) -> None:
        one, other = sample({1: 0.9, 2: 0.8}, {}), sample({1: 0.75, 2: 0.65}, {})
        assert lead(one, other, [1, 2]).estimate() == pytest.approx((0.15, -math.inf, math.inf))

    def test_has_the_noise_of_rows_where_seeds_agree(self) -> None:
        """`[15.0, 15.0]` was the interval of five seeds that made the same mistakes."""
        draw = np.random.default_rng(1).normal(0, 0.02, 200)
        one = sample(dict.fromkeys(SEEDS, 0.9), {seed: list(0.9 + draw) for seed in SEEDS})
        other = sample(dict.fromkeys(SEEDS, 0.75), dict.fromkeys(SEEDS, [0.75] * 200))
        found = lead(one, other, list(SEEDS)).estimate()
        assert found.high - found.value == pytest.approx(1.96 * np.std(draw, ddof=1), rel=0.01)

    def test_of_two_that_agree_on_few_rows_is_not_known_exactly(self) -> None:
        same = dict.fromkeys(SEEDS, [0.9] * 200)
        few, many = (
            lead(*(sample(dict.fromkeys(SEEDS, 0.9), same, rows) for _ in range(2)), list(SEEDS))
            for rows in (50, 50_000)
        )
        assert 0.02 < few.estimate().high < 0.06 and many.estimate().high < 0.0001

    def test_has_no_rows_where_each_seed_has_its_own(self) -> None:
        one, other = simulated(np.random.default_rng(0), 50, 0.1, fresh=True)
        assert lead(one, other, list(SEEDS)).rows is None

    def test_over_a_baseline_without_seeds(self) -> None:
        one, base = sample({1: 0.9, 2: 0.8, 3: 0.85}, {}), sample({1: 0.8}, {})
        assert lead(one, base, [1, 2, 3]).value == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("values", "seeds"),
    [
        ([0.95, 0.96, 0.512, 0.95, 0.97], [3]),
        ([0.95, 0.51, 0.512, 0.95, 0.97], [2, 3]),
        ([0.55, 0.54, 0.56, 0.9, 0.55], [4]),
        ([0.95, 0.96, 0.94, 0.95, 0.93], []),  # a spread as usual
        ([0.95, 0.95, 0.95, 0.95, 0.94], []),  # far, but not by as much as matters
        ([0.5, 0.6, 0.7, 0.8, 0.9], []),
        ([0.95, 0.96, 0.5, 0.95], []),  # too few to tell
    ],
)
def test_outlying_seeds(values: list[float], seeds: list[int]) -> None:
    one = sample(dict(enumerate(values, 1)), {})
    assert outlying(one, 0.01) == seeds
    # The same on rows so few that chance explains it.
    one.replicates = {seed: [0.3, 0.7, 0.5] for seed in one.quality}
    assert outlying(one, 0.01) == []


class TestMetrics:
    def test_mrr_is_that_of_the_first_relevant_key(self) -> None:
        scores = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
        gains = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
        assert float(mrr(scores, gains)) == pytest.approx((1 / 2 + 1) / 2)
        from sklearn.metrics import label_ranking_average_precision_score

        torch.manual_seed(0)
        one = torch.nn.functional.one_hot(torch.randint(0, 5, (50,)), 5)
        scores = torch.randn(50, 5)
        # With one relevant key the average precision is the reciprocal rank.
        expected = label_ranking_average_precision_score(one, scores)
        assert float(mrr(scores, one.float())) == pytest.approx(expected)

    def test_padding_is_no_answer(self) -> None:
        output = torch.eye(3)
        target = torch.tensor([0, IGNORED, 0])
        assert float(accuracy(output, target)) == 0.5
        sums = ROW_SUMS[accuracy]
        assert float(sums.whole(sums.rows(output, target).sum(0))) == 0.5

    def test_rankings_have_further_metrics(self) -> None:
        scores, gains = outputs("ndcg")
        assert set(extras_of(ndcg, scores, gains, False)) == {"mrr", "accuracy"}
        picked = extras_of(accuracy, scores, gains.argmax(-1), True)
        assert set(picked) == {"mrr"}
        assert extras_of(accuracy, scores, gains.argmax(-1), False) == {}
        assert extras_of(r2, scores, gains, True) == {}
