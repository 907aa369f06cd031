"""What a trained competitor leaves in the numbers of a claim, and how such numbers are compared."""

from __future__ import annotations

from collections.abc import Sequence

from regard.claims.claim import Fact, Numbers
from regard.claims.tools.learning import Trained
from regard.measuring.statistics import Estimate, difference
from regard.text import Text


def plain(trained: Trained, **more: object) -> Numbers:
    """One competitor as plain JSON; lists run over seeds."""
    return {
        "quality": trained.quality,
        "train": trained.train_quality,
        "parameters": trained.parameters,
        "rate": trained.rate,
        **more,
    }


def ahead(first: Numbers, second: Numbers) -> Estimate:
    """By how many points of accuracy the first is better, paired by seed: 1 is one in a hundred."""
    return Estimate(*(100 * x for x in difference(first["quality"], second["quality"])))


def surely(found: Estimate, bar: float) -> bool | None:
    """Whether it is above the bar; None where the interval straddles it."""
    return None if found.low <= bar <= found.high else found.low > bar


def points(label: Text, found: Estimate) -> Fact:
    """A difference of accuracies among the numbers that decide."""
    return Fact(label, *found, unit="points")


def percent(values: Sequence[float]) -> list[float]:
    """Shares as percentages, for a figure."""
    return [100 * x for x in values]
