"""The process that experiments run in: it takes one claim after another from a pipe."""

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

# Seconds between two words about how far it is.
PAUSE = 0.1
LONGEST_ERROR = 200


@dataclass(frozen=True)
class ClaimJob:
    """What a worker is asked for; with `numbers` there is nothing to measure, only to draw.

    A claim as it is registered travels as its class: its ingredients may be things that cannot, as
    lambdas.
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
    """What came out; `figures` by suffix."""

    numbers: Numbers
    judgement: Judgement
    seconds: float
    hardware: dict[str, Any]
    figures: dict[str, bytes]


@dataclass(frozen=True)
class Failed:
    """A claim that could not be finished: why in one line, and at length."""

    error: str
    log: str


def work(connection: Connection) -> None:
    """A worker's whole life. It ends with its parent, however that ends; Ctrl-C is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    serve(connection)


def end_with_parent() -> None:
    """Nobody waits for the results of a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def serve(connection: Connection) -> None:
    """Answer every job with fractions of 1 and then one `Done` or `Failed`, until the pipe ends."""
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            return
        except Exception as error:  # the claim's module cannot be loaded here
            connection.send(failed(error, ""))
        else:
            connection.send(perform(job, teller(connection)))


def teller(connection: Connection) -> Callable[[float], None]:
    """Sends how far it is, but not too often."""
    last = -math.inf

    def tell(fraction: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PAUSE:
            last = now
            connection.send(min(max(float(fraction), 0.0), 1.0))

    return tell


def perform(job: ClaimJob, tell: Callable[[float], None]) -> Done | Failed:
    """Measure, judge and draw; what the claim prints is kept for the log."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            return measured(job, tell)
    except (Exception, SystemExit) as error:
        return failed(error, printed.getvalue())


def measured(job: ClaimJob, tell: Callable[[float], None]) -> Done:
    """The job, without a net."""
    from regard.figures.canvas import drawn

    claim = job.claim() if isinstance(job.claim, type) else job.claim
    device = torch.device(job.device)
    torch.set_num_threads(job.threads)
    if claim.alone:
        torch.set_num_threads(calm_threads())
    torch.manual_seed(job.seed)  # which claim ran here before does not matter
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
    """As they will be read from the file: what is judged now is what can be judged later."""
    try:
        found = json.loads(json.dumps(numbers, allow_nan=False))
        check_plain(found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"its numbers are not plain JSON: {error}") from error
    return found


def failed(error: BaseException, printed: str) -> Failed:
    """The last line of a traceback, and all of it."""
    line = " ".join(f"{type(error).__name__}: {error}".split())
    long = "".join(traceback.format_exception(error))
    return Failed(line[:LONGEST_ERROR], f"{printed}\n{long}" if printed else long)
