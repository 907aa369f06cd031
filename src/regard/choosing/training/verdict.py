"""What the trials say: who won, by how much, and whether that is more than noise.

Differences are paired by seed: every candidate saw the same data in the same order. The alternatives
are several, and the best of several looks better than it is: intervals are widened (Bonferroni) so
that all of them hold together with 95%.
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

SCHEMA = "regard.choose/trained/2"
# What is advised where it is not decided: fewer tell little of the noise, more nobody waits for.
FEW_SEEDS, MOST_SEEDS = 5, 50


class Outcome(StrEnum):
    """What kind of answer it is."""

    ALTERNATIVE = "an alternative beats scaled dot, by more than noise and as much as matters"
    NULL = "scaled dot beats every alternative, by more than noise and as much as matters"
    SAME = "no difference that matters"
    UNDECIDED = "no difference was shown, and one that matters is not ruled out"


@dataclass
class CandidateRow:
    """One candidate.

    Attributes:
        status: "final", "halved" (left behind by the search), "failed" or "not reached" in time.
        reason: of a failure.
        rate: its best learning rate.
        quality: by seed, on the test part; of one that was halved away there is none.
        searched: the last look of the search: step and quality.
        curve: quality on the validation part by step, the mean over seeds.
        vitals: see `vitals_of`.
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

    def mean(self) -> Estimate:
        """Over seeds."""
        return mean(list(self.quality.values()))


@dataclass
class Verdict:
    """The answer of `regard.choose`.

    Attributes:
        outcome: what kind of answer it is.
        winner: what to use: scaled dot, unless an alternative beats it by more than noise and by as
            much as matters. Where it is not decided that is scaled dot too, for now.
        runner_up: the best of the others; None where there is none.
        margin: by how much the winner is ahead of the runner-up, with its 95% interval.
        over_null: by how much the winner, or where that is scaled dot itself the best alternative, is
            ahead of scaled dot.
        cheapest: the cheapest candidate that is not behind the winner by as much as matters.
        rows: every candidate, the best first.
        metric: the name of what is compared; more is better.
        matters: the smallest difference that matters.
        seeds: that are finished for all finalists.
        facts: settings, machine and times, for the record.
        chance: what guessing gives; None where that is not known.
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

    def row(self, name: str) -> CandidateRow:
        """Of the candidate with that name."""
        return next(row for row in self.rows if row.candidate.name == name)

    def null_row(self) -> CandidateRow | None:
        """Of scaled dot."""
        name = self.facts.get("settings", {}).get("candidates", [None])[0]
        return None if name is None else self.row(name)

    def over(self, row: CandidateRow) -> Estimate | None:
        """By how much a finalist is ahead of scaled dot, paired by seed; None for any other.

        The interval holds for all alternatives together.
        """
        null = self.null_row()
        if null is None or row is null or row.status != "final":
            return None
        first, second = ([one.quality[seed] for seed in self.seeds] for one in (row, null))
        return compared(first, second, sum(one.status == "final" for one in self.rows) - 1)

    @property
    def learned(self) -> bool:
        """Whether a finalist is better than guessing; True where guessing is not known.

        Its interval has to be above, and its mean by more than the rows that were tested leave to
        luck: seeds that are tested on the same rows are lucky together.
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
        """How many seeds would decide what is not, if leads and noise stay as they are.

        None where it is decided, where nothing was learned, where one seed tells nothing of the
        noise, or where `MOST_SEEDS` would not do.
        """
        if self.outcome is not Outcome.UNDECIDED or len(self.seeds) < 2 or not self.learned:
            return None
        leads = [found for row in self.rows if (found := self.over(row)) is not None]
        return seeds_to_decide(leads, len(self.seeds), self.matters) if leads else None

    def times_null(self, row: CandidateRow) -> float | None:
        """The time of a step over that of scaled dot; None where one of them is not known."""
        null = self.null_row()
        if null is None or null.cost is None or row.cost is None:
            return None
        return row.cost.seconds / null.cost.seconds

    def make(self) -> Score:
        """A fresh score: the winner."""
        return self.row(self.winner).candidate.make()

    @property
    def code(self) -> str:
        """Python that builds the winner, to paste."""
        return self.row(self.winner).candidate.code

    def __str__(self) -> str:
        """The recommendation and the table, as text."""
        from regard.choosing.training.table import as_text

        return as_text(self)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        from regard.choosing.training.record import as_dict

        return as_dict(self)

    def save(self, path: Any) -> Any:
        """Write the report as one HTML file, and return its path. Needs jinja2 and matplotlib."""
        from regard.choosing.report import save_verdict

        return save_verdict(self, path)


