"""The stages of a comparison.

The search trains every candidate at every rate from one seed, with successive halving. Where the best rate of
a finalist is the lowest or highest tried, rates beyond it are tried too. The final trains the best candidates,
each at its best rate, from every seed. The control trains the best of them again on shuffled targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from regard.choosing.training.candidates import TrialCandidate
from regard.choosing.training.data import Data, DataParts, parts_of
from regard.choosing.training.storage import Cell, cell_of, take
from regard.choosing.training.trainer import (
    DIVERGED,
    Stopped,
    Training,
    TrainingJob,
    evaluation_steps,
)
from regard.choosing.training.vitals import vitals_of
from regard.measuring.failures import first_line

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.trial import FrozenTrial, Trial

# Successive halving: trials are first compared at a quarter of the steps, and each comparison keeps about
# the better half.
LOOKS, FACTOR = 4, 2
POINTS = 8  # of a learning curve
WIDER = 3.0  # factor between a rate at the end of the grid and the next one beyond it
CONTEST = 2
# Candidates that may be left out are kept if trainings have at least this many steps.
ENOUGH_STEPS = 200
SEARCH_SEED = 0
FINALISTS = "finalists"  # the attribute of the final's study that names them


@dataclass(frozen=True)
class Settings:
    """The settings of a comparison, as plain JSON. Runs with equal settings share their trials.

    Attributes:
        candidates: names of the candidates, the null first.
        rates: learning rates that every candidate tries.
        seeds: seeds of the final; the search has its own.
        steps: steps of one training.
        batch: rows per step.
        metric: name of the reported metric.
        finalists: number of candidates in the final, besides scaled dot.
        standardize: inputs and float targets are standardised.
        contest: version of the rules of the contest; trainings under other rules are not mixed.
    """

    candidates: list[str]
    rates: list[float]
    seeds: list[int]
    steps: int
    batch: int
    metric: str
    finalists: int
    standardize: bool = False
    contest: int = CONTEST

    @property
    def null(self) -> str:
        """The first candidate, the null of all."""
        return self.candidates[0]

    @property
    def ladder(self) -> list[float]:
        """All rates that may be tried: those of the grid, and two beyond each end, lowest first.

        A single rate is no grid: the user fixed it.
        """
        if len(self.rates) < 2:
            return list(self.rates)
        low, high = self.rates[0], self.rates[-1]
        beyond = [low / WIDER**2, low / WIDER, high * WIDER, high * WIDER**2]
        first, second, third, fourth = (float(f"{rate:.3g}") for rate in beyond)
        return [first, second, *self.rates, third, fourth]

    def search_cells(self) -> list[Cell]:
        """The trainings of the search, middle rates first.

        If time runs out, every candidate has then been tried at a reasonable rate.
        """
        order = sorted(range(len(self.rates)), key=lambda i: abs(i - (len(self.rates) - 1) / 2))
        return [
            {"candidate": name, "rate": self.rates[i]} for i in order for name in self.candidates
        ]

    def final_cells(self, chosen: dict[str, float]) -> list[Cell]:
        """The trainings of the final, seed by seed: if time runs out, early seeds are complete."""
        return [
            {"candidate": name, "rate": rate, "seed": seed}
            for seed in self.seeds
            for name, rate in chosen.items()
        ]

    def wider_cells(self, trials: list[FrozenTrial], chosen: dict[str, float]) -> list[Cell]:
        """The next rates beyond the grid, for finalists whose best rate is the last one tried there."""
        return [
            {"candidate": name, "rate": beyond}
            for name, rate in chosen.items()
            if (beyond := self.beyond(rate, tried_rates(trials, name))) is not None
        ]

    def beyond(self, rate: float, tried: set[float]) -> float | None:
        """The rate to try next to the best one, if that is at an end of those tried; else None."""
        ladder, place = self.ladder, self.ladder.index(rate)
        inner = {one for one in tried if one in ladder}
        if rate == max(inner) and place + 1 < len(ladder) and len(ladder) > 1:
            return ladder[place + 1]
        if rate == min(inner) and place > 0:
            return ladder[place - 1]
        return None

    def control_cells(self, name: str, rate: float) -> list[Cell]:
        """The trainings of the control: the best finalist on shuffled targets, from every seed."""
        return [
            {"candidate": name, "rate": rate, "seed": seed, "shuffled": True} for seed in self.seeds
        ]


def halving(steps: int) -> BasePruner:
    """Optuna's pruner for successive halving over the steps of a training."""
    import optuna

    return optuna.pruners.SuccessiveHalvingPruner(
        min_resource=max(steps // LOOKS, 1), reduction_factor=FACTOR
    )


@dataclass
class Stage:
    """Trains the cells of one study until its queue is empty.

    Attributes:
        final: train to the end without halving, and record test quality, curve and vitals.
        watched: the doctor examines the model of the first seed.
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
        """Train one trial of the queue after another."""
        while not self.job.stop():
            taken = take(self.study, self.until)
            if taken is None:
                return
            self.guarded(*taken)
            self.on_trial()

    def guarded(self, trial: Trial, cell: Cell) -> None:
        """Train one trial; an error of the user's model fails this trial only."""
        from optuna import TrialPruned
        from optuna.trial import TrialState

        # The values are fixed by the queue. Suggesting them records them as the trial's parameters.
        trial.suggest_categorical("candidate", self.settings.candidates)
        trial.suggest_categorical("rate", self.settings.ladder)
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
        except Exception as error:  # the user's model may raise anything
            trial.set_user_attr("error", first_line(error))
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            self.study.tell(trial, value)

    def train(self, trial: Trial, cell: Cell) -> float:
        """Train one cell and return its quality on the validation part."""
        from optuna import TrialPruned

        seed = cell.get("seed", SEARCH_SEED)
        candidate, parts = self.candidates[cell["candidate"]], self.parts(seed)
        shuffled = cell.get("shuffled", False)
        if shuffled:
            parts = parts.shuffled(seed)
        # Nulls are never pruned, because others are compared with them; nor are rates beyond the grid,
        # which are tried after halving has decided.
        kept = self.final or candidate.is_null or cell["rate"] not in self.settings.rates
        training = Training(self.job, candidate.make, parts, seed, cell["rate"])
        value = DIVERGED
        for step in evaluation_steps(self.settings.steps, POINTS if self.final else LOOKS):
            training.advance(step)
            value = training.quality(parts.validation)
            trial.report(value, step)
            if not kept and trial.should_prune():
                raise TrialPruned
        if self.final:
            trial.set_user_attr("quality", training.quality(parts.test))
            trial.set_user_attr("tested", training.row_record(parts))
            if self.watched and seed == self.settings.seeds[0] and not shuffled:
                trial.set_user_attr("vitals", vitals_of(training))
        return value

    def parts(self, seed: int) -> DataParts:
        """The data of a seed, cached; data that all seeds share is read once."""
        key = seed if callable(self.data) else 0
        if key not in self.known:
            # Only the latest seed is kept: cells come seed by seed, and data may be large.
            self.known = {key: parts_of(self.data, seed, self.settings.standardize)}
        return self.known[key]


def reached(trial: FrozenTrial) -> tuple[int, float]:
    """The last step of a trial and its quality there; ordered as halving ranks trials."""
    step = trial.last_step
    return (0, DIVERGED) if step is None else (step, trial.intermediate_values[step])


def best_rates(trials: list[FrozenTrial]) -> dict[str, FrozenTrial]:
    """The best trial of each candidate, the best candidate first.

    A trial that reached a later step ranks above one that was pruned earlier.
    """
    found: dict[str, FrozenTrial] = {}
    for trial in trials:
        cell = cell_of(trial)
        if cell is None or trial.last_step is None:
            continue
        name = cell["candidate"]
        if name not in found or reached(trial) > reached(found[name]):
            found[name] = trial
    return dict(sorted(found.items(), key=lambda item: reached(item[1]), reverse=True))


def finalists(
    best: dict[str, FrozenTrial], settings: Settings, candidates: Mapping[str, TrialCandidate]
) -> dict[str, float]:
    """The finalists with their rates: the null of all, the best of the others, and their nulls."""
    others = [name for name in best if name != settings.null][: settings.finalists]
    inside = {settings.null, *others, *(candidates[name].null for name in others)}
    chosen = [name for name in best if name in inside]
    return {name: cell["rate"] for name in chosen if (cell := cell_of(best[name])) is not None}


def known_finalists(final: Study) -> dict[str, float]:
    """The finalists of an earlier run with their rates; empty if it finished no training of the final.

    A resumed run keeps them. With finalists of its own, found by more search, it would lose the seeds that are
    finished, since only seeds that all finalists have count.
    """
    begun = any(trial.state.name == "COMPLETE" for trial in final.get_trials(deepcopy=False))
    return final.user_attrs.get(FINALISTS, {}) if begun else {}


def tried_rates(trials: list[FrozenTrial], name: str) -> set[float]:
    """The rates at which a candidate was trained in the search."""
    cells = [cell_of(trial) for trial in trials if trial.last_step is not None]
    return {cell["rate"] for cell in cells if cell is not None and cell["candidate"] == name}


def curve(trial: FrozenTrial) -> list[tuple[int, float]]:
    """Steps and quality on the validation part."""
    return sorted((step, value) for step, value in trial.intermediate_values.items())


def count_trials(study: Study) -> int:
    """Number of trainings that were started."""
    return sum(trial.last_step is not None for trial in study.get_trials(deepcopy=False))
