"""The two stages. Search: every candidate at every rate, halved. Final: the best, from every seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from regard.choosing.training.candidates import TrialCandidate
from regard.choosing.training.data import Data, DataParts, parts_of
from regard.choosing.training.storage import Cell, cell_of, take
from regard.choosing.training.trainer import DIVERGED, Stopped, Training, TrainingJob, marks
from regard.choosing.training.vitals import vitals_of
from regard.measuring.graphs import first_line

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.trial import FrozenTrial, Trial

# Halving: the first look is at a quarter of the steps, and each keeps about the better half.
LOOKS, FACTOR = 4, 2
POINTS = 8  # of a learning curve
SEARCH_SEED = 0


@dataclass(frozen=True)
class Settings:
    """What makes two runs the same comparison: they share trials; all is plain JSON.

    Attributes:
        candidates: their names, the null first.
        rates: learning rates that every candidate tries.
        seeds: of the final trainings; the search has one of its own.
        steps: of one training.
        batch: rows in a step.
        metric: the name of what is reported.
        finalists: how many candidates the final has, besides scaled dot.
    """

    candidates: list[str]
    rates: list[float]
    seeds: list[int]
    steps: int
    batch: int
    metric: str
    finalists: int

    @property
    def null(self) -> str:
        """What all others are compared with."""
        return self.candidates[0]

    def search_cells(self) -> list[Cell]:
        """Middle rates first: if time runs out, every candidate has had a fair one."""
        order = sorted(range(len(self.rates)), key=lambda i: abs(i - (len(self.rates) - 1) / 2))
        return [
            {"candidate": name, "rate": self.rates[i]} for i in order for name in self.candidates
        ]

    def final_cells(self, chosen: dict[str, float]) -> list[Cell]:
        """Seed by seed: if time runs out, the seeds that are done are done for all."""
        return [
            {"candidate": name, "rate": rate, "seed": seed}
            for seed in self.seeds
            for name, rate in chosen.items()
        ]


def halving(steps: int) -> BasePruner:
    """Optuna's successive halving over the steps of a training."""
    import optuna

    return optuna.pruners.SuccessiveHalvingPruner(
        min_resource=max(steps // LOOKS, 1), reduction_factor=FACTOR
    )


@dataclass
class Stage:
    """Trains cells of one study until its queue is empty.

    Attributes:
        final: nothing is halved; the result on the test part, a curve and vitals are kept.
        watched: whether the doctor looks at the first seed's model.
    """

    study: Study
    job: TrainingJob
    candidates: dict[str, TrialCandidate]
    data: Data
    settings: Settings
    final: bool
    until: float
    watched: bool = True
    on_trial: Callable[[], None] = lambda: None
    known: dict[int, DataParts] = field(default_factory=dict)

    def work(self) -> None:
        """Take trial after trial."""
        while not self.job.stop():
            taken = take(self.study, self.until)
            if taken is None:
                return
            self.guarded(*taken)
            self.on_trial()

    def guarded(self, trial: Trial, cell: Cell) -> None:
        """One trial; what the user's model raises ends it and no other."""
        from optuna import TrialPruned
        from optuna.trial import TrialState

        trial.suggest_categorical("candidate", self.settings.candidates)
        trial.suggest_categorical("rate", self.settings.rates)
        if self.final:
            trial.suggest_categorical("seed", self.settings.seeds)
        try:
            value = self.train(trial, cell)
        except TrialPruned:
            self.study.tell(trial, state=TrialState.PRUNED)
        except (Stopped, KeyboardInterrupt) as error:
            trial.set_user_attr("error", "stopped: there was no time left")
            self.study.tell(trial, state=TrialState.FAIL)
            if isinstance(error, KeyboardInterrupt):
                raise
        except Exception as error:  # whatever the user's model raises
            trial.set_user_attr("error", first_line(error))
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            self.study.tell(trial, value)

    def train(self, trial: Trial, cell: Cell) -> float:
        """The quality by which rates are chosen, after all steps."""
        from optuna import TrialPruned

        seed = cell.get("seed", SEARCH_SEED)
        candidate, parts = self.candidates[cell["candidate"]], self.parts(seed)
        training = Training(self.job, candidate.make, parts, seed, cell["rate"])
        value = DIVERGED
        for step in marks(self.settings.steps, POINTS if self.final else LOOKS):
            training.advance(step)
            value = training.quality(parts.validation)
            trial.report(value, step)
            # The null is what all others are compared with: it always gets to the end.
            if not self.final and trial.should_prune() and candidate.name != self.settings.null:
                raise TrialPruned
        if self.final:
            trial.set_user_attr("quality", training.quality(parts.test))
            if self.watched and seed == self.settings.seeds[0]:
                trial.set_user_attr("vitals", vitals_of(training))
        return value

    def parts(self, seed: int) -> DataParts:
        """The data of a seed; data that is the same for all seeds is read once."""
        key = seed if callable(self.data) else 0
        if key not in self.known:
            self.known = {key: parts_of(self.data, seed)}
        return self.known[key]


def reached(trial: FrozenTrial) -> tuple[int, float]:
    """How far it came, and how good it was there: the order of halving."""
    step = trial.last_step
    return (0, DIVERGED) if step is None else (step, trial.intermediate_values[step])


def best_rates(trials: list[FrozenTrial]) -> dict[str, FrozenTrial]:
    """Of each candidate the trial that came farthest, and of those the best; best candidate first."""
    found: dict[str, FrozenTrial] = {}
    for trial in trials:
        cell = cell_of(trial)
        if cell is None or trial.last_step is None:
            continue
        name = cell["candidate"]
        if name not in found or reached(trial) > reached(found[name]):
            found[name] = trial
    return dict(sorted(found.items(), key=lambda item: reached(item[1]), reverse=True))


def finalists(best: dict[str, FrozenTrial], settings: Settings) -> dict[str, float]:
    """The rate of each candidate in the final: the null, and the best of the others."""
    others = [name for name in best if name != settings.null][: settings.finalists]
    chosen = [name for name in best if name == settings.null or name in others]
    return {name: cell["rate"] for name in chosen if (cell := cell_of(best[name])) is not None}


def curve(trial: FrozenTrial) -> list[tuple[int, float]]:
    """Quality on the validation part against steps."""
    return sorted((step, value) for step, value in trial.intermediate_values.items())
