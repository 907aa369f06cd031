"""Processes that run a comparison in parallel, several of them on one GPU if there is one.

Each process loads the recipe and its data once, then takes one run after the other from a pipe and writes the run's
file itself, so that nothing is lost if the parent ends. A process that dies costs its run alone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.measuring.failures import first_line
from regard.recipes.comparing.store import THREADS, RunStore
from regard.recipes.comparing.work import Assignment, WorkSource, perform, settings_of

if TYPE_CHECKING:
    from regard.recipes.comparing.runner import CompareRunner

POLL = 0.5  # seconds between two looks at the clock
PAUSE = 0.2  # seconds between two reports of a run's progress


@dataclass
class RunProcess:
    """A process, the pipe to it, and the run that it is busy with."""

    process: BaseProcess
    pipe: Connection
    assignment: Assignment | None = None


def run_parallel(runner: CompareRunner, source: WorkSource, todo: Sequence[Assignment]) -> None:
    """Run the assignments in `runner.jobs` processes; the runner is told what happened.

    Raises:
        OutOfTime: the runner's limit was reached; processes are ended and their runs left for later.
    """
    waiting = list(todo)
    processes = [new_process(runner.store, source) for _ in range(min(runner.jobs, len(todo)))]
    try:
        for one in processes:
            assign(one, waiting, runner)
        while any(one.assignment is not None for one in processes):
            runner.check_time(len(waiting) + sum(one.assignment is not None for one in processes))
            for pipe in wait([one.pipe for one in processes if one.assignment is not None], POLL):
                busy = next(one for one in processes if one.pipe is pipe)
                if receive(busy, runner):
                    if not busy.process.is_alive():
                        processes.remove(busy)
                        if not waiting:
                            continue
                        busy = new_process(runner.store, source)
                        processes.append(busy)
                    assign(busy, waiting, runner)
    finally:
        for one in processes:
            one.process.terminate()
        for one in processes:
            one.process.join()
            one.pipe.close()


def new_process(store: RunStore, source: WorkSource) -> RunProcess:
    """A new process. Spawned, not forked: a forked one could not use the GPU."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    names = (str(store.folder.parent), store.comparison, store.fingerprint, store.device)
    process = context.Process(target=serve, args=(theirs, source, names), daemon=True)
    process.start()
    theirs.close()
    return RunProcess(process, ours)


def assign(one: RunProcess, waiting: list[Assignment], runner: CompareRunner) -> None:
    """Give the next run to a process, if there is one."""
    one.assignment = None
    if not waiting:
        return
    one.assignment = waiting.pop(0)
    runner.progress.begin(one.assignment.label)
    with suppress(OSError):  # it died: `receive` finds the end of its pipe
        one.pipe.send(one.assignment)


def receive(one: RunProcess, runner: CompareRunner) -> bool:
    """Pass on what a process says; whether its run has ended."""
    assert one.assignment is not None
    try:
        kind, said = one.pipe.recv()
    except (EOFError, OSError):
        one.process.join()
        runner.fail(one.assignment, f"its process died with status {one.process.exitcode}")
        return True
    if kind == "at":
        runner.progress.at(one.assignment.label, said)
        return False
    if kind == "failed":
        runner.fail(one.assignment, said)
        return True
    if kind == "disk":
        raise OSError(*said)
    contender = runner.contenders[one.assignment.contender]
    setting = settings_of(contender)[one.assignment.number]
    record = runner.store.read(contender, setting, one.assignment.seed)
    if record is None:
        runner.fail(one.assignment, "its file is missing: the process has other data or settings")
    else:
        runner.finish(one.assignment, record)
    return True


def serve(pipe: Connection, source: WorkSource, names: tuple[str, str, str, str]) -> None:
    """What a process does: load the comparison, then make run after run until the pipe ends."""
    # Ctrl-C reaches the parent, which ends its processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(THREADS)  # for the data too: as many processes as cores
    store, known = RunStore(Path(names[0]), *names[1:]), None
    while True:
        try:
            assignment: Assignment = pipe.recv()
        except EOFError:
            return
        try:
            if known is None:
                known = {one.name: one for one in source.load()[0].contenders}
            perform(known[assignment.contender], assignment, store, Reporter(pipe))
            answer: tuple[str, Any] = ("done", None)
        except OSError as error:
            answer = ("disk", error.args[:2])
        except Exception as error:
            answer = ("failed", first_line(error))
        pipe.send(answer)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # other processes share the GPU


def end_with_parent() -> None:
    """End this process when its parent ends, even in the middle of a run, whose result would be lost."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class Reporter:
    """Sends the share of a run that is done, not more often than a reader can see."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.last = pipe, 0.0

    def __call__(self, share: float) -> None:
        """Send the share, 0 to 1."""
        now = time.monotonic()
        if now - self.last > PAUSE:
            self.last = now
            self.pipe.send(("at", min(max(float(share), 0.0), 1.0)))
