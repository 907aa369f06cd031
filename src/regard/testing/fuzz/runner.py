"""Runs many cases in worker processes, saves what they found, and writes the report."""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import torch

from regard.testing.fuzz import op
from regard.testing.fuzz.cases import draw, judge_case
from regard.testing.fuzz.report import as_text, version_here
from regard.testing.fuzz.shrink import shrink
from regard.testing.fuzz.tally import State, Tally

CHUNK = 500
# Cases of a run are numbered from its seed times this.
NUMBERS = 10**9
SHRUNK = 3  # failures of a chunk that are shrunk, which takes longer than finding them
SAVED_EVERY = 5.0


def run_cases(numbers: Iterable[int], engine: str = "any") -> Tally:
    """Run the cases of these numbers in this process."""
    counts: collections.Counter[str] = collections.Counter()
    tally = Tally()
    for number in numbers:
        case = draw(number, engine)
        outcome = judge_case(case)
        tally.calls += 1
        counts.update(outcome.tags)
        if outcome.problems:
            tally.wrong += 1
            small = shrink(case) if len(tally.failures) < SHRUNK else case
            again = judge_case(small).problems if small is not case else outcome.problems
            tally.failures.append(
                {
                    "case": number,
                    "call": str(case),
                    "problems": list(outcome.problems[:4]),
                    "smaller": str(small),
                    "still": list(again[:2]),
                }
            )
    tally.counts = dict(counts)
    return tally


def _begin_worker(device: str = "cpu") -> None:
    torch.set_num_threads(1)
    op.DEVICE[0] = device


def _run_chunk(first: int, count: int, engine: str) -> Tally:
    return run_cases(range(first, first + count), engine)


def chunks_left(state: State) -> list[tuple[int, int, int]]:
    """(index, first number, count) of what is not done."""
    done, found = set(state.done), []
    for index, start in enumerate(range(0, state.calls, state.chunk)):
        if index not in done:
            count = min(state.chunk, state.calls - start)
            found.append((index, state.seed * NUMBERS + start, count))
    return found


def run(
    state: State,
    report: Path | None,
    jobs: int,
    minutes: float | None,
    out: TextIO = sys.stderr,
    device: str = "cpu",
) -> State:
    """Run what is left of a state, saving it on the way; stops after `minutes`."""
    began, before = time.monotonic(), state.seconds
    if version_here() not in state.versions:
        state.versions.append(version_here())
    deadline = float("inf") if minutes is None else began + 60 * minutes
    saved = shown = began
    for index, tally in _finished(chunks_left(state), state.engine, jobs, deadline, device):
        state.tally.add(tally)
        state.done.append(index)
        now = time.monotonic()
        state.seconds = before + now - began
        if report is not None and now - saved > SAVED_EVERY:
            saved = now
            write(state, report)
        if now - shown > SAVED_EVERY:
            shown = now
            print(progress(state), file=out, flush=True)
    if report is not None:
        write(state, report)
    return state


def _finished(
    chunks: list[tuple[int, int, int]], engine: str, jobs: int, deadline: float, device: str
) -> Iterator[tuple[int, Tally]]:
    """Chunks as they are done, in any order; none is begun after the deadline."""
    if jobs == 0:  # in this process
        op.DEVICE[0] = device
        for index, first, count in chunks:
            if time.monotonic() > deadline:
                return
            yield index, _run_chunk(first, count, engine)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, context, _begin_worker, (device,)) as pool:
        waiting = iter(chunks)
        running: dict[concurrent.futures.Future[Tally], int] = {}
        try:
            while True:
                while len(running) < 2 * jobs and time.monotonic() < deadline:
                    chunk = next(waiting, None)
                    if chunk is None:
                        break
                    running[pool.submit(_run_chunk, *chunk[1:], engine)] = chunk[0]
                if not running:
                    return
                done, _ = concurrent.futures.wait(
                    running, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for future in done:
                    yield running.pop(future), future.result()
        except BaseException:
            # Interrupted: the pool would wait for chunks that nobody will read.
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def progress(state: State) -> str:
    """One line: how far it is, and how long it will take."""
    done = state.tally.calls
    rate = done / max(state.seconds, 1e-9)
    left = (state.calls - done) / max(rate, 1e-9)
    hours, minutes = divmod(int(left / 60), 60)
    return (
        f"{done:,} of {state.calls:,} calls, {rate:,.0f} a second, {hours}:{minutes:02d} h left, "
        f"{state.tally.wrong} wrong"
    )


def write(state: State, report: Path) -> None:
    """Save the state beside the report, and the report."""
    report.parent.mkdir(parents=True, exist_ok=True)
    state.save(report.with_suffix(".json"))
    report.write_text(as_text(state), encoding="utf-8")
