"""From qualities to an outcome: the winner, its margins, and how many seeds or rows would decide.

Every candidate is compared with its own null, the scaled dot with the same heads and width. The best of
several alternatives looks better than it is, so intervals are widened (Bonferroni): all of them together
hold with a probability of 95%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from regard.choosing.training.intervals import LEAST_SEEDS, Spread, lead
from regard.choosing.training.rows import CandidateRow, Outcome
from regard.measuring.statistics import Estimate

# Bounds on the number of seeds that is advised if nothing was decided: fewer say little about noise, and
# more would take too long.
FEW_SEEDS, MOST_SEEDS = 5, 50
# An advised number of test rows leaves this fraction of the room to the noise of the rows.
ROWS_SHARE = 0.7


class Judged(NamedTuple):
    """The fields of a verdict that follow from the qualities; see `Verdict`."""

    outcome: Outcome
    winner: str
    runner_up: str | None
    margin: Estimate | None
    over_null: Estimate | None
    cheapest: str


class Finalists:
    """The finalists with the leads between them.

    Args:
        rows: the finalists' rows, including the null's.
        null: name of the first null, which has no other to be compared with.
        seeds: the seeds that all finalists have finished.
        matters: the smallest difference that matters.
    """

    def __init__(
        self, rows: Sequence[CandidateRow], null: str, seeds: Sequence[int], matters: float
    ) -> None:
        self.rows = {row.candidate.name: row for row in rows}
        self.null, self.seeds, self.matters = null, list(seeds), matters
        sums = {name: math.fsum(row.quality[s] for s in seeds) for name, row in self.rows.items()}
        self.order = sorted(self.rows, key=lambda name: -sums[name])
        self.others = [name for name in self.order if name != null]

    def null_of(self, name: str) -> str:
        """The null of a finalist; the first null if its own did not come through."""
        own = self.rows[name].null
        return own if own in self.rows and own != name else self.null

    def lead(self, first: str, second: str, seeds: Sequence[int] | None = None) -> Estimate:
        """The lead of one finalist over another; the interval holds for all of them together."""
        given = self.seeds if seeds is None else seeds
        found = lead(self.rows[first], self.rows[second], given)
        return found.estimate(max(len(self.others), 1))

    def sure(self, found: Estimate) -> bool:
        """Significant and relevant: the interval excludes 0, and the lead is at least `matters`."""
        return found.low > 0 and found.value >= self.matters

    def likely(self, name: str) -> bool:
        """Whether the finalist leads the first null by `matters` or more, and by more than its standard error.

        That is no proof, but a better bet than the null: on nine real sets the null was the worse choice by
        up to 10 points where nothing was decided (benchmarks/choose_real.py).
        """
        found = lead(self.rows[name], self.rows[self.null], self.seeds).estimate()
        return found.value >= self.matters and found.value > (found.high - found.value) / 2

    def held_back(self, name: str) -> bool:
        """Whether the finalist is surely ahead of its null but for one or two outlying seeds."""
        null = self.null_of(name)
        odd = {*self.rows[name].outlying(self.matters), *self.rows[null].outlying(self.matters)}
        rest = [seed for seed in self.seeds if seed not in odd]
        if len(rest) == len(self.seeds) or len(rest) < LEAST_SEEDS:
            return False
        return self.sure(self.lead(name, null, rest))


def judge(rows: Sequence[CandidateRow], null: str, seeds: Sequence[int], matters: float) -> Judged:
    """The winner, its margins, and the cheapest candidate whose deficit is below `matters`.

    An alternative wins if it is surely ahead of its own null, and of another null that is surely ahead
    of the first. If one is surely ahead of the first null only, which differs from it in more than the
    score, nothing is decided about scores; it is the winner for now all the same. If nothing is decided, a
    likely lead makes a winner for now.

    Args:
        rows: the finalists' rows, including the null's.
        null: name of the candidate that an alternative has to beat.
        seeds: the seeds that all finalists have finished.
        matters: the smallest difference that matters.
    """
    field = Finalists(rows, null, seeds, matters)
    if not field.others:
        return Judged(Outcome.SAME, null, None, None, None, null)
    ahead = {name: field.lead(name, field.null_of(name)) for name in field.others}
    sure = [name for name in field.others if field.sure(ahead[name])]
    nulls = [name for name in sure if field.rows[name].candidate.is_null]
    base = nulls[0] if nulls else null
    won = [
        name
        for name in sure
        if name == base or field.null_of(name) == base or field.sure(field.lead(name, base))
    ]
    # Surely better than the first null, but not than the null that differs in the score alone.
    mixed = [name for name in field.others if field.sure(field.lead(name, null))]
    winner = (won or mixed or [null])[0]
    runner_up = next(name for name in field.order if name != winner)
    margin = field.lead(winner, runner_up)
    outcome = Outcome.ALTERNATIVE if won else Outcome.UNDECIDED
    if winner == null:
        outcome = kept_outcome(field, ahead, margin)
        bets = [name for name in field.others if field.likely(name)]
        if outcome is Outcome.UNDECIDED and bets:
            winner = bets[0]
            runner_up = next(name for name in field.order if name != winner)
            margin = field.lead(winner, runner_up)
    cheapest = cheapest_as_good(field, winner)
    over_null = ahead[winner if winner != null else field.others[0]]
    return Judged(outcome, winner, runner_up, margin, over_null, cheapest)


def kept_outcome(field: Finalists, ahead: dict[str, Estimate], margin: Estimate) -> Outcome:
    """The outcome if no alternative won: the null did, there is no difference, or nothing is decided."""
    # An alternative that is ahead in most seeds and stuck in one is neither beaten nor the same.
    if any(field.held_back(name) for name in field.others):
        return Outcome.UNDECIDED
    if field.sure(margin):
        return Outcome.NULL
    # Alternatives that are behind are not required to have a narrow interval, except the best of all:
    # one that is behind is unlikely to turn out ahead by as much as matters.
    best = ahead[field.others[0]]
    watched = [one for one in ahead.values() if one.value > 0 or one is best]
    return Outcome.SAME if all(one.high < field.matters for one in watched) else Outcome.UNDECIDED


def as_good(behind: Estimate, matters: float) -> bool:
    """Whether a candidate's deficit `behind` is shown to be below `matters`.

    The whole interval must be below. It would not be enough that the deficit is not significant: the
    noisier a candidate, the easier that is.
    """
    return behind.below(matters)


def cheapest_as_good(field: Finalists, winner: str) -> str:
    """The cheapest finalist whose deficit to the winner is shown to be below `matters`."""
    good = [
        name
        for name in field.order
        if name == winner or as_good(field.lead(winner, name), field.matters)
    ]
    costs = {name: row.cost.seconds for name, row in field.rows.items() if row.cost is not None}
    return min(good, key=lambda name: costs.get(name, math.inf))


class Needs(NamedTuple):
    """What would decide the comparison if leads and noise stay as they are.

    Attributes:
        seeds: number of seeds; None if `MOST_SEEDS` would not be enough.
        rows: number of test rows, where their noise alone leaves it undecided; else None.
    """

    seeds: int | None
    rows: int | None


def needs(leads: Sequence[Spread], matters: float) -> Needs:
    """The seeds, or test rows, that would make the undecided intervals narrow enough.

    Args:
        leads: leads of all alternatives over their nulls.
        matters: the smallest difference that matters.
    """
    several = len(leads)
    best = max(leads, key=lambda one: one.value)
    unsettled = [
        one
        for one in leads
        if one.value + one.half(several) >= matters and (one.value > 0 or one is best)
    ]
    # If an alternative leads by at least `matters`, it is enough that its interval excludes 0. Otherwise
    # the intervals of all must stay below `matters`.
    ahead = [(one, one.value) for one in unsettled if one.value >= matters]
    rooms = ahead or [(one, matters - one.value) for one in unsettled]
    seeds = [seeds_within(one, room, several) for one, room in rooms]
    rows = [rows_within(one, room, several) for one, room in rooms]
    enough = [count for count in seeds if count is not None]
    more = [count for count in rows if count is not None]
    if ahead:
        # One of them is enough: seeds if they can, else the fewest rows.
        return Needs(min(enough), None) if enough else Needs(None, min(more, default=None))
    decided = bool(enough) and len(enough) == len(seeds)
    return Needs(max(enough) if decided else None, max(more, default=None))


def seeds_within(one: Spread, room: float, several: int) -> int | None:
    """The fewest seeds with which the half-width of the interval is below `room`; None if too many."""
    tried = range(max(one.count + 1, FEW_SEEDS), MOST_SEEDS + 1)
    return next((count for count in tried if one.half(several, count) < room), None)


def rows_within(one: Spread, room: float, several: int) -> int | None:
    """The test rows with which their noise is well below `room`; None if it is already."""
    if one.rows is None or not math.isfinite(one.rows.freedom) or room <= 0:
        return None
    now = one.half_of_rows(several)
    if now < room:
        return None
    # The noise of rows falls with the square root of their number. Two digits are precise enough.
    count = (one.rows.freedom + 1) * (now / (ROWS_SHARE * room)) ** 2
    digit = 10.0 ** (math.floor(math.log10(count)) - 1)
    return int(math.ceil(count / digit) * digit)
