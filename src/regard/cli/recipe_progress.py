"""Progress of one training or of many predictions, and the doctor watching a training."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.cli.common import console
from regard.cli.recipe_help import USAGES
from regard.measuring.words import duration

if TYPE_CHECKING:
    from regard.doctor import Doctor
    from regard.recipes.estimator import Recipe
    from regard.recipes.kit import Kit
    from regard.recipes.training import TrainingProgress

PAUSE = 0.5  # seconds between two readings of the loss, each of which waits for the device
PART = 256  # inputs of a search between two signs of progress
LINE_PAUSE = 5.0  # seconds between two lines: a training may have a thousand epochs of milliseconds


# From a quality on validation rows, where greater is better, to the name and value that a reader knows.
Criterion = Callable[[float], tuple[str, str]]


class TrainingBar:
    """A bar with the time left, the last loss and the best validation."""

    def __init__(self, bar: Progress, criterion: Criterion) -> None:
        self.criterion, self.bar, self.task = criterion, bar, bar.add_task("training", total=None)
        self.said, self.last = "", 0.0

    def start(self, steps: int, done: int) -> None:
        """Begin at the steps that were resumed."""
        self.bar.update(self.task, total=steps, completed=done)

    def step(self, loss: Callable[[], float]) -> None:
        """Advance by a step; read the loss now and then."""
        self.bar.advance(self.task)
        if time.monotonic() - self.last > PAUSE:
            self.last = time.monotonic()
            self.bar.update(self.task, description=f"loss {loss():.3g}{self.said}")

    def validated(self, epoch: int, quality: float, best: float) -> None:
        """Show the qualities."""
        name, value = self.criterion(quality)
        self.said = f", {name} {value} (best {self.criterion(best)[1]})"


class TrainingLines:
    """Lines on stderr for validations, `LINE_PAUSE` seconds apart, with the time left."""

    def __init__(self, criterion: Criterion) -> None:
        self.criterion = criterion
        self.steps, self.done, self.resumed, self.began = 1, 0, 0, time.monotonic()
        self.last = -LINE_PAUSE

    def start(self, steps: int, done: int) -> None:
        """Begin at the steps that were resumed."""
        self.steps, self.done, self.resumed, self.began = steps, done, done, time.monotonic()

    def step(self, loss: Callable[[], float]) -> None:
        """Count the step; reading the loss would make the device wait."""
        self.done += 1

    def validated(self, epoch: int, quality: float, best: float) -> None:
        """Print the qualities and the time left at the pace so far."""
        if time.monotonic() - self.last < LINE_PAUSE:
            return
        self.last = time.monotonic()
        pace = (time.monotonic() - self.began) / max(self.done - self.resumed, 1)
        left = time_left("at most", pace * max(self.steps - self.done, 0))
        name, value = self.criterion(quality)
        print(
            f"epoch {epoch}: {name}: {value} (best {self.criterion(best)[1]}) on validation rows, {left} left",
            file=sys.stderr,
            flush=True,
        )


def time_left(how: str, seconds: float) -> str:
    """A time that is left: "at most 5 s", or "less than 1 s"."""
    return "less than 1 s" if seconds < 1 else f"{how} {duration(seconds)}"


def predicted(kit: Kit, model: Recipe, inputs: Any, options: dict[str, Any]) -> Any:
    """Predictions for all inputs. A search, which is slow, takes long lists in parts, with a bar or lines on stderr."""
    if not USAGES[kit.name].search or len(inputs) <= PART:
        return model.predict(inputs, **options)
    found: list[Any] = []
    with counting(len(inputs)) as count:
        for first in range(0, len(inputs), PART):
            found.extend(model.predict(inputs[first : first + PART], **options))
            count(len(found))
    return found


@contextmanager
def counting(total: int) -> Iterator[Callable[[int], None]]:
    """Takes how many inputs are predicted, and shows it with the time left: a bar on a terminal, otherwise lines."""
    if not on_terminal():
        began = last = time.monotonic()

        def line(done: int) -> None:
            nonlocal last
            if time.monotonic() - last > LINE_PAUSE:
                last = time.monotonic()
                left = time_left("about", (last - began) / done * (total - done))
                print(f"{done:,} of {total:,}, {left} left", file=sys.stderr, flush=True)

        yield line
        return
    columns = (
        TextColumn("predicting"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


def on_terminal() -> bool:
    """Whether stderr is a terminal that shows bars."""
    return sys.stderr is not None and sys.stderr.isatty() and console(stderr=True).is_terminal


@contextmanager
def training_progress(criterion: Criterion) -> Iterator[TrainingProgress]:
    """Progress on stderr: a bar on a terminal, otherwise lines."""
    if not on_terminal():
        yield TrainingLines(criterion)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        yield TrainingBar(bar, criterion)


@contextmanager
def watched_training() -> Iterator[list[Doctor]]:
    """Let the doctor watch every training in the block; the list fills with one doctor for each."""
    from torch import nn

    from regard.doctor import watch
    from regard.recipes import training

    found: list[Doctor] = []

    def enter(model: nn.Module) -> Doctor:
        found.append(watch(model))
        return found[-1]

    training.AROUND.append(enter)
    try:
        yield found
    finally:
        training.AROUND.remove(enter)
