"""The verdict of a comparison: which candidate won, by how much, and whether that exceeds noise.

Differences are paired by seed, because every candidate saw the same data in the same order. The best of
several alternatives looks better than it is, so intervals are widened (Bonferroni): all of them together
hold with a probability of 95%.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from scipy import stats

from regard import Score
from regard.choosing.training.candidates import TrialCandidate
from regard.choosing.training.chance import Chance
from regard.choosing.training.costs import Cost
from regard.measuring.statistics import LEVEL, Estimate, difference, mean
from regard.text import Text

SCHEMA = "regard.choose/trained/2"
# Bounds on the number of seeds that is advised if nothing was decided: fewer say little about noise, and
# more would take too long.
FEW_SEEDS, MOST_SEEDS = 5, 50


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
        replicates: by seed, the quality on resampled test rows.
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

    def mean(self) -> Estimate:
        """The mean quality over seeds, with its interval."""
        return mean(list(self.quality.values()))


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
        """The mean quality over seeds, with its interval."""
        return mean(list(self.quality.values()))


@dataclass
class Verdict:
    """The answer of `regard.choose`.

    Attributes:
        outcome: the kind of answer.
        winner: the candidate to use: scaled dot, unless the lead of an alternative exceeds noise and is
            at least `matters`. If nothing was decided it is scaled dot too, for now.
        runner_up: the best of the others; None if there is none.
        margin: lead of the winner over the runner-up, with its 95% interval.
        over_null: lead over scaled dot of the winner, or of the best alternative if scaled dot is the
            winner.
        cheapest: the cheapest candidate whose deficit to the winner is below `matters`.
        rows: every candidate, the best first.
        metric: name of the metric that is compared; higher is better.
        matters: the smallest difference that matters.
        seeds: the seeds that all finalists have finished.
        facts: settings, machine and times, for the record.
        chance: the quality of guessing; None if it is unknown.
        baselines: models without attention on the same data; empty if none was trained.
        control: qualities of the best finalist trained on shuffled targets, one for each seed; None if
            that was not done.
    """

    outcome: Outcome
    winner: str
    runner_up: str | None
    margin: Estimate | None
    over_null: Estimate | None
    cheapest: str
    rows: list[CandidateRow]
    metric: str
    matters: float
    seeds: list[int]
    interrupted: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    chance: Chance | None = None
    baselines: list[BaselineRow] = field(default_factory=list)
    control: list[float] | None = None

    def row(self, name: str) -> CandidateRow:
        """The row of the candidate with that name."""
        return next(row for row in self.rows if row.candidate.name == name)

    def null_row(self) -> CandidateRow | None:
        """The row of scaled dot, the null; None if the verdict has no settings."""
        name = self.facts.get("settings", {}).get("candidates", [None])[0]
        return None if name is None else self.row(name)

    def over(self, row: CandidateRow) -> Estimate | None:
        """The lead of a finalist over scaled dot, paired by seed; None for any other candidate.

        The interval holds for all alternatives together.
        """
        null = self.null_row()
        if null is None or row is null or row.status != "final":
            return None
        first, second = ([one.quality[seed] for seed in self.seeds] for one in (row, null))
        return compared(first, second, sum(one.status == "final" for one in self.rows) - 1)

    @property
    def learned(self) -> bool:
        """Whether a finalist is better than guessing; True if the quality of guessing is unknown.

        The finalist's interval must lie above guessing. Its mean must also exceed guessing by more than
        the sampling error of the test rows: the interval over seeds does not include that error when all
        seeds are tested on the same rows.
        """
        final = [row.mean() for row in self.rows if row.status == "final"]
        if self.chance is None or not final:
            return True
        luck = float(stats.norm.isf((1 - LEVEL) / 2 / len(final))) * self.chance.error
        return any(
            one.value > self.chance.value + luck
            and (one.low > self.chance.value or not math.isfinite(one.low))
            for one in final
        )

    @property
    def seeds_to_decide(self) -> int | None:
        """Number of seeds that would decide the comparison, if leads and noise stay as they are.

        None if it is decided, if nothing was learned, if there is one seed (which says nothing about
        noise), or if `MOST_SEEDS` seeds would not be enough.
        """
        if self.outcome is not Outcome.UNDECIDED or len(self.seeds) < 2 or not self.learned:
            return None
        leads = [found for row in self.rows if (found := self.over(row)) is not None]
        return seeds_to_decide(leads, len(self.seeds), self.matters) if leads else None

    def times_null(self, row: CandidateRow) -> float | None:
        """The time of a step over that of scaled dot; None if one of them is unknown."""
        null = self.null_row()
        if null is None or null.cost is None or row.cost is None:
            return None
        return row.cost.seconds / null.cost.seconds

    def make(self) -> Score:
        """Build a fresh score of the winner."""
        return self.row(self.winner).candidate.make()

    @property
    def code(self) -> str:
        """Python code that builds the winner, to paste."""
        return self.row(self.winner).candidate.code

    def __str__(self) -> str:
        """The recommendation, the table and the code, as text."""
        from regard.choosing.training.table import as_text

        return as_text(self)

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON."""
        from regard.choosing.training.record import as_dict

        return as_dict(self)

    def save(self, path: Any) -> Any:
        """Write the report as one HTML file, and return its path. Needs jinja2 and matplotlib."""
        from regard.choosing.report import save_verdict

        return save_verdict(self, path)