class Judged(NamedTuple):
    """The part of a verdict that follows from the qualities; see `Verdict`."""

    outcome: Outcome
    winner: str
    runner_up: str | None
    margin: Estimate | None
    over_null: Estimate | None
    cheapest: str


def judge(rows: Sequence[CandidateRow], null: str, seeds: Sequence[int], matters: float) -> Judged:
    """Who won, by how much, and who is the cheapest that is not behind by as much as matters.

    Args:
        rows: of the finalists, the null among them.
        null: the name of what an alternative has to beat.
        seeds: that all of them have finished.
        matters: the smallest difference that matters.
    """
    found = {row.candidate.name: [row.quality[seed] for seed in seeds] for row in rows}
    order = sorted(found, key=lambda name: -mean(found[name]).value)
    others = [name for name in order if name != null]
    if not others:
        return Judged(Outcome.SAME, null, None, None, None, null)
    several = len(others)
    ahead = {name: compared(found[name], found[null], several) for name in others}
    sure = [name for name in others if ahead[name].low > 0 and ahead[name].value >= matters]
    best = others[0]
    winner = sure[0] if sure else null
    runner_up = next(name for name in order if name != winner)
    margin = compared(found[winner], found[runner_up], several)
    if sure:
        outcome = Outcome.ALTERNATIVE
    elif margin.low > 0 and margin.value >= matters:
        outcome = Outcome.NULL
    # One that is behind, with a wide interval, leaves nothing open that anybody would bet on.
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
    """Whether one is as good as another that is ahead by that: its interval rules out what matters.

    Not to be surely behind would not do: the noisier a candidate, the easier that is.
    """
    return behind.below(matters)


def compared(first: Sequence[float], second: Sequence[float], several: int) -> Estimate:
    """The paired difference, its interval widened for `several` comparisons at once."""
    found = difference(first, second)
    count = len(first)
    if count < 2:
        return found
    half = (1 - LEVEL) / 2
    widen = stats.t.isf(half / several, count - 1) / stats.t.isf(half, count - 1)
    reach = float(widen) * (found.high - found.value)
    return Estimate(found.value, found.value - reach, found.value + reach)


def seeds_to_decide(leads: Sequence[Estimate], count: int, matters: float) -> int | None:
    """How many seeds would make the intervals of undecided leads narrow enough; None: too many.

    Args:
        leads: of all alternatives over the null, as `compared` gives them.
        count: of the seeds they come from.
        matters: the smallest difference that matters.
    """
    several = len(leads)
    best = max(leads, key=lambda lead: lead.value)
    unsettled = [
        lead for lead in leads if lead.high >= matters and (lead.value > 0 or lead is best)
    ]
    # One that is ahead by enough has to come clear of 0; else all have to stay below what matters.
    ahead = [(lead, lead.value) for lead in unsettled if lead.value >= matters]
    rooms = ahead or [(lead, matters - lead.value) for lead in unsettled]
    needs = [seeds_within(lead, room, count, several) for lead, room in rooms]
    enough = [need for need in needs if need is not None]
    if ahead:
        return min(enough, default=None)
    return max(enough) if enough and len(enough) == len(needs) else None


def seeds_within(lead: Estimate, room: float, count: int, several: int) -> int | None:
    """The fewest seeds at which the interval reaches less than `room` to a side."""
    half = (1 - LEVEL) / 2 / several
    noise = (lead.high - lead.value) * count**0.5 / stats.t.isf(half, count - 1)
    tried = range(max(count + 1, FEW_SEEDS), MOST_SEEDS + 1)
    return next((n for n in tried if stats.t.isf(half, n - 1) * noise / n**0.5 < room), None)


def common_seeds(rows: Sequence[CandidateRow], seeds: Sequence[int]) -> list[int]:
    """The seeds that every finalist has finished."""
    return [seed for seed in seeds if all(seed in row.quality for row in rows)]


def ordered(rows: Mapping[str, CandidateRow]) -> list[CandidateRow]:
    """Finalists by their mean, then the others by how far they came."""

    def key(row: CandidateRow) -> tuple:
        if row.quality:
            return 0, -row.mean().value, 0.0
        step, value = row.searched or (0, 0.0)
        return 1 + (row.searched is None), -step, -value

    return sorted(rows.values(), key=key)
