"""Intervals of a comparison: for new seeds and for new test rows, paired between contenders.

Two things differ when an experiment is repeated: the seed of the training, and the rows that the test happens to
have. Rows are resampled, the same for all contenders and seeds, since all of them saw the same test; where every seed
splits the rows anew, each seed's own rows, the same for all contenders. Seeds are few, and resampling three of them
covers the true mean in about 80 of 100 cases, not 95. So the noise of seeds is drawn from Student's t with the spread
that the seeds show. Splits made anew share most of their training rows, so that their spread alone is too small for
new data (Nadeau and Bengio, 2003); the noise of rows beside it, of which that spread has a part already, keeps such
intervals on the safe side. Both together are one draw; the interval is between quantiles of draws. With one seed the
noise of seeds is unknown, and the interval is for new rows alone.

Shape legend: D draws, S seeds, N rows, K statistics of a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from regard.measuring.statistics import LEVEL, Estimate
from regard.recipes.metrics import Metric

DRAWS = 2000
REPEATS = 5  # noises of seeds for each draw of rows: they cost little and steady the far quantiles


@dataclass(frozen=True)
class Sampled:
    """The values of one contender.

    Attributes:
        values: on all test rows, for each seed (S,).
        draws: on resampled rows (D, S).
    """

    values: np.ndarray
    draws: np.ndarray

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return float(self.values.mean())

    def minus(self, other: Sampled) -> Sampled:
        """The difference to another contender, seed by seed and row by row."""
        return Sampled(self.values - other.values, self.draws - other.draws)

    def times(self, factor: float) -> Sampled:
        """All values times a number."""
        return Sampled(self.values * factor, self.draws * factor)

    def interval(
        self,
        *,
        several: int = 1,
        bounds: tuple[float, float] = (-math.inf, math.inf),
        seed: int = 0,
    ) -> Estimate:
        """The mean over seeds and its 95% interval for new seeds and rows.

        Args:
            several: how many intervals shall hold together; each is widened by Bonferroni's rule.
            bounds: of the metric, beyond which no interval goes.
            seed: of the noise of seeds.
        """
        count = len(self.values)
        rows = np.repeat(self.draws.mean(1), REPEATS)
        # Resampled metrics that are no mean of rows, such as a root, are off on average: only their spread counts.
        found = rows - rows.mean() + self.mean
        if count > 1:
            noise = np.random.default_rng(seed).standard_t(count - 1, len(found))
            found = found + noise * self.values.std(ddof=1) / np.sqrt(count)
        tail = (1 - LEVEL) / 2 / max(several, 1)
        low, high = np.clip(np.quantile(found, [tail, 1 - tail]), *bounds)
        # Of draws that are all alike, as of one test row, rounding may put both ends on one side of the mean.
        return Estimate(self.mean, float(min(low, self.mean)), float(max(high, self.mean)))


def sample(
    statistics: Mapping[str, Sequence[np.ndarray]],
    metric: Metric,
    *,
    same_rows: bool = True,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Sampled]:
    """Values of every contender on all rows and on resampled ones.

    Args:
        statistics: for each contender the statistics (N, K) of each seed, in the order of the same seeds. Rows of
            one seed are the same for all contenders.
        metric: makes a value of statistics.
        same_rows: whether all seeds have the same test rows, which are then resampled once for all of them. Seeds
            with different numbers of rows have rows of their own, whatever this says.
        draws: how often rows are resampled.
        seed: of the resampling.

    Raises:
        ValueError: contenders differ in seeds or in rows of a seed.
    """
    counts = rows_of(statistics)
    generator = np.random.default_rng(seed)
    shared = same_rows and len(set(counts)) == 1
    found = {
        name: Sampled(np.array([metric.value(one) for one in own]), np.empty((draws, len(counts))))
        for name, own in statistics.items()
    }
    for draw in range(draws):
        rows = generator.integers(counts[0], size=counts[0])
        for number, count in enumerate(counts):
            if number and not shared:
                rows = generator.integers(count, size=count)
            for name, own in statistics.items():
                found[name].draws[draw, number] = metric.value(own[number][rows])
    return {name: whole(one) for name, one in found.items()}


def rows_of(statistics: Mapping[str, Sequence[np.ndarray]]) -> list[int]:
    """The number of test rows of each seed, the same for all contenders."""
    shapes = {name: [len(one) for one in own] for name, own in statistics.items()}
    first = next(iter(shapes.values()))
    for name, counts in shapes.items():
        if counts != first:
            raise ValueError(
                f"{name} has {counts} test rows by seed, others have {first}: they cannot be paired"
            )
    if not first or min(first) < 1:
        raise ValueError("a comparison needs at least one seed and one test row")
    return first


def whole(found: Sampled) -> Sampled:
    """The draws without NaN: a metric that some draws lack (AUC of one class) takes the mean of the others."""
    means = np.nanmean(np.where(np.isnan(found.draws).all(0), 0.0, found.draws), axis=0)
    return Sampled(found.values, np.where(np.isnan(found.draws), means, found.draws))