class Judged(NamedTuple):
    """The fields of a verdict that follow from the qualities; see `Verdict`."""

    outcome: Outcome
    winner: str
    runner_up: str | None
    margin: Estimate | None
    over_null: Estimate | None
    cheapest: str


def judge(rows: Sequence[CandidateRow], null: str, seeds: Sequence[int], matters: float) -> Judged:
    """The winner, its margins, and the cheapest candidate whose deficit is below `matters`.

    Args:
        rows: the finalists' rows, including the null's.
        null: name of the candidate that an alternative has to beat.
        seeds: the seeds that all finalists have finished.
        matters: the smallest difference that matters.
    """
    found = {row.candidate.name: [row.quality[seed] for seed in seeds] for row in rows}
    order = sorted(found, key=lambda name: -mean(found[name]).value)
    others = [name for name in order if name != null]
    if not others:
        return Judged(Outcome.SAME, null, None, None, None, null)
    several = len(others)
    ahead = {name: compared(found[name], found[null], several) for name in others}
    # Significant and relevant: the interval excludes 0, and the lead itself is at least `matters`.
    sure = [name for name in others if ahead[name].low > 0 and ahead[name].value >= matters]
    best = others[0]
    winner = sure[0] if sure else null
    runner_up = next(name for name in order if name != winner)
    margin = compared(found[winner], found[runner_up], several)
    if sure:
        outcome = Outcome.ALTERNATIVE
    elif margin.low > 0 and margin.value >= matters:
        outcome = Outcome.NULL
    # Alternatives that are behind are not required to have a narrow interval, except the best of all:
    # one that is behind is unlikely to turn out ahead by as much as matters.
    elif all(one.high < matters for one in ahead.values() if one.value > 0 or one is ahead[best]):
        outcome = Outcome.SAME
    else:
        outcome = Outcome.UNDECIDED
    good = [
        name
        for name in order
        if name == winner or as_good(compared(found[winner], found[name], several), matters)
    ]
    costs = {row.candidate.name: row.cost.seconds for row in rows if row.cost is not None}
    cheapest = min(good, key=lambda name: costs.get(name, float("inf")))
    over_null = ahead[winner if sure else best]
    return Judged(outcome, winner, runner_up, margin, over_null, cheapest)


def as_good(behind: Estimate, matters: float) -> bool:
    """Whether a candidate's deficit `behind` is shown to be below `matters`.

    The whole interval must be below. It would not be enough that the deficit is not significant: the
    noisier a candidate, the easier that is.
    """
    return behind.below(matters)


def compared(first: Sequence[float], second: Sequence[float], several: int) -> Estimate:
    """The paired difference, its interval widened for `several` comparisons at once."""
    found = difference(first, second)
    count = len(first)
    if count < 2:
        return found
    # Bonferroni: the t quantile of the tail divided by the number of comparisons.
    half = (1 - LEVEL) / 2
    widen = stats.t.isf(half / several, count - 1) / stats.t.isf(half, count - 1)
    reach = float(widen) * (found.high - found.value)
    return Estimate(found.value, found.value - reach, found.value + reach)


def seeds_to_decide(leads: Sequence[Estimate], count: int, matters: float) -> int | None:
    """Number of seeds that would make the undecided intervals narrow enough; None if too many.

    Args:
        leads: leads of all alternatives over the null, from `compared`.
        count: number of seeds that they come from.
        matters: the smallest difference that matters.
    """
    several = len(leads)
    best = max(leads, key=lambda lead: lead.value)
    unsettled = [
        lead for lead in leads if lead.high >= matters and (lead.value > 0 or lead is best)
    ]
    # If an alternative leads by at least `matters`, it is enough that its interval excludes 0. Otherwise
    # the intervals of all must stay below `matters`.
    ahead = [(lead, lead.value) for lead in unsettled if lead.value >= matters]
    rooms = ahead or [(lead, matters - lead.value) for lead in unsettled]
    needs = [seeds_within(lead, room, count, several) for lead, room in rooms]
    enough = [need for need in needs if need is not None]
    if ahead:
        return min(enough, default=None)
    return max(enough) if enough and len(enough) == len(needs) else None


def seeds_within(lead: Estimate, room: float, count: int, several: int) -> int | None:
    """The fewest seeds with which the half-width of the interval is below `room`; None if too many."""
    half = (1 - LEVEL) / 2 / several
    # Undo the half-width t * noise / sqrt(count) to get the standard deviation of the differences.
    noise = (lead.high - lead.value) * count**0.5 / stats.t.isf(half, count - 1)
    tried = range(max(count + 1, FEW_SEEDS), MOST_SEEDS + 1)
    return next((n for n in tried if stats.t.isf(half, n - 1) * noise / n**0.5 < room), None)


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
