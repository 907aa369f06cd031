"""Estimates with 95% confidence intervals: means, paired differences and ratios, slopes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import stats

LEVEL = 0.95


class Estimate(NamedTuple):
    """A value and the ends of its 95% confidence interval."""

    value: float
    low: float
    high: float

    def above(self, bar: float) -> bool:
        """Whether the whole interval lies above the bar."""
        return self.low > bar

    def below(self, bar: float) -> bool:
        """Whether the whole interval lies below the bar."""
        return self.high < bar


def mean(samples: Sequence[float]) -> Estimate:
    """The mean over seeds with Student's t interval; the interval of a single sample is infinite."""
    count = len(samples)
    middle = math.fsum(samples) / count
    if count == 1:
        return Estimate(middle, -math.inf, math.inf)
    spread = math.sqrt(math.fsum((x - middle) ** 2 for x in samples) / (count - 1) / count)
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * spread
    return Estimate(middle, middle - half, middle + half)


def bands(samples: Sequence[Sequence[float]]) -> tuple[list[float], list[float], list[float]]:
    """For each point of a curve: the mean over seeds, and the lower and upper end of its interval."""
    found = [mean(own) for own in samples]
    return [x.value for x in found], [x.low for x in found], [x.high for x in found]


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Mean of `first - second`, paired by seed: both saw the same data, so its randomness cancels."""
    return mean([x - y for x, y in zip(first, second, strict=True)])


def ratio(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Geometric mean of `first / second`, paired by seed. All samples must be positive."""
    logs = difference([math.log(x) for x in first], [math.log(x) for x in second])
    return Estimate(*map(math.exp, logs))


def slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """The slope of the least-squares line through the points."""
    fit = stats.linregress(x, y)
    # An exactly horizontal line fits without error, for which scipy returns NaN.
    error = 0.0 if math.isnan(fit.stderr) else float(fit.stderr)
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(x) - 2)) * error
    return Estimate(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half)


def log_slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """The exponent p of a power law y = c x^p: the slope of log y against log x."""
    return slope([math.log(a) for a in x], [math.log(b) for b in y])
