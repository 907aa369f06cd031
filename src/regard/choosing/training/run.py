"""One comparison from start to end: cost of a step, search, final, verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.choosing.training.candidates import TrialCandidate
from regard.choosing.training.chance import Chance, chance_of
from regard.choosing.training.costs import Cost, measure_costs
from regard.choosing.training.data import Data, parts_of
from regard.choosing.training.errors import ChooseError
from regard.choosing.training.metrics import goal
from regard.choosing.training.series import fingerprint, pick_name
from regard.choosing.training.stages import (
    SEARCH_SEED,
    Settings,
    best_rates,
    curve,
    finalists,
    reached,
)
from regard.choosing.training.storage import (
    Cell,
    cell_of,
    enqueue,
    open_study,
    opened,
    quiet,
)
from regard.choosing.training.trainer import DIVERGED, TrainingJob
from regard.choosing.training.verdict import CandidateRow, Verdict, common_seeds, judge, ordered
from regard.choosing.training.workers import StageWork, await_others, run_stage
from regard.measuring.machine import calm_threads, machine

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

# Fraction of the time that the search may take, and fraction of a full training that a trial of the
# search takes on average under halving.
SEARCH_SHARE, SEARCHED = 0.5, 0.45
# Bounds on the steps of a training if the user gives none, and the factor by which evaluation slows a
# training down.
FEWEST, MOST, EVALUATION = 20, 2000, 1.25
# How many times a training is started if its process dies.
TRIES = 2

ProgressCallback = Callable[[str, float, float], None]
"""Called every so often with a label, the fraction done and the seconds left."""


@dataclass(frozen=True)
class ChooseOrder:
    """The checked arguments of `regard.choose`."""

    build: Callable[..., Any]
    data: Data
    candidates: list[TrialCandidate]
    metric: Any
    loss: Any
    minutes: float
    seeds: int
    steps: int | None
    batch: int
    rates: Sequence[float]
    matters: float
    finalists: int
    storage: str | Path
    name: str
    resume: bool
    jobs: int
    device: torch.device
    watched: bool
    progress: ProgressCallback


def run(order: ChooseOrder) -> Verdict:
    """Run a comparison and return its verdict; see `regard.choose`."""
    with quiet(), threads(order), opened(order.storage) as storage:
        return Comparison(order, storage).run()


@contextmanager
def threads(order: ChooseOrder) -> Iterator[None]:
    """Set torch's threads to the free cores, or to one with several processes; restore them after."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if order.jobs > 1 else calm_threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Comparison:
    """One run of `regard.choose`."""

    def __init__(self, order: ChooseOrder, storage: BaseStorage) -> None:
        self.order = order
        self.began = time.time()
        self.until = self.began + 60 * order.minutes
        self.parts = parts_of(order.data, SEARCH_SEED)
        self.goal = goal(order.metric, order.loss, self.parts.validation[0][-1])
        self.place = str(order.storage)
        self.storage = storage
        self.name = pick_name(storage, order.name, order.resume)
        self.interrupted = False

    def run(self) -> Verdict:
        """Measure costs, search, run the final, and return the verdict."""
        order = self.order
        job = TrainingJob(order.build, self.goal, 1, order.batch, order.device)
        order.progress("measuring the cost of a step", 0.0, 60 * order.minutes)
        costs, failed = measure_costs(job, order.candidates, self.parts)
        self.check_failed(failed)
        search = open_study(self.storage, f"{self.name}/search")
        settings = self.agree(search, costs)
        job = replace(job, steps=settings.steps)
        known = {one.name: one for one in order.candidates if one.name in costs}
        work = StageWork(
            self.place, search.study_name, False, job, known, order.data, settings, order.watched
        )
        final = open_study(self.storage, f"{self.name}/final")
        try:
            self.search(work, search)
            self.final(replace(work, name=final.study_name, final=True), search, final)
        except KeyboardInterrupt:
            self.interrupted = True
        return self.verdict(settings, costs, failed, search, final)

    def check_failed(self, failed: dict[str, str]) -> None:
        """Raise ChooseError if all candidates failed, or scaled dot did: nothing can be compared."""
        if len(failed) == len(self.order.candidates):
            name, why = next(iter(failed.items()))
            raise ChooseError(f"every candidate failed, {name} the first: {why}")
        null = self.order.candidates[0].name
        if null in failed:
            raise ChooseError(f"{null}, the baseline of every comparison, failed: {failed[null]}")

    def agree(self, search: Study, costs: dict[str, Cost]) -> Settings:
        """The settings of the comparison.

        Raises:
            ChooseError: a resumed comparison had other settings.
        """
        order = self.order
        # A resumed run without steps= takes those of the first run: the time left is another one.
        known = search.user_attrs.get("settings")
        steps = order.steps
        if steps is None:
            steps = known["steps"] if known else self.affordable(costs)
        settings = Settings(
            candidates=[one.name for one in order.candidates if one.name in costs],
            rates=list(order.rates),
            seeds=list(range(1, order.seeds + 1)),
            steps=steps,
            batch=order.batch,
            metric=self.goal.name,
            finalists=order.finalists,
        )
        asked = {**asdict(settings), "data": fingerprint(self.parts)}
        if known is None:
            search.set_user_attr("settings", asked)
        elif differs := [key for key in asked if asked[key] != known.get(key)]:
            raise ChooseError(
                f"the comparison {self.name!r} in the storage has other settings: it differs in "
                f"{', '.join(differs)}. Give the same settings, another name= or storage=, or resume=False"
            )
        return settings

    def affordable(self, costs: dict[str, Cost]) -> int:
        """The number of steps per training with which all trainings fit into the time."""
        order = self.order
        step = EVALUATION * sum(one.pace for one in costs.values()) / len(costs)
        cells = SEARCHED * len(costs) * len(order.rates) + (order.finalists + 1) * order.seeds
        left = max(self.until - time.time(), 0.0) * order.jobs
        return min(max(int(left / (step * cells)), FEWEST), MOST)

    def search(self, work: StageWork, study: Study) -> None:
        """Train every candidate at every rate from one seed, with successive halving."""
        # The search may use half of the time at most, so that the final always has some.
        cells = work.settings.search_cells()
        until = self.began + SEARCH_SHARE * (self.until - self.began)
        whole = SEARCHED * len(cells) * work.settings.steps
        tick = self.ticker("searching", study, whole, 0.0, search_part(work.settings))
        self.empty(work, study, cells, until, tick)

    def final(self, work: StageWork, search: Study, study: Study) -> None:
        """Train the best candidates of the search from every seed."""
        best = best_rates(search.get_trials(deepcopy=False))
        chosen = finalists(best, work.settings)
        cells = work.settings.final_cells(chosen)
        whole = len(cells) * work.settings.steps
        tick = self.ticker("comparing", study, whole, search_part(work.settings), 1.0)
        self.empty(work, study, cells, self.until, tick)

    def empty(
        self,
        work: StageWork,
        study: Study,
        cells: list[Cell],
        until: float,
        tick: Callable[[], None],
    ) -> None:
        """Train the cells; cells whose process died are tried once more."""
        for _ in range(TRIES):
            enqueue(study, cells)
            run_stage(work, self.order.jobs, until, tick)
            if not await_others(study, until, tick):
                return

    def ticker(
        self, label: str, study: Study, whole: float, low: float, high: float
    ) -> Callable[[], None]:
        """A function that reports the progress of a stage, by the steps in the storage.

        The storage counts the steps of other processes and machines too.
        """
        began = time.time()

        def tick() -> None:
            trials = study.get_trials(deepcopy=False)
            steps = sum(trial.last_step or 0 for trial in trials)
            # `whole` is an estimate for the search, since halving decides how many steps there are.
            part = min(steps / max(whole, 1), 1.0)
            left = self.until - time.time()
            if part > 0.05:
                pace = (time.time() - began) / part
                rest = (1 - high) / (high - low)  # the later stage, in units of this one
                left = min(left, pace * (1 - part + rest))
            ended = sum(trial.state.is_finished() for trial in trials)
            said = f"{label}: {ended} trainings done"
            self.order.progress(said, low + (high - low) * part, max(left, 0.0))

        return tick

    def verdict(
        self,
        settings: Settings,
        costs: dict[str, Cost],
        failed: dict[str, str],
        search: Study,
        final: Study,
    ) -> Verdict:
        """The verdict from the trainings in the storage, of this run and earlier ones."""
        rows = {one.name: CandidateRow(one, costs.get(one.name)) for one in self.order.candidates}
        for name, why in failed.items():
            rows[name].status, rows[name].reason = "failed", why
        read_search(rows, search.get_trials(deepcopy=False))
        read_final(rows, final.get_trials(deepcopy=False))
        for row in rows.values():
            drop_diverged(row)
        complete = [row for row in rows.values() if row.quality]
        null = rows[self.order.candidates[0].name]
        if null not in complete:
            raise ChooseError(self.nothing(null, list(rows.values())))
        # Only seeds that all finalists have finished count. A candidate with less than half of scaled
        # dot's seeds is left out, so that it does not cost the others theirs.
        inside = [row for row in complete if 2 * len(row.quality) >= len(null.quality)]
        seeds = common_seeds(inside, settings.seeds)
        if not seeds:
            inside, seeds = [null], common_seeds([null], settings.seeds)
        for row in inside:
            row.status = "final"
        judged = judge(inside, null.candidate.name, seeds, self.order.matters)
        return Verdict(
            *judged, ordered(rows), settings.metric, self.order.matters, seeds, self.interrupted,
            facts={
                "settings": asdict(settings),
                "study": self.name,
                "trainings": count_trials(search) + count_trials(final),
                "seconds": round(time.time() - self.began, 1),
                "machine": machine(self.order.device),
            },
            chance=self.chance(len(seeds)),
        )  # fmt: skip

    def chance(self, seeds: int) -> Chance | None:
        """The quality of guessing; None for a user's own metric."""
        order = self.order
        if callable(order.metric):
            return None
        draws = seeds if callable(order.data) else 1
        return chance_of(self.goal.name, order.build, self.parts.test, draws)

    def nothing(self, null: CandidateRow, rows: list[CandidateRow]) -> str:
        """The reason there is no verdict."""
        if self.interrupted:
            return "interrupted before scaled dot was trained once; resume=True continues"
        reasons = [row for row in rows if row.reason]
        if len(reasons) == len(rows):
            return f"every candidate failed, {null.candidate.name} the first: {null.reason}"
        if null.reason:
            return f"{null.candidate.name}, the baseline of every comparison, failed: {null.reason}"
        return (
            f"{self.order.minutes:g} minutes were not enough to finish one training of scaled dot; "
            "give more minutes, or fewer steps=; with the same settings resume=True continues"
        )


