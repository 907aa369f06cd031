"""All runs of the comparisons on molecules, one JSON file each: `python -m regard.recipes.molecules.experiment`.

Files that exist are skipped, so that a run that was ended goes on where it was; several processes share the work.
A file holds the fields of `Evaluated` with set, contender, setting and seed; its statistics are those of the test
rows, from which the metric computes the test quality. Settings are chosen by `validation` afterwards.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.measuring.files import json_bytes, write_atomic
from regard.recipes.kit import Comparison
from regard.recipes.molecules.comparison import comparison
from regard.recipes.molecules.data import EMBEDDED, SETS, load


class MoleculeRun(NamedTuple):
    """One training: set, contender, number of its setting, and seed."""

    set: str
    contender: str
    setting: int
    seed: int

    def file(self) -> str:
        """Its file: "esol-gatv2-0-3.json"."""
        short = re.sub(r"\W+", "_", self.contender)
        return f"{self.set}-{short}-{self.setting}-{self.seed}.json"


class Options(NamedTuple):
    """What every process needs to know."""

    out: str
    data: str | None
    device: str | None
    quick: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing; the exit status is 1 if a run failed."""
    parser = argparse.ArgumentParser(description="Run the comparisons on molecules.")
    parser.add_argument("--out", required=True, help="folder for the JSON files")
    parser.add_argument("--data", help="folder with the public sets; default REGARD_DATA")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--device", help="cpu or cuda; default the GPU if there is one")
    parser.add_argument("--quick", action="store_true", help="few epochs, settings and seeds")
    parser.add_argument(
        "--only", nargs="*", default=[], help="words; a run is made if one is in its file's name"
    )
    parser.add_argument(
        "--sets", nargs="*", default=[one for one in SETS if one != EMBEDDED], choices=list(SETS)
    )
    given = parser.parse_args(arguments)
    options = Options(given.out, given.data, given.device, given.quick)
    Path(given.out).mkdir(parents=True, exist_ok=True)
    left = [
        run
        for name in given.sets
        for run in runs(name, compared(name, options))
        if not (Path(given.out) / run.file()).exists()
        and (not given.only or any(word in run.file() for word in given.only))
    ]
    # Ensembles take longest: begun last they would keep all other processes waiting.
    left.sort(key=lambda run: " x " not in run.contender)
    failed = 0
    for number, line in enumerate(lines(left, options, given.jobs), 1):
        print(f"[{number}/{len(left)}] {line}", flush=True)
        failed += " failed: " in line
    return int(failed > 0)


def runs(name: str, found: Comparison) -> Iterator[MoleculeRun]:
    """All runs of a comparison."""
    for seed in found.seeds:
        for contender in found.contenders:
            for setting in range(len(contender.settings)):
                yield MoleculeRun(name, contender.name, setting, seed)


def lines(left: list[MoleculeRun], options: Options, jobs: int) -> Iterator[str]:
    """Make the runs and say a line about each as it ends."""
    if jobs == 1:
        yield from (attempted(run, options) for run in left)
        return
    # Spawned, not forked: a forked process cannot use a GPU that its parent has touched.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        waiting = [pool.submit(attempted, run, options) for run in left]
        yield from (one.result() for one in as_completed(waiting))


@cache
def compared(name: str, options: Options) -> Comparison:
    """The comparison on a set; in one process the set is read and split once."""
    return comparison(load(name, options.data), not options.quick, options.device)


def attempted(run: MoleculeRun, options: Options) -> str:
    """Make a run and write its file; one line about it. A run that fails does not end the others."""
    try:
        found = measured(run, options)
    except (RuntimeError, ValueError) as error:
        return f"{run.file()} failed: {type(error).__name__}: {error}"
    write_atomic(Path(options.out) / run.file(), json_bytes(found))
    return (
        f"{run.file()} validation {found['validation']:.4f} test {found['test']:.4f} "
        f"{found['train_seconds']:.0f} s"
    )


def measured(run: MoleculeRun, options: Options) -> dict[str, Any]:
    """The result of a run, as JSON."""
    found = compared(run.set, options)
    contender = next(one for one in found.contenders if one.name == run.contender)
    setting = contender.settings[run.setting]
    result = contender.run(setting, run.seed, lambda share: None)
    facts = run._asdict() | {"arguments": dict(setting), "metric": found.metric.name}
    facts |= {"test": found.metric.value(result.statistics)}
    return facts | dataclasses.asdict(result) | {"statistics": result.statistics.tolist()}


if __name__ == "__main__":
    sys.exit(main())
