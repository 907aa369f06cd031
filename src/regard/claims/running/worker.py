"""The worker process that runs experiments: it receives one claim after another through a pipe."""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from regard.claims.claim import Claim, Judgement, Numbers, Run
from regard.claims.running.store import check_facts, check_plain
from regard.measuring.machine import calm_threads, machine
from regard.text import Language

# Shortest time between two progress messages, in seconds.
PAUSE = 0.1
LONGEST_ERROR = 200


@dataclass(frozen=True)
class ClaimJob:
    """A claim for a worker to run; with `numbers` the worker only judges and draws them.

    A registered claim is sent as its class, because its ingredients may include objects that cannot be
    pickled, such as lambdas.
    """

    claim: Claim | type[Claim]
    full: bool
    seed: int
    device: str
    threads: int
    language: Language
    numbers: Numbers | None = None


@dataclass(frozen=True)
class Done:
    """What a worker measured, judged and drew; `figures` by file suffix."""

    numbers: Numbers
    judgement: Judgement
    seconds: float
    hardware: dict[str, Any]
    figures: dict[str, bytes]


@dataclass(frozen=True)
class Failed:
    """A claim that could not be finished: `error` is the reason in one line, `log` the whole traceback."""

    error: str
    log: str


def work(connection: Connection) -> None:
    """Main function of a worker process: serve jobs until the parent closes the pipe or ends.

    Ctrl-C is ignored here; the parent handles it and stops its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    serve(connection)


def end_with_parent() -> None:
    """End this process when its parent ends, even by a signal: no process would take the results."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def serve(connection: Connection) -> None:
    """Answer every job with its progress (floats) and then one `Done` or `Failed`, until the pipe closes."""
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            return
        except Exception as error:  # the claim's module cannot be imported in this process
            connection.send(failed(error, ""))
        else:
            connection.send(perform(job, teller(connection)))


def teller(connection: Connection) -> Callable[[float], None]:
    """A function that sends the finished fraction to the parent, at most once in `PAUSE` seconds."""
    last = -math.inf

    def tell(fraction: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PAUSE:
            last = now
            connection.send(min(max(float(fraction), 0.0), 1.0))

    return tell


def perform(job: ClaimJob, tell: Callable[[float], None]) -> Done | Failed:
    """Measure, judge and draw, turning any error into `Failed`; the claim's prints go to the log."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            return measured(job, tell)
    except (Exception, SystemExit) as error:
        return failed(error, printed.getvalue())


def measured(job: ClaimJob, tell: Callable[[float], None]) -> Done:
    """Measure, judge and draw; errors propagate."""
    from regard.figures.canvas import drawn

    claim = job.claim() if isinstance(job.claim, type) else job.claim
    device = torch.device(job.device)
    torch.set_num_threads(job.threads)
    if claim.alone:
        torch.set_num_threads(calm_threads())
    # Results must not depend on the claims that this process ran before.
    torch.manual_seed(job.seed)
    hardware = machine(device)
    began = time.perf_counter()
    numbers = job.numbers
    if numbers is None:
        numbers = plain(claim.measure(Run(job.full, job.seed, device, tell)))
    seconds = time.perf_counter() - began
    judgement = claim.judge(numbers)
    check_facts(judgement)
    figures = drawn(lambda canvas: claim.draw(numbers, canvas), job.language)
    return Done(numbers, judgement, seconds, hardware, figures)


def plain(numbers: Numbers) -> Numbers:
    """The numbers as they will be read back from the file, so that the verdict now is the verdict later.

    Raises:
        ValueError: they are not plain JSON.
    """
    try:
        found = json.loads(json.dumps(numbers, allow_nan=False))
        check_plain(found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"its numbers are not plain JSON: {error}") from error
    return found


def failed(error: BaseException, printed: str) -> Failed:
    """The error in one line, and its traceback after what the claim had printed."""
    line = " ".join(f"{type(error).__name__}: {error}".split())
    long = "".join(traceback.format_exception(error))
    return Failed(line[:LONGEST_ERROR], f"{printed}\n{long}" if printed else long)
