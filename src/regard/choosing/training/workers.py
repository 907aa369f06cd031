"""Runs a stage in one or several processes, which share only the storage and its queue of trials."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from regard.choosing.training.candidates import TrialCandidate
from regard.choosing.training.data import Data
from regard.choosing.training.errors import ChooseError, StorageError
from regard.choosing.training.stages import Settings, Stage, halving
from regard.choosing.training.storage import abandoned, close, open_study, opened, quiet
from regard.choosing.training.trainer import TrainingJob

if TYPE_CHECKING:
    from optuna import Study

DIED = "stopped: its process died"
PAUSE = 0.2  # seconds between two reports of progress


@dataclass(frozen=True)
class StageWork:
    """Everything that a process needs to work on a stage; pickled if processes are spawned."""

    place: str
    name: str
    final: bool
    job: TrainingJob
    candidates: dict[str, TrialCandidate]
    data: Data
    settings: Settings
    watched: bool


def carry_out(work: StageWork, until: float, stop: Callable[[], bool]) -> None:
    """Work on the stage in this process, with its own connection to the storage."""
    pruner = None if work.final else halving(work.settings.steps)
    with opened(work.place) as storage:
        Stage(
            open_study(storage, work.name, pruner),
            replace(work.job, stop=stop),
            work.candidates,
            work.data,
            work.settings,
            work.final,
            until,
            work.watched,
        ).work()


def run_stage(work: StageWork, jobs: int, until: float, tick: Callable[[], None]) -> None:
    """Train until the queue is empty or the time is over.

    Args:
        work: the stage.
        jobs: number of processes; 1 runs the stage in this process.
        until: when to stop, in seconds of `time.time()`.
        tick: called every so often to report progress.
    """
    if jobs == 1:
        last = [0.0]

        # `stop` is asked before every step of a training, which makes it the place to report progress.
        def stop() -> bool:
            now = time.time()
            if now - last[0] > PAUSE:
                last[0] = now
                tick()
            return now > until

        carry_out(work, until, stop)
    else:
        spread(work, jobs, until, tick)


def spread(work: StageWork, jobs: int, until: float, tick: Callable[[], None]) -> None:
    """Start the processes and wait for them."""
    # A forked process inherits the user's functions, including closures, which cannot be pickled for a
    # spawned one. CUDA does not work after a fork.
    forked = sys.platform == "linux" and not torch.cuda.is_available()
    context: Any = multiprocessing.get_context("fork" if forked else "spawn")
    halt, lost = context.Event(), context.SimpleQueue()
    arguments = (work, until, halt, lost, os.getpid())
    processes = [context.Process(target=serve, args=arguments) for _ in range(jobs)]
    try:
        start(processes)
        while any(process.is_alive() for process in processes):
            time.sleep(PAUSE)
            tick()
    finally:
        halt.set()
        for process in processes:
            if process.pid is not None:
                process.join()
    if not lost.empty():
        raise StorageError(lost.get())
    if all(process.exitcode for process in processes):
        codes = ", ".join(str(process.exitcode) for process in processes)
        raise ChooseError(f"every process died (exit codes {codes}); see above")


def start(processes: list[Any]) -> None:
    """Start all processes.

    Raises:
        ChooseError: the user's functions cannot be pickled.
    """
    with warnings.catch_warnings():
        # Python warns about forking a process with threads; these are torch's, which a child does not use.
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        for process in processes:
            try:
                process.start()
            except (AttributeError, TypeError, ValueError) as error:
                raise ChooseError(
                    "jobs: build_model, data, metric and loss must be module-level functions, so that "
                    f"another process can import them; or use jobs=1 ({error})"
                ) from None


def serve(work: StageWork, until: float, halt: Any, lost: Any, parent: int) -> None:
    """The main function of a worker process; it reports a failed storage through `lost`."""
    # Ctrl-C reaches all processes of the terminal; the parent handles it and sets `halt`.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A fork has only the calling thread: torch's thread pool of the parent does not exist here.
    torch.set_num_threads(1)

    def stop() -> bool:
        # Without its parent, which alone sets `halt`, the process would train until the time limit.
        orphan = os.getppid() != parent
        return orphan or halt.is_set() or time.time() > until

    with quiet():
        try:
            carry_out(work, until, stop)
        except StorageError as error:
            lost.put(str(error))


def await_others(study: Study, until: float, tick: Callable[[], None]) -> int:
    """Wait for trials that other machines still run; returns how many abandoned trials were closed."""
    from optuna.trial import TrialState

    closed = 0
    while True:
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        left = [trial for trial in running if not abandoned(trial)]
        for trial in running:
            if trial not in left:
                close(study, trial, DIED)
                closed += 1
        if not left or time.time() > until:
            return closed
        time.sleep(PAUSE)
        tick()
