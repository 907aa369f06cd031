"""Outcomes of trained competitors as the numbers of a claim, and comparisons between them."""

from __future__ import annotations

from collections.abc import Sequence

from regard.claims.claim import Fact, Numbers
from regard.claims.tools.learning import Trained
from regard.measuring.statistics import Estimate, difference
from regard.text import Text


def plain(trained: Trained, **more: object) -> Numbers:
    """The outcome of one competitor as plain JSON; lists have one item for each seed."""
    return {
        "quality": trained.quality,
        "train": trained.train_quality,
        "parameters": trained.parameters,
        "rate": trained.rate,
        **more,
    }


def ahead(first: Numbers, second: Numbers) -> Estimate:
    """Lead of the first over the second in percentage points of accuracy, paired by seed."""
    return Estimate(*(100 * x for x in difference(first["quality"], second["quality"])))


def surely(found: Estimate, bar: float) -> bool | None:
    """Whether the whole interval is above the bar (True) or below it (False); None if it straddles the bar."""
    return None if found.low <= bar <= found.high else found.low > bar


def points(label: Text, found: Estimate) -> Fact:
    """A difference of accuracies as a `Fact`, in percentage points."""
    return Fact(label, *found, unit="points")


def share(found: Estimate) -> Estimate:
    """A percentage with its interval cut to 0 to 100: the interval of a mean near a bound reaches beyond it."""
    return Estimate(found.value, max(found.low, 0.0), min(found.high, 100.0))


def percent(values: Sequence[float]) -> list[float]:
    """Fractions as percentages, for a figure."""
    return [100 * x for x in values]
