"""The results of each candidate and of each baseline, and the kinds of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from regard.choosing.training.candidates import TrialCandidate
from regard.choosing.training.costs import Cost
from regard.choosing.training.intervals import RowsTested, level_of, outlying
from regard.measuring.statistics import Estimate
from regard.text import Text


class Outcome(StrEnum):
    """The kind of answer that a comparison gives."""

    ALTERNATIVE = "an alternative beats scaled dot, by more than noise and as much as matters"
    NULL = "scaled dot beats every alternative, by more than noise and as much as matters"
    SAME = "no difference that matters"
    UNDECIDED = "no difference was shown, and one that matters is not ruled out"


@dataclass
class CandidateRow:
    """The results of one candidate.

    Attributes:
        status: "final", "halved" (dropped by the search), "failed" or "not reached" in time.
        reason: why it failed.
        rate: its best learning rate.
        quality: quality on the test part by seed; empty for a candidate that is not in the final.
        searched: last step of its best trial in the search, and the quality there.
        curve: quality on the validation part by step, averaged over seeds.
        vitals: see `vitals_of`.
        null: name of the scaled dot candidate that it is compared with, which has its heads and width;
            empty for the first candidate, the null of all.
        parameters: number of parameters of the whole model.
        at_edge: its best rate is the lowest or highest that was tried.
        replicates: by seed, the quality on resampled test rows; see `row_replicates`.
        tested: by seed, the test rows.
        extras: by seed, further metrics by name.
    """

    candidate: TrialCandidate
    cost: Cost | None = None
    status: str = "not reached"
    reason: str = ""
    rate: float | None = None
    quality: dict[int, float] = field(default_factory=dict)
    searched: tuple[int, float] | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)
    vitals: dict[str, Any] = field(default_factory=dict)
    null: str = ""
    parameters: int | None = None
    at_edge: bool = False
    replicates: dict[int, list[float]] = field(default_factory=dict)
    tested: dict[int, RowsTested] = field(default_factory=dict)
    extras: dict[int, dict[str, float]] = field(default_factory=dict)

    def mean(self) -> Estimate:
        """The mean quality over seeds, with an interval for new seeds and rows."""
        return level_of(self, list(self.quality)).estimate()

    def keep(self, seeds: Sequence[int]) -> None:
        """Forget what other seeds gave, so that all numbers of a comparison come from the same seeds."""
        for by_seed in (self.quality, self.replicates, self.tested, self.extras):
            for seed in by_seed.keys() - set(seeds):
                del by_seed[seed]

    def outlying(self, matters: float) -> dict[int, float]:
        """The qualities of one or two seeds that lie far from all others."""
        return {seed: self.quality[seed] for seed in outlying(self, matters)}

    def extra_means(self) -> dict[str, float]:
        """Further metrics, averaged over the seeds that have them."""
        names = dict.fromkeys(name for own in self.extras.values() for name in own)
        found = {name: [own[name] for own in self.extras.values() if name in own] for name in names}
        return {name: sum(values) / len(values) for name, values in found.items()}


@dataclass
class BaselineRow:
    """The results of a model without attention, on the same parts of the data.

    Attributes:
        name: what it is, as text.
        quality: quality on the test part by seed.
        replicates: by seed, the quality on resampled test rows.
        seconds: time that it took, tuning included.
    """

    name: Text
    quality: dict[int, float] = field(default_factory=dict)
    replicates: dict[int, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    def mean(self) -> Estimate:
        """The mean quality over seeds, with an interval for new seeds and rows."""
        return level_of(self, list(self.quality)).estimate()


def common_seeds(rows: Sequence[CandidateRow], seeds: Sequence[int]) -> list[int]:
    """The seeds that every finalist has finished."""
    return [seed for seed in seeds if all(seed in row.quality for row in rows)]


def ordered(rows: Mapping[str, CandidateRow]) -> list[CandidateRow]:
    """All rows: finalists by their mean, then the others by the last step and quality they reached."""

    def key(row: CandidateRow) -> tuple:
        if row.quality:
            return 0, -row.mean().value, 0.0
        step, value = row.searched or (0, 0.0)
        return 1 + (row.searched is None), -step, -value

    return sorted(rows.values(), key=key)
