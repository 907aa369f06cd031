"""`compare`: runs a comparison, or what is left of it, and returns the outcome.

First every setting of every contender from the first seed; the setting with the best validation is kept, and no
test row has a say in it. Then the other seeds with that setting alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.measuring.failures import first_line
from regard.measuring.machine import machine
from regard.recipes.comparing.results import Compared, best_first, summed_up
from regard.recipes.comparing.store import RunRecord, RunStore
from regard.recipes.comparing.work import (
    Assignment,
    WorkSource,
    first_assignments,
    later_assignments,
    perform,
    seeds_of,
    settings_of,
)
from regard.recipes.estimator import RecipeError
from regard.recipes.kit import Comparison, Contender

if TYPE_CHECKING:
    from regard.measuring.progress import WorkProgress

KEPT = ""  # what progress is told of a run that was there before


class OutOfTime(Exception):
    """The time limit was reached; the message says how many runs are left."""


class NoProgress:
    """Progress that shows nothing."""

    def begin(self, name: str) -> None:
        """Nothing."""

    def at(self, name: str, fraction: float) -> None:
        """Nothing."""

    def end(self, name: str, outcome: str) -> None:
        """Nothing."""


class CompareRunner:
    """One comparison while it runs.

    Args:
        comparison: what is compared.
        store: of its run files.
        seeds: of the run; the first one chooses settings.
        progress: is told about every run.
        resume: whether runs that are in the store count.
        jobs: processes; more than one needs `source`.
        source: where other processes get the comparison from.
        only: names of contenders; None for all.
        minutes: after which no run begins, and those in other processes are ended; None for no limit.

    Attributes:
        failures: the runs that failed, each with the reason; a contender goes on with its other settings.
    """

    def __init__(
        self,
        comparison: Comparison,
        store: RunStore,
        seeds: Sequence[int],
        *,
        progress: WorkProgress | None = None,
        resume: bool = True,
        jobs: int = 1,
        source: WorkSource | None = None,
        only: Iterable[str] | None = None,
        minutes: float | None = None,
    ) -> None:
        self.comparison, self.store, self.seeds = comparison, store, tuple(seeds)
        self.progress: WorkProgress = progress or NoProgress()
        self.contenders = {one.name: one for one in picked(comparison, only)}
        self.resume, self.jobs, self.source = resume, jobs, source
        self.until = None if minutes is None else time.monotonic() + 60 * minutes
        self.failures: list[tuple[Assignment, str]] = []
        self.records: dict[tuple[str, int, int], RunRecord] = {}
        if jobs > 1 and source is None:
            raise RecipeError(
                f"jobs={jobs} needs source=: other processes load the comparison themselves. "
                "Give a WorkSource, or jobs=1"
            )

    def run(self) -> dict[str, list[RunRecord]]:
        """Run both stages; the runs of every contender that finished, in the order of seeds."""
        # A contender with one setting need not wait until those of others are chosen.
        untuned = {k: 0 for k, one in self.contenders.items() if len(settings_of(one)) == 1}
        first = first_assignments(self.contenders.values(), self.seeds[0])
        self.execute(first + later_assignments(untuned, self.seeds))
        chosen = self.choose()
        tuned = {k: number for k, number in chosen.items() if k not in untuned}
        self.execute(later_assignments(tuned, self.seeds))
        found = {}
        for name, number in chosen.items():
            own = [self.records.get((name, number, seed)) for seed in self.seeds]
            if all(one is not None for one in own):
                found[name] = [one for one in own if one is not None]
        return found

    def choose(self) -> dict[str, int]:
        """For each contender the index of the setting with the best validation; the first of equal ones."""
        metric, found = self.comparison.metric, {}
        for name, contender in self.contenders.items():
            runs = {
                number: self.records[name, number, self.seeds[0]]
                for number in range(len(settings_of(contender)))
                if (name, number, self.seeds[0]) in self.records
            }
            if runs:
                found[name] = min(runs, key=lambda k: best_first(metric, runs[k].validation))
        return found

    def execute(self, assignments: Sequence[Assignment]) -> None:
        """Run what is not in the store yet."""
        todo = [one for one in assignments if not (self.resume and self.kept(one))]
        if self.jobs > 1 and todo:
            from regard.recipes.comparing.workers import run_parallel

            assert self.source is not None
            run_parallel(self, self.source, todo)
            return
        for count, one in enumerate(todo):
            self.check_time(len(todo) - count)
            self.run_here(one)

    def kept(self, one: Assignment) -> bool:
        """Whether the run is in the store; it is then read."""
        contender = self.contenders[one.contender]
        setting = settings_of(contender)[one.number]
        found = self.store.read(contender, setting, one.seed)
        if found is None:
            return False
        self.records[one.contender, one.number, one.seed] = found
        self.progress.begin(one.label)
        self.progress.end(one.label, KEPT)
        return True

    def run_here(self, one: Assignment) -> None:
        """Train and evaluate in this process, and write the file."""
        self.progress.begin(one.label)
        try:
            record = perform(
                self.contenders[one.contender],
                one,
                self.store,
                lambda share: self.progress.at(one.label, min(max(share, 0.0), 1.0)),
            )
        except OSError:  # a full disk is no failure of the contender
            raise
        except Exception as error:
            self.fail(one, first_line(error))
            return
        self.finish(one, record)

    def finish(self, one: Assignment, record: RunRecord) -> None:
        """Keep a run that is done."""
        self.records[one.contender, one.number, one.seed] = record
        # The test quality is not shown: it might lead a reader to stop some runs and not others.
        shown = self.comparison.metric.show(record.validation)
        self.progress.end(one.label, f"validation {shown}")

    def fail(self, one: Assignment, why: str) -> None:
        """Note why a run failed; the others go on."""
        self.failures.append((one, why))
        self.progress.end(one.label, f"failed: {why}")

    def failed(self, found: Mapping[str, Sequence[RunRecord]]) -> dict[str, str]:
        """Reasons by what has no result: a contender, or a setting of one that has a result by its others.

        Such a setting has to be told: its contender had fewer to choose from than the rest.
        """
        told = {}
        for one, why in self.failures:
            if one.contender in found:
                told[one.label] = why
            else:
                told[one.contender] = f"{one.label.removeprefix(f'{one.contender}, ')}: {why}"
        return told

    def check_time(self, left: int) -> None:
        """Raise `OutOfTime` if the limit was reached."""
        if self.until is not None and time.monotonic() > self.until:
            raise OutOfTime(f"stopped at the time limit with {left} runs of this stage left")


def picked(comparison: Comparison, only: Iterable[str] | None) -> list[Contender]:
    """The contenders of those names; all if None.

    Raises:
        RecipeError: there is none of that name, or two share one.
    """
    known = {one.name: one for one in comparison.contenders}
    if len(known) != len(comparison.contenders):
        raise RecipeError(f"two contenders of {comparison.name} share a name")
    if comparison.reference not in known:
        raise RecipeError(f"the reference {comparison.reference!r} is no contender")
    wanted = list(known) if only is None else list(only)
    for name in wanted:
        if name not in known:
            raise RecipeError(
                f"there is no contender {name!r} in {comparison.name}; there are {', '.join(known)}"
            )
    return [known[name] for name in wanted]


def compare(
    comparison: Comparison,
    folder: Path | str,
    *,
    seeds: int | Iterable[int] | None = None,
    jobs: int = 1,
    progress: WorkProgress | None = None,
    resume: bool = True,
    source: WorkSource | None = None,
    only: Iterable[str] | None = None,
    minutes: float | None = None,
    dataset: Mapping[str, Any] | None = None,
    full: bool = False,
    device: torch.device | None = None,
) -> Compared:
    """Run a comparison and return the outcome; finished runs are kept in `folder/runs`.

    Args:
        comparison: what is compared.
        folder: for run files. A run that is there with the same setting and data is not repeated.
        seeds: how many, or which; None for the comparison's own. Settings are chosen by the first.
        jobs: parallel processes; more than one needs `source`.
        progress: is told about every run, by `measuring/progress.py`.
        resume: False runs everything again.
        source: where other processes get the same comparison from.
        only: names of contenders; the reference must be among them. None for all.
        minutes: time limit.
        dataset: facts about the data by `work.facts_of`, its fingerprint among them.
        full: whether this is the full comparison, for the record.
        device: that the comparison trains on; None for the GPU if there is one. A run on another kind of device is
            another run.

    Raises:
        RecipeError: names or seeds that do not fit the comparison.
        ResultError: the reference failed, so that nothing can be compared.
        OutOfTime: the limit was reached; what finished is kept.
    """
    facts = dict(dataset or {})
    where = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    store = RunStore(Path(folder), comparison.name, str(facts.get("fingerprint", "")), where.type)
    runner = CompareRunner(
        comparison,
        store,
        seeds_of(comparison, seeds),
        progress=progress,
        resume=resume,
        jobs=jobs,
        source=source,
        only=only,
        minutes=minutes,
    )
    found = runner.run()
    return summed_up(
        comparison,
        found,
        failed=runner.failed(found),
        machine=machine_of(found, where),
        dataset=facts,
        full=full,
    )


def machine_of(found: Mapping[str, Sequence[RunRecord]], device: torch.device) -> dict[str, Any]:
    """The machine of the runs: that of the first one, and all values where runs differ, such as names or releases."""
    known = [one.machine for own in found.values() for one in own if one.machine]
    if not known:
        return machine(device)
    told = dict(known[0])
    for name in told.keys() - {"load"}:
        values = dict.fromkeys(one.get(name) for one in known)
        if len(values) > 1:
            told[name] = ", ".join(sorted(map(str, values)))
    return told
