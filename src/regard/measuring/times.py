"""Repeated measurements of one quantity."""

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
        """The middle one."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and third quartile; both the same where there is one sample."""
        if len(self.samples) < 2:
            return self.samples[0], self.samples[0]
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high

    @property
    def spread(self) -> float | None:
        """Half the interquartile range as a part of the median; None for one sample."""
        if len(self.samples) < 2:
            return None
        low, high = self.quartiles
        return (high - low) / 2 / self.median

    def over(self, other: Times) -> Times:
        """This divided by another, round by round."""
        pairs = zip(self.samples, other.samples, strict=False)
        return Times([mine / theirs for mine, theirs in pairs])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        low, high = self.quartiles
        return {"median": self.median, "q1": low, "q3": high, "samples": self.samples}


def finite(x: float | None) -> float | None:
    """None for what JSON cannot hold."""
    return x if x is not None and math.isfinite(x) else None
