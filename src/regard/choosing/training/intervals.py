"""Intervals of qualities and leads that hold for new seeds and new rows.

A quality is noisy twice: another seed would have trained another model, and other test rows would have
given the same model another quality. Seeds are repeated; rows are resampled (bootstrap) by
`row_replicates`, with the same draws for every candidate, so that a difference of two is paired by row.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from scipy import stats
from torch import Tensor

from regard.choosing.training.metrics import GOALS, ROW_SUMS, Measure
from regard.measuring.statistics import LEVEL, Estimate

LEAST_SEEDS = 3  # fewer tell nothing about noise: Student's t of two seeds is 12.7
REPLICATES = 200  # the standard deviation of that many is known to 5%
# Rows are resampled in at most this many bundles. Their sums have the same spread as the rows' sums, and
# the table of draws stays at 6 MiB however many rows there are.
BUNDLES = 4096
DRAW_SEED = 20_22
# A user's own metric is computed on at most so many resamples, for at most so many seconds.
OWN_REPLICATES, OWN_SECONDS, FEWEST_REPLICATES = 50, 2.0, 20
# A seed is outlying if it lies this many standard deviations from the median (estimated from the median
# of absolute deviations), and by more than this many times what matters and the noise of the test rows.
FAR, FAR_MATTERS, FAR_ROWS = 5.0, 3.0, 3.0
OUTLYING_SEEDS = 5  # with fewer there is no "rest" to lie outside of


@dataclass(frozen=True)
class RowsTested:
    """The test rows that a quality comes from.

    Attributes:
        key: the same for the same rows, in whatever order.
        units: number of rows, or of groups where rows come in groups.
        bounded: a row adds a number from 0 to 1 to the mean, as it does for accuracy.
    """

    key: str
    units: int
    bounded: bool


class Sample(Protocol):
    """What an interval is computed from: a row of candidates or of baselines."""

    @property
    def quality(self) -> Mapping[int, float]:
        """Quality by seed."""
        ...

    @property
    def replicates(self) -> Mapping[int, Sequence[float]]:
        """Quality on resampled rows by seed."""
        ...


class RowNoise(NamedTuple):
    """The standard deviation over rows, and its degrees of freedom."""

    deviation: float
    freedom: float


def row_replicates(
    outputs: Tensor, targets: Tensor, metric: Measure | str, groups: Any = None
) -> list[float]:
    """The metric on resampled rows; empty if it cannot be computed on some of them.

    Args:
        outputs: outputs of a model for all test rows (B, ...).
        targets: their targets (B, ...).
        metric: a metric of this package, by name or function, or a user's own.
        groups: for each row the group that it belongs to (B,); groups are drawn as a whole.
    """
    measure = GOALS[metric].metric if isinstance(metric, str) else metric
    if len(outputs) != len(targets) or len(targets) < 2:
        return []
    places, units = bundles(len(targets), groups)
    if units < 2:
        return []
    known = ROW_SUMS.get(measure)
    if known is None:
        return own_replicates(outputs, targets, measure, places, draws(units))
    terms = known.rows(outputs, targets).cpu()
    sums = torch.zeros(units, terms.shape[-1], dtype=torch.double).index_add_(0, places, terms)
    return rounded(known.whole(draws(units) @ sums))


def own_replicates(
    outputs: Tensor, targets: Tensor, measure: Measure, places: Tensor, counts: Tensor
) -> list[float]:
    """A user's own metric on resampled rows, as many as the time allows."""
    found, began = [], time.perf_counter()
    everywhere = torch.arange(len(targets))
    for count in counts[:OWN_REPLICATES]:
        rows = everywhere.repeat_interleave(count[places].long()).to(targets.device)
        try:
            found.append(float(measure(outputs[rows.to(outputs.device)], targets[rows])))
        except Exception:  # the user's metric may raise anything on rows it has not met
            return []
        if time.perf_counter() - began > OWN_SECONDS:
            break
    return rounded(torch.tensor(found))


def rounded(values: Tensor) -> list[float]:
    """The values with 6 digits, which keeps storages small; empty if one is not finite."""
    if not bool(values.isfinite().all()):
        return []
    return [float(f"{x:.6g}") for x in values.tolist()]


def bundles(count: int, groups: Any = None) -> tuple[Tensor, int]:
    """For each row the unit that is drawn with it, and the number of units."""
    places = torch.arange(count)
    if groups is not None:
        import numpy as np

        places = torch.as_tensor(np.unique(np.asarray(groups), return_inverse=True)[1]).reshape(-1)
        if len(places) != count:
            raise ValueError(f"groups must name the group of each row: {count}, got {len(places)}")
    units = int(places.max()) + 1
    return places % BUNDLES, min(units, BUNDLES)


@lru_cache(maxsize=4)
def draws(units: int) -> Tensor:
    """How many times each unit is drawn in each resample (REPLICATES, units): the same in every process."""
    generator = torch.Generator().manual_seed(DRAW_SEED)
    drawn = torch.randint(units, (REPLICATES, units), generator=generator)
    ones = torch.ones(drawn.shape, dtype=torch.double)
    return torch.zeros(REPLICATES, units, dtype=torch.double).scatter_add_(1, drawn, ones)


