"""`Times`: repeated measurements of one quantity, with their median and quartiles."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Times:
    """Repeated measurements of one quantity, in the order they were made."""

    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median of the samples: robust against the few that another program disturbed."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile; a single sample is both."""
        if len(self.samples) < 2:
            return self.samples[0], self.samples[0]
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high

    @property
    def spread(self) -> float | None:
        """Half the interquartile range divided by the median; None for a single sample."""
        if len(self.samples) < 2:
            return None
        low, high = self.quartiles
        return (high - low) / 2 / self.median

    def over(self, other: Times) -> Times:
        """Ratios of these samples to the other's, round by round."""
        # Samples of one round were taken close together, so a slow phase of the machine cancels. The
        # lists may differ in length when one candidate stopped early.
        pairs = zip(self.samples, other.samples, strict=False)
        return Times([mine / theirs for mine, theirs in pairs])

    def as_dict(self) -> dict[str, Any]:
        """Median, quartiles and samples as JSON values."""
        low, high = self.quartiles
        return {"median": self.median, "q1": low, "q3": high, "samples": self.samples}


def finite(x: float | None) -> float | None:
    """The number, or None if it is None, NaN or infinite: JSON has only finite numbers."""
    return x if x is not None and math.isfinite(x) else None
