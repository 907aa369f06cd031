"""The verdict of a comparison: which candidate won, by how much, and whether that exceeds noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

from regard import Score
from regard.choosing.training.asking import Asker
from regard.choosing.training.chance import Chance
from regard.choosing.training.intervals import (
    LEAST_SEEDS,
    Spread,
    lead,
    level_of,
    row_noise,
    spread_of,
)
from regard.choosing.training.judging import Needs, needs, seeds_within
from regard.choosing.training.paste import runnable
from regard.choosing.training.rows import BaselineRow, CandidateRow, Outcome
from regard.measuring.statistics import LEVEL, Estimate

SCHEMA = "regard.choose/trained/3"


class AboveChance(NamedTuple):
    """How far a finalist is above a quality that takes no learning: that of guessing, or of shuffled targets.

    Attributes:
        found: the distance with its noises.
        noise: the distance that noise alone may give.
        luck: the part of the noise that guesses have on these test rows, whatever the seeds.
    """

    found: Spread
    noise: float
    luck: float = 0.0

    @property
    def is_shown(self) -> bool:
        """Whether the distance is above 0 by more than noise."""
        return self.found.value > self.noise

    def is_likely(self, matters: float) -> bool:
        """Whether the distance matters and exceeds its standard error: no proof, and no sign of a mistake."""
        return self.found.value >= matters and self.found.value > self.noise / 2

    @property
    def seeds_to_show(self) -> int | None:
        """The seeds that would show the distance if it stays; None if rows are lacking, or too many seeds."""
        if self.is_shown or self.luck >= self.found.value:
            return None
        return seeds_within(self.found, self.found.value, 1)


@dataclass
class Verdict:
    """The answer of `regard.choose`.

    Attributes:
        outcome: the kind of answer. `UNDECIDED` if nothing is recommended.
        winner: the candidate to use: scaled dot, unless the lead of an alternative exceeds noise and is
            at least `matters`. If nothing was decided it is the one to use for now; if nothing is
            recommended it is scaled dot.
        runner_up: the best of the others; None if there is none.
        margin: lead of the winner over the runner-up, with its 95% interval.
        over_null: lead over its null, the scaled dot with the same heads and width, of the winner, or of
            the best alternative if scaled dot is the winner.
        cheapest: the cheapest candidate whose deficit to the winner is below `matters`.
        rows: every candidate, the best first.
        metric: name of the metric that is compared; higher is better.
        matters: the smallest difference that matters.
        seeds: the seeds that all finalists have finished.
        facts: settings, machine, times and notes on the data, for the record.
        chance: the quality of guessing; None if it is unknown.
        baselines: models without attention on the same data; empty if none was trained.
        control: qualities of the best finalist trained on shuffled targets, one for each seed; None if
            that was not done.
        asked_by: "python" or "command": whether advice names arguments or options.
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
    asked_by: Asker = "python"

    def __post_init__(self) -> None:
        """Take back the recommendation if nothing is shown to be learned: a lead among guesses is noise."""
        if not self.recommended:
            self.outcome = Outcome.UNDECIDED
            null = self.null_row()
            self.winner = self.winner if null is None else null.candidate.name
            self.cheapest = self.winner

    def row(self, name: str) -> CandidateRow:
        """The row of the candidate with that name."""
        return next(row for row in self.rows if row.candidate.name == name)

    @property
    def finalists(self) -> list[CandidateRow]:
        """The rows of the final, the best first."""
        return [row for row in self.rows if row.status == "final"]

    def null_row(self) -> CandidateRow | None:
        """The row of scaled dot, the null; None if the verdict has no settings."""
        name = self.facts.get("settings", {}).get("candidates", [None])[0]
        return None if name is None else self.row(name)

    def null_of(self, row: CandidateRow) -> CandidateRow | None:
        """The scaled dot that a finalist is compared with; None for the first one and for all others."""
        first = self.null_row()
        if first is None or row is first or row.status != "final":
            return None
        own = [one for one in self.finalists if one.candidate.name == row.null and one is not row]
        return own[0] if own else first

    @property
    def best_alternative(self) -> CandidateRow | None:
        """The alternative that `over_null` is of: the winner, or if that is scaled dot the runner-up."""
        null = self.null_row()
        kept = null is None or null.candidate.name == self.winner
        name = self.runner_up if kept else self.winner
        return None if name is None else self.row(name)

    def over(self, row: CandidateRow) -> Estimate | None:
        """The lead of a finalist over its null; None for any other candidate.

        The interval holds for all alternatives together.
        """
        found = self.lead(row)
        return None if found is None else found.estimate(max(len(self.finalists) - 1, 1))

    def lead(self, row: CandidateRow) -> Spread | None:
        """The lead of a finalist over its null, with its noises."""
        null = self.null_of(row)
        return None if null is None else lead(row, null, self.seeds)

    @property
    def learned(self) -> bool | None:
        """Whether a finalist is better than guessing, and than one trained on shuffled targets.

        None if it seems so and rows or seeds are too few to be sure. What is unknown of the two does not
        count.
        """
        if not self.finalists or (self.beats_guessing and self.beats_control):
            return True
        references = (self.over_guessing, self.over_control)
        likely = all(
            not known or any(one.is_shown or one.is_likely(self.matters) for one in known)
            for known in references
        )
        return None if likely else False

    @property
    def recommended(self) -> bool:
        """Whether there is a candidate to use: only if one is shown to have learned."""
        return self.learned is True

    @property
    def beats_guessing(self) -> bool:
        """Whether a finalist is shown to be better than guessing; True if that is unknown."""
        known = self.over_guessing
        return not known or any(one.is_shown for one in known)

    @property
    def over_guessing(self) -> list[AboveChance]:
        """How far each finalist is above guessing, without seeds in which it was stuck; empty if unknown."""
        if self.chance is None:
            return []
        luck = float(stats.norm.isf((1 - LEVEL) / 2 / len(self.finalists))) * self.chance.error
        found = []
        for row in self.finalists:
            one = level_of(row, self.steady(row))
            half = one.half(1) if one.count >= LEAST_SEEDS else 0.0
            above = one._replace(value=one.value - self.chance.value)
            found.append(AboveChance(above, max(half, luck), luck))
        return found

    @property
    def beats_control(self) -> bool:
        """Whether the best finalist is shown to be better than with shuffled targets; True if unknown."""
        known = self.over_control
        return not known or known[0].is_shown

    @property
    def over_control(self) -> list[AboveChance]:
        """How far the best finalist is above itself trained on shuffled targets; empty if unknown."""
        if not self.control:
            return []
        best = max(self.finalists, key=lambda row: row.mean().value)
        shuffled = math.fsum(self.control) / len(self.control)
        seeds = self.steady(best)
        paired = dict(zip(self.seeds, self.control, strict=False))
        if len(self.control) != len(self.seeds):
            paired = dict.fromkeys(self.seeds, shuffled)
        gaps = [best.quality[seed] - paired[seed] for seed in seeds]
        found = spread_of(gaps, row_noise(seeds, best))
        return [AboveChance(found, noise_of(found))]

    def steady(self, row: CandidateRow) -> list[int]:
        """The seeds in which a finalist was not stuck."""
        middle, odd = row.mean().value, row.outlying(self.matters)
        return [seed for seed in self.seeds if odd.get(seed, middle) >= middle]

    @property
    def best_baseline(self) -> BaselineRow | None:
        """The best model without attention; None if there is none."""
        known = [row for row in self.baselines if row.quality]
        return max(known, key=lambda row: row.mean().value, default=None)

    @property
    def beats_baselines(self) -> bool:
        """Whether a finalist is better than the best model without attention, by more than noise.

        True if there is no such model.
        """
        best = self.best_baseline
        several = max(len(self.finalists), 1)
        return best is None or any(
            found.value > noise_of(found, several)
            for found in (lead(row, best, self.seeds) for row in self.finalists)
        )

    @property
    def needs(self) -> Needs:
        """What would decide the comparison, if leads and noise stay as they are.

        Nothing if it is decided, if nothing is recommended, or if there are too few seeds to tell the noise.
        """
        leads = [found for row in self.finalists if (found := self.lead(row)) is not None]
        few = len(self.seeds) < LEAST_SEEDS
        if self.outcome is not Outcome.UNDECIDED or few or not leads or not self.recommended:
            return Needs(None, None)
        return needs(leads, self.matters)

    @property
    def seeds_to_decide(self) -> int | None:
        """Number of seeds that would decide the comparison; see `needs`."""
        return self.needs.seeds

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
        """Python code that builds the winner, with its imports, to paste."""
        return runnable(self.row(self.winner).candidate.code)

    def __str__(self) -> str:
        """The recommendation, the table and the code, as text."""
        from regard.choosing.training.table import as_text

        return as_text(self)

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON."""
        from regard.choosing.training.record import as_dict

        return as_dict(self)

    def save(self, path: str | Path) -> Path:
        """Write the report as one HTML file, and return its path. Needs jinja2 and matplotlib."""
        from regard.choosing.report import save_verdict

        return save_verdict(self, path)


def noise_of(found: Spread, several: int = 1) -> float:
    """The difference that noise alone may give: that of the rows alone if there are few seeds."""
    few = found.count < LEAST_SEEDS
    return found.half_of_rows(several) if few else found.half(several)