def row_record(
    outputs: Tensor, batches: Sequence[Sequence[Tensor]], metric: Measure, groups: Any = None
) -> dict[str, Any]:
    """What a storage keeps of the test rows beside the quality, as plain JSON; `read_record` reads it."""
    targets = torch.cat([batch[-1] for batch in batches])
    known = ROW_SUMS.get(metric)
    # Sums do not depend on the order, in which a loader may differ between processes. The draws of two
    # candidates are then not paired, which makes their interval wider, never too narrow.
    sums = (sum(float(batch[place].double().sum()) for batch in batches) for place in (0, -1))
    units = len(targets)
    if groups is not None:
        import numpy as np

        units = len(np.unique(np.asarray(groups)))
    return {
        "replicates": row_replicates(outputs, targets.to(outputs.device), metric, groups),
        "key": " ".join([str(len(targets)), *(f"{x:.5g}" for x in sums)]),
        "units": units,
        "bounded": known is not None and known.bounded,
    }


def read_record(row: Any, seed: int, record: Mapping[str, Any] | None) -> None:
    """Add what `row_record` kept to a row of candidates; trainings of older versions have None."""
    if record is None:
        return
    row.replicates[seed] = record["replicates"]
    row.tested[seed] = RowsTested(record["key"], record["units"], record["bounded"])
    row.extras[seed] = record.get("extras", {})


class Spread(NamedTuple):
    """A mean over seeds with its two noises, from which the interval for any number of seeds follows.

    Attributes:
        value: the mean.
        deviation: standard deviation over seeds.
        count: number of seeds.
        rows: the noise of the test rows; None where the deviation over seeds has it already.
    """

    value: float
    deviation: float
    count: int
    rows: RowNoise | None

    def half(self, several: int, count: int | None = None) -> float:
        """Half the width of the interval: with `count` seeds, for `several` comparisons together.

            half^2 = (t_{J-1} s / sqrt(J))^2 + (t_{n-1} s_rows)^2

        with J seeds, s the deviation over seeds, and s_rows that over resamples of n units. Both quantiles
        are those of the tail divided by `several` (Bonferroni).
        """
        count, tail = count or self.count, (1 - LEVEL) / 2 / several
        if count < LEAST_SEEDS:
            return math.inf
        seeds = float(stats.t.isf(tail, count - 1)) * self.deviation / math.sqrt(count)
        return math.hypot(seeds, self.half_of_rows(several))

    def half_of_rows(self, several: int) -> float:
        """The part of the half-width that more seeds do not reduce."""
        if self.rows is None:
            return 0.0
        tail = (1 - LEVEL) / 2 / several
        return float(stats.t.isf(tail, self.rows.freedom)) * self.rows.deviation

    def estimate(self, several: int = 1) -> Estimate:
        """The mean with its interval."""
        half = self.half(several)
        return Estimate(self.value, self.value - half, self.value + half)


def spread_of(values: Sequence[float], rows: RowNoise | None) -> Spread:
    """The mean of values by seed with its noises."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(math.fsum(values) / len(values), deviation, len(values), rows)


def lead(first: Sample, second: Sample, seeds: Sequence[int]) -> Spread:
    """How far `first` is ahead of `second`, paired by seed and by row.

    Where every seed is tested on rows of its own, the deviation over seeds has the noise of the rows
    already.
    """
    gaps = [at(first.quality, seed) - at(second.quality, seed) for seed in seeds]
    return spread_of(gaps, row_noise(seeds, first, second))


def level_of(one: Sample, seeds: Sequence[int]) -> Spread:
    """The quality over seeds, with the noise of new seeds and new rows."""
    return spread_of([at(one.quality, seed) for seed in seeds], row_noise(seeds, one))


def at(values: Mapping[int, Any], seed: int) -> Any:
    """The value of a seed; a baseline without randomness may have one for all."""
    return values[seed] if seed in values or len(values) != 1 else next(iter(values.values()))


def row_noise(seeds: Sequence[int], first: Sample, second: Sample | None = None) -> RowNoise | None:
    """The noise of the test rows in a mean over seeds, or in a difference of two.

    None where it is unknown, or where seeds have test rows of their own.
    """
    samples = [first] if second is None else [first, second]
    known = [tested for one in samples for tested in getattr(one, "tested", {}).values()]
    if not seeds or len({tested.key for tested in known}) > 1:
        return None
    if any(not one.replicates for one in samples):
        return None
    drawn = [[at(one.replicates, seed) for seed in seeds] for one in samples]
    size = min(len(values) for own in drawn for values in own)
    if size < FEWEST_REPLICATES:
        return None
    means = [torch.tensor([v[:size] for v in own], dtype=torch.double).mean(0) for own in drawn]
    variance = float((means[0] - means[1] if len(means) == 2 else means[0]).var())
    if not known:
        return RowNoise(math.sqrt(variance), math.inf)
    # Resampling n units has the variance of dividing by n in place of n - 1.
    units = max(known[0].units, 2)
    variance *= units / (units - 1)
    if known[0].bounded:
        # Two candidates that agree on all of a few rows need not agree on new ones. As for paired
        # shares by Agresti and Min (2005): half a row more in which each of them alone is right.
        variance += 1 / (units + 2) ** 2
    return RowNoise(math.sqrt(variance), units - 1)


def outlying(one: Sample, matters: float) -> list[int]:
    """The one or two seeds that lie far from all the others; empty if there are fewer than 5 seeds."""
    quality = one.quality
    if len(quality) < OUTLYING_SEEDS:
        return []
    middle = statistics.median(quality.values())
    away = {seed: abs(value - middle) for seed, value in quality.items()}
    spread = 1.4826 * statistics.median(away.values())  # the standard deviation, if it is Gaussian
    # Few rows make qualities differ by chance, however close most of them happen to be.
    drawn = [statistics.stdev(own) for own in one.replicates.values() if len(own) > 1]
    noise = FAR_ROWS * statistics.median(drawn) if drawn else 0.0
    bar = max(FAR * spread, FAR_MATTERS * matters, noise)
    far = [seed for seed, x in away.items() if x > bar]
    return sorted(far) if len(far) <= 2 else []
