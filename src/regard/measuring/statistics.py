"""Estimates with their uncertainty. Intervals are 95% ones throughout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import stats

LEVEL = 0.95


class Estimate(NamedTuple):
    """A value between the ends of its 95% interval."""

    value: float
    low: float
    high: float

    def above(self, bar: float) -> bool:
        """Surely above: the whole interval is."""
        return self.low > bar

    def below(self, bar: float) -> bool:
        """Surely below: the whole interval is."""
        return self.high < bar


def mean(samples: Sequence[float]) -> Estimate:
    """The mean over seeds, by Student's t; of one sample nothing is known about its spread."""
    count = len(samples)
    middle = math.fsum(samples) / count
    if count == 1:
        return Estimate(middle, -math.inf, math.inf)
    spread = math.sqrt(math.fsum((x - middle) ** 2 for x in samples) / (count - 1) / count)
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * spread
    return Estimate(middle, middle - half, middle + half)


def bands(samples: Sequence[Sequence[float]]) -> tuple[list[float], list[float], list[float]]:
    """Means over seeds at every point of a line, and the lower and upper ends of their intervals."""
    found = [mean(own) for own in samples]
    return [x.value for x in found], [x.low for x in found], [x.high for x in found]


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """How much larger the first is, paired by seed: both had the same data."""
    return mean([x - y for x, y in zip(first, second, strict=True)])


def ratio(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """How many times as large the first is, paired by seed: the geometric mean. Both are above 0."""
    logs = difference([math.log(x) for x in first], [math.log(x) for x in second])
    return Estimate(*map(math.exp, logs))


def slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """The slope of a straight line through the points, by least squares."""
    fit = stats.linregress(x, y)
    # A level line has no error; scipy says NaN of it.
    error = 0.0 if math.isnan(fit.stderr) else float(fit.stderr)
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(x) - 2)) * error
    return Estimate(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half)


def log_slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """The exponent p of a power law y = c x^p: the slope of log y against log x."""
    return slope([math.log(a) for a in x], [math.log(b) for b in y])
