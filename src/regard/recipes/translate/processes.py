"""Runs in processes of their own, one JSON file each: what exists is skipped, what was ended goes on.

On one GPU several trainings at once finish sooner than one after the other, since a small network does not fill it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from regard.measuring.files import json_bytes, write_atomic

POLL = 0.2  # seconds between two looks at the processes


@dataclass(frozen=True)
class TrainingRun:
    """One training.

    Attributes:
        name: of the file without ending.
        facts: what the file says of it: contender, setting, seed.
        arguments: of the translator.
    """

    name: str
    facts: Mapping[str, Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where runs find and leave things.

    Attributes:
        out: folder of the result files.
        checkpoints: folder of checkpoints; each is removed once its result is written.
        data: the user's folder of public sets; None for `REGARD_DATA`.
        dataset: name of the set.
        limit: training pairs to keep; None for all.
    """

    out: Path
    checkpoints: Path
    data: str | None
    dataset: str
    limit: int | None = None

    def result(self, run: TrainingRun) -> Path:
        """The file of a run."""
        return self.out / f"{run.name}.json"

    def results(self) -> list[dict[str, Any]]:
        """All results so far that are of runs."""
        found = [json.loads(path.read_text()) for path in sorted(self.out.glob("*.json"))]
        return [one for one in found if "contender" in one]


Worker = Callable[[TrainingRun, Place], dict[str, Any]]


def short(name: str) -> str:
    """A name for a file."""
    return re.sub(r"\W+", "_", name)


def measured(worker: Worker, run: TrainingRun, place: Place) -> None:
    """Make a run and write its file: the body of a process."""
    import torch

    torch.set_num_threads(1)  # processes share the cores; a second thread each would only wait
    try:
        found = worker(run, place)
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
    write_atomic(place.result(run), json_bytes({**run.facts, **found}))


def run_all(
    runs: Sequence[TrainingRun], worker: Worker, place: Place, jobs: int, deadline: float
) -> bool:
    """Make the runs that have no file yet, `jobs` at once; whether all have one in the end.

    Args:
        runs: in the order in which they are begun.
        worker: trains and evaluates; a function of a module, since processes are spawned.
        place: of data and results.
        jobs: processes at once.
        deadline: in seconds of `time.monotonic`: then processes are ended, and go on from their checkpoints
            when all is started again.
    """
    left = [one for one in runs if not place.result(one).exists()]
    # Spawned, not forked: a forked process cannot use a GPU that its parent has touched.
    context = multiprocessing.get_context("spawn")
    active: list[tuple[TrainingRun, BaseProcess, float]] = []
    done = len(runs) - len(left)
    while (left or active) and time.monotonic() < deadline:
        while left and len(active) < jobs:
            run = left.pop(0)
            process = context.Process(target=measured, args=(worker, run, place), daemon=True)
            process.start()
            active.append((run, process, time.monotonic()))
        time.sleep(POLL)
        for one in [one for one in active if not one[1].is_alive()]:
            active.remove(one)
            done += 1
            print(f"[{done}/{len(runs)}] {line(one[0], place, one[2])}", flush=True)
    for _, process, _ in active:
        process.terminate()
        process.join()
    return all(place.result(one).exists() for one in runs)


def line(run: TrainingRun, place: Place, begun: float) -> str:
    """What is said of a run that ended."""
    took = time.monotonic() - begun
    if not place.result(run).exists():
        return f"{run.name} failed after {took:.0f} s"
    found = json.loads(place.result(run).read_text())
    return (
        f"{run.name}: validation {found['validation']:.2f}, BLEU {found['bleu']:.2f} "
        f"(greedy {found['bleu_greedy']:.2f}), {found['parameters'] / 1e6:.1f} M, "
        f"training {found['train_seconds']:.0f} s, all {took:.0f} s"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that experiments share."""
    parser.add_argument("--out", type=Path, required=True, help="folder of the result files")
    parser.add_argument("--checkpoints", type=Path, help="folder of checkpoints; OUT/.checkpoints")
    parser.add_argument("--data", help="folder of the public sets; default REGARD_DATA")
    parser.add_argument("--set", default="multi30k-de-en", dest="dataset")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--only", default="", help="names of contenders, separated by commas")
    parser.add_argument("--epochs", type=int, help="in place of the usual number")
    parser.add_argument("--limit", type=int, help="training pairs to keep")
    parser.add_argument("--device", help="cpu or cuda; default the GPU if there is one")
    parser.add_argument(
        "--minutes-limit",
        type=float,
        default=1e6,
        help="end after so many minutes; start again to go on",
    )


def place_of(given: argparse.Namespace) -> Place:
    """The place that the options name; its folders are made."""
    checkpoints = given.checkpoints or given.out / ".checkpoints"
    for folder in (given.out, checkpoints):
        folder.mkdir(parents=True, exist_ok=True)
    return Place(given.out, checkpoints, given.data, given.dataset, given.limit)
