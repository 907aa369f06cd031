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


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """How much larger the first is, paired by seed: both had the same data."""
    return mean([x - y for x, y in zip(first, second, strict=True)])


def slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """The slope of a straight line through the points, by least squares."""
    fit = stats.linregress(x, y)
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(x) - 2)) * float(fit.stderr)
    return Estimate(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half)


def log_slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """The exponent p of a power law y = c x^p: the slope of log y against log x."""
    return slope([math.log(a) for a in x], [math.log(b) for b in y])
