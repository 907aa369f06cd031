"""One comparison from start to end: cost of a step, baselines, search, final, control, verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import torch

from regard.choosing.training.asking import anew, named
from regard.choosing.training.baselines import baseline_rows, kept_rows
from regard.choosing.training.candidates import TrialCandidate
from regard.choosing.training.chance import Chance, chance_of
from regard.choosing.training.costs import Cost, measure_costs
from regard.choosing.training.data import parts_of
from regard.choosing.training.errors import ChooseError
from regard.choosing.training.judging import judge
from regard.choosing.training.metrics import goal
from regard.choosing.training.notes import notes_on
from regard.choosing.training.order import ChooseOrder
from regard.choosing.training.results import (
    best_finalist,
    drop_diverged,
    read_control,
    read_edges,
    read_final,
    read_search,
)
from regard.choosing.training.rows import CandidateRow, common_seeds, ordered
from regard.choosing.training.series import fingerprint, pick_name
from regard.choosing.training.stages import (
    CONTEST,
    ENOUGH_STEPS,
    FINALISTS,
    SEARCH_SEED,
    Settings,
    best_rates,
    count_trials,
    finalists,
    known_finalists,
)
from regard.choosing.training.storage import Cell, enqueue, open_study, opened, quiet
from regard.choosing.training.trainer import TrainingJob
from regard.choosing.training.verdict import Verdict
from regard.choosing.training.workers import StageWork, await_others, run_stage
from regard.measuring.machine import calm_threads, machine

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

# Fractions of the time at which the search and the trials of wider rates end, and fraction of a full training
# that a trial of the search takes on average under halving.
SEARCH_SHARE, WIDE_SHARE, SEARCHED = 0.5, 0.6, 0.45
# Fraction of the time for baselines without attention, and the most seconds.
BASELINE_SHARE, BASELINE_SECONDS = 0.1, 60.0
# Bounds on the steps of a training if the user gives none, and the factor by which evaluation slows a
# training down.
FEWEST, MOST, EVALUATION = 20, 2000, 1.25
# How many times a training is started if its process dies.
TRIES = 2


def run(order: ChooseOrder) -> Verdict:
    """Run a comparison and return its verdict; see `regard.choose`."""
    with quiet(), threads(order), opened(order.storage) as storage:
        return Contest(order, storage).run()


@contextmanager
def threads(order: ChooseOrder) -> Iterator[None]:
    """Set torch's threads to the free cores, or to one with several processes; restore them after."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if order.jobs > 1 else calm_threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Contest:
    """One run of `regard.choose`."""

    def __init__(self, order: ChooseOrder, storage: BaseStorage) -> None:
        self.order = order
        self.began = time.time()
        self.until = self.began + 60 * order.minutes
        self.parts = parts_of(order.data, SEARCH_SEED, order.standardize)
        self.goal = goal(order.metric, order.loss, self.parts.validation[0][-1])
        self.place = str(order.storage)
        self.storage = storage
        self.name = pick_name(storage, order.name, order.resume)
        self.interrupted = False

    def run(self) -> Verdict:
        """Measure costs, search, run the final and the control, and return the verdict."""
        order = self.order
        job = TrainingJob(
            order.build, self.goal, 1, order.batch, order.device,
            scaled_target=self.goal.name == "r2" and order.loss is None and order.standardize,
        )  # fmt: skip
        order.progress("measuring the cost of a step", 0.0, 60 * order.minutes)
        costs, failed = measure_costs(job, order.candidates, self.parts)
        self.check_failed(failed)
        search = open_study(self.storage, f"{self.name}/search")
        costs = self.affordable_candidates(search, costs)
        settings = self.agree(search, costs)
        job = replace(job, steps=settings.steps)
        known = {one.name: one for one in order.candidates if one.name in costs}
        work = StageWork(
            self.place, search.study_name, False, job, known, order.data, settings, order.watched
        )
        final = open_study(self.storage, f"{self.name}/final")
        try:
            self.baselines(search, settings)
            if not known_finalists(final):
                self.search(work, search)
            work = replace(work, name=final.study_name, final=True)
            self.final(work, search, final)
            self.control(work, final)
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
        if known is not None and known.get("contest") != CONTEST:
            raise ChooseError(
                f"the comparison {self.name!r} in the storage was begun by an earlier version, whose rules "
                f"differ: finish it with that version, or begin anew: {anew()}"
            )
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
            standardize=order.standardize,
        )
        asked = {**asdict(settings), "data": fingerprint(self.parts)}
        if known is None:
            search.set_user_attr("settings", asked)
        elif differs := [key for key in asked if asked[key] != known.get(key)]:
            raise ChooseError(
                f"the comparison {self.name!r} in the storage has other settings: it differs in "
                f"{', '.join(differs)}. Give the same settings, another {named('storage')}, or {anew()}"
            )
        return settings

    def affordable_candidates(self, search: Study, costs: dict[str, Cost]) -> dict[str, Cost]:
        """The costs of the candidates that take part: optional ones only if the time allows it.

        A resumed run follows the first run, whatever time it has.
        """
        order, known = self.order, search.user_attrs.get("settings")
        if known is None:
            keep = self.fitting_steps(costs) >= (order.steps or ENOUGH_STEPS)
        else:
            keep = not order.optional.isdisjoint(known["candidates"])
        if keep:
            return costs
        self.order = replace(
            order, candidates=[one for one in order.candidates if one.name not in order.optional]
        )
        return {name: cost for name, cost in costs.items() if name not in order.optional}

    def affordable(self, costs: dict[str, Cost]) -> int:
        """The number of steps per training with which all trainings fit into the time."""
        return min(max(self.fitting_steps(costs), FEWEST), MOST)

    def fitting_steps(self, costs: dict[str, Cost]) -> int:
        """The number of steps per training that fits into the time, without bounds."""
        order = self.order
        step = EVALUATION * sum(one.pace for one in costs.values()) / len(costs)
        inside = final_count(
            order.finalists, [one for one in order.candidates if one.name in costs]
        )
        cells = SEARCHED * len(costs) * len(order.rates) + (inside + order.control) * order.seeds
        # About one rate beyond the grid for every other finalist.
        cells += inside / 2 if len(order.rates) > 1 else 0
        left = max(self.until - time.time() - self.baseline_seconds(), 0.0) * order.jobs
        return int(left / (step * cells))

    def baseline_seconds(self) -> float:
        """The time for baselines without attention."""
        order = self.order
        return order.baselines * min(BASELINE_SHARE * 60 * order.minutes, BASELINE_SECONDS)

    def baselines(self, study: Study, settings: Settings) -> None:
        """Train models without attention, and keep their results in the study."""
        order = self.order
        if not order.baselines or "baselines" in study.user_attrs:
            return
        order.progress("training baselines without attention", 0.0, self.until - time.time())
        rows = baseline_rows(
            order.data, self.goal, order.build, settings, time.time() + self.baseline_seconds()
        )
        study.set_user_attr("baselines", rows)

    def search(self, work: StageWork, study: Study) -> None:
        """Train every candidate at every rate from one seed, with successive halving."""
        # The search may use half of the time at most, so that the final always has some.
        cells = work.settings.search_cells()
        until = self.began + SEARCH_SHARE * (self.until - self.began)
        whole = SEARCHED * len(cells) * work.settings.steps
        tick = self.ticker("searching", study, whole, 0.0, search_part(work.settings))
        self.train_cells(work, study, cells, until, tick)
        until = self.began + WIDE_SHARE * (self.until - self.began)
        for _ in work.settings.ladder:
            trials = study.get_trials(deepcopy=False)
            chosen = finalists(best_rates(trials), work.settings, work.candidates)
            wider = work.settings.wider_cells(trials, chosen)
            if not wider or time.time() > until:
                return
            self.train_cells(work, study, wider, until, tick)

    def final(self, work: StageWork, search: Study, study: Study) -> None:
        """Train the best candidates of the search from every seed."""
        chosen = known_finalists(study)
        if not chosen:
            best = best_rates(search.get_trials(deepcopy=False))
            chosen = finalists(best, work.settings, work.candidates)
            study.set_user_attr(FINALISTS, chosen)
        cells = work.settings.final_cells(chosen)
        whole = len(cells) * work.settings.steps
        end = 1 - self.order.control / (len(chosen) + 1)
        tick = self.ticker("comparing", study, whole, search_part(work.settings), end)
        self.train_cells(work, study, cells, self.until, tick)

    def control(self, work: StageWork, study: Study) -> None:
        """Train the best finalist on shuffled targets: what it reaches there is no learning."""
        trials = study.get_trials(deepcopy=False)
        best = best_finalist(trials)
        # The best finalist is known only when all are trained.
        if not self.order.control or best is None or not all(x.state.is_finished() for x in trials):
            return
        cells = work.settings.control_cells(*best)
        whole = (len(trials) + len(cells)) * work.settings.steps
        tick = self.ticker("control: shuffled targets", study, whole, 0.0, 1.0)
        self.train_cells(work, study, cells, self.until, tick)

    def train_cells(
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
        rows = {
            one.name: CandidateRow(
                one,
                cost := costs.get(one.name),
                null=one.null,
                parameters=None if cost is None else cost.parameters,
            )
            for one in self.order.candidates
        }
        for name, why in failed.items():
            if name in rows:
                rows[name].status, rows[name].reason = "failed", why
        searched, compared = search.get_trials(deepcopy=False), final.get_trials(deepcopy=False)
        read_search(rows, searched)
        read_final(rows, compared)
        for row in rows.values():
            drop_diverged(row)
        complete = [row for row in rows.values() if row.quality]
        null = rows[self.order.candidates[0].name]
        if null not in complete:
            raise ChooseError(self.why_no_verdict(null, list(rows.values())))
        # Only seeds that all finalists have finished count, in means as in leads: the mean over more seeds
        # may be higher where the lead is not. A candidate with less than half of scaled dot's seeds is left
        # out, so that it does not cost the others theirs.
        inside = [row for row in complete if 2 * len(row.quality) >= len(null.quality)]
        seeds = common_seeds(inside, settings.seeds)
        if not seeds:
            inside, seeds = [null], common_seeds([null], settings.seeds)
        for row in complete:
            row.keep(seeds if row in inside else ())
        for row in inside:
            row.status = "final"
        best = best_finalist(compared)
        judged = judge(inside, null.candidate.name, seeds, self.order.matters)
        return Verdict(
            *judged, ordered(rows), settings.metric, self.order.matters, seeds, self.interrupted,
            facts={
                "settings": asdict(settings),
                "study": self.name,
                "trainings": count_trials(search) + count_trials(final),
                "seconds": round(time.time() - self.began, 1),
                "machine": machine(self.order.device),
                "notes": notes_on(self.order, settings) + read_edges(rows, searched, settings),
            },
            chance=self.chance(len(seeds)),
            baselines=kept_rows(search.user_attrs.get("baselines", ()), seeds),
            control=None if best is None else read_control(best[0], compared) or None,
        )  # fmt: skip

    def chance(self, seeds: int) -> Chance | None:
        """The quality of guessing; None for a user's own metric."""
        order = self.order
        if callable(order.metric):
            return None
        draws = seeds if callable(order.data) else 1
        return chance_of(self.goal.name, order.build, self.parts.test, draws)

    def why_no_verdict(self, null: CandidateRow, rows: list[CandidateRow]) -> str:
        """The reason there is no verdict."""
        if self.interrupted:
            return (
                f"interrupted before scaled dot was trained once; {named('resume', True)} continues"
            )
        reasons = [row for row in rows if row.reason]
        if len(reasons) == len(rows):
            return f"every candidate failed, {null.candidate.name} the first: {null.reason}"
        if null.reason:
            return f"{null.candidate.name}, the baseline of every comparison, failed: {null.reason}"
        fewer = "" if self.order.steps is None else f" or fewer {named('steps')}"
        return (
            f"{self.order.minutes:g} minutes were not enough to finish one training of scaled dot; "
            f"give more {named('minutes')}{fewer}; with the same settings {named('resume', True)} continues"
        )


def search_part(settings: Settings) -> float:
    """The estimated fraction of all steps that the search takes."""
    search = SEARCHED * len(settings.search_cells())
    finals = min(settings.finalists + 1, len(settings.candidates)) * len(settings.seeds)
    return search / (search + finals)


def final_count(finalists: int, candidates: Sequence[TrialCandidate]) -> int:
    """The most candidates in the final: the nulls of finalists are in it too."""
    nulls = {one.null for one in candidates if one.null}
    return min(finalists + max(len(nulls), 1), len(candidates))
