"""Measures the seconds of an epoch for each score of the transformer, each alone on this machine.

    python -m regard.recipes.translate.measure_timing --set multi30k-de-en

writes `timing.json` beside the code, from which the comparison takes epochs at equal time. The first epoch, which
compiles kernels for the lengths it meets, is timed apart.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regard.measuring.files import json_bytes, write_atomic
from regard.measuring.machine import machine
from regard.recipes.translate.contenders import SCORES
from regard.recipes.translate.kit import load
from regard.recipes.translate.sizes import arguments
from regard.recipes.translate.timing import FILE
from regard.recipes.translate.translator import Translator

WARM = 1  # epochs before the clock counts: they compile kernels and record steps
TIMED = 3  # epochs that count


def measured(
    dataset: str, data: str | None, device: str | None, limit: int | None = None
) -> dict[str, Any]:
    """Train each score alone for a few epochs, and return what `timing.json` holds.

    Args:
        dataset: name of the set.
        data: folder of public data.
        device: where to train; None for the recipe's choice.
        limit: training rows, for tests.
    """
    rows = load(dataset, data, limit=limit)
    few = (rows.validation.x[:8], rows.validation.y[:8])
    found, first = {}, {}
    for name, score in SCORES.items():
        taken = EpochClock()
        model = Translator(
            **arguments(dataset, "transformer")
            | {"score": score, "device": device, "epochs": WARM + TIMED, "validate_every": 99}
        )
        model.fit(rows.train.x, rows.train.y, validation=few, progress=taken)
        found[name], first[name] = round(taken.seconds(), 4), round(taken.first(), 4)
        print(f"{name}: {found[name]:.3f} s an epoch, {first[name]:.3f} s the first", flush=True)
    return {
        "set": dataset,
        "seconds": found,
        "first_epoch": first,
        "machine": machine(model.chosen_device()),
    }


class EpochClock:
    """Training progress that looks at the clock after each epoch, and gives the mean of those after the warm ones."""

    def __init__(self) -> None:
        self.steps, self.done, self.began, self.ends = 1, 0, 0.0, list[float]()

    def start(self, steps: int, done: int) -> None:
        """A training of so many steps begins."""
        self.steps, self.began = steps, time.perf_counter()

    def step(self, loss: Callable[[], float]) -> None:
        """One more step; after the last one of an epoch the loss is read, so that the device has done it."""
        self.done += 1
        if self.done % (self.steps // (WARM + TIMED)) == 0:
            loss()
            self.ends.append(time.perf_counter())

    def validated(self, epoch: int, quality: float, best: float) -> None:
        """A validation has nothing to report."""

    def first(self) -> float:
        """Seconds of the first epoch."""
        return self.ends[0] - self.began

    def seconds(self) -> float:
        """Seconds of an epoch after the warm ones."""
        return (self.ends[-1] - self.ends[WARM - 1]) / TIMED


def main(given: Sequence[str] | None = None) -> None:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(description="Time each score alone on this machine.")
    parser.add_argument("--set", default="multi30k-de-en", dest="dataset")
    parser.add_argument("--data", help="folder of the public sets; default REGARD_DATA")
    parser.add_argument("--device", help="cpu or cuda; default the GPU if there is one")
    parser.add_argument("--limit", type=int, help="training rows; default all")
    parser.add_argument("--out", type=Path, default=FILE, help="default: beside the code")
    options = parser.parse_args(given)
    found = measured(options.dataset, options.data, options.device, options.limit)
    write_atomic(options.out, json_bytes(found))


if __name__ == "__main__":
    main()