def read_search(rows: dict[str, CandidateRow], trials: list[FrozenTrial]) -> None:
    """Fill in the best rate, the last step reached and the errors of the search."""
    for trial in trials:
        cell, why = cell_of(trial), trial.user_attrs.get("error")
        # "stopped" is the end of the time or of a process, not a failure of the candidate.
        if cell is not None and why and not why.startswith("stopped") and cell["candidate"] in rows:
            row = rows[cell["candidate"]]
            row.status, row.reason = "failed", why
    for name, trial in best_rates(trials).items():
        cell = cell_of(trial)
        if name in rows and cell is not None:
            row = rows[name]
            row.rate, row.searched = cell["rate"], reached(trial)
            row.curve = curve(trial)
            # One rate that worked is enough: errors at other rates do not fail the candidate.
            row.status, row.reason = "halved", ""


def read_final(rows: dict[str, CandidateRow], trials: list[FrozenTrial]) -> None:
    """Fill in qualities by seed, mean curves and vitals of the final."""
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    for trial in trials:
        cell = cell_of(trial)
        if cell is None or cell["candidate"] not in rows:
            continue
        row = rows[cell["candidate"]]
        if (why := trial.user_attrs.get("error")) and not why.startswith("stopped"):
            row.status, row.reason = "failed", why
        if trial.value is None or "quality" not in trial.user_attrs:
            continue
        row.quality[cell["seed"]] = float(trial.user_attrs["quality"])
        row.vitals = trial.user_attrs.get("vitals", row.vitals)
        curves.setdefault(cell["candidate"], []).append(curve(trial))
    for name, found in curves.items():
        steps = [step for step, _ in found[0]]
        values = zip(*([value for _, value in one] for one in found), strict=True)
        means = [sum(at) / len(at) for at in values]
        rows[name].curve = list(zip(steps, means, strict=True))


def drop_diverged(row: CandidateRow) -> None:
    """Fail a candidate whose metric was not finite at some seed: there is no difference to pair."""
    lost = [seed for seed, value in sorted(row.quality.items()) if value <= DIVERGED]
    if lost:
        seeds = ", ".join(map(str, lost))
        row.status, row.quality = "failed", {}
        row.reason = f"it diverged: its metric was no number at seed {seeds}; try lower rates"


def search_part(settings: Settings) -> float:
    """The estimated fraction of all steps that the search takes."""
    search = SEARCHED * len(settings.search_cells())
    finals = min(settings.finalists + 1, len(settings.candidates)) * len(settings.seeds)
    return search / (search + finals)


def count_trials(study: Study) -> int:
    """Number of trainings that were started."""
    return sum(trial.last_step is not None for trial in study.get_trials(deepcopy=False))
