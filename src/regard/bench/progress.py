"""Progress of a run: a bar of rich on a terminal where rich is installed, else plain lines."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from regard.measuring.words import duration


class Progress(Protocol):
    """Receives every setting and every step within it."""

    def setting(self, number: int, total: int, title: str) -> None:
        """A setting begins; `number` counts from 0."""

    def step(self, text: str) -> None:
        """A step inside a setting."""


class Lines:
    """Progress as one line on stderr for each setting."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.first: int | None = None

    def setting(self, number: int, total: int, title: str) -> None:
        """Print the setting that begins, and an estimate of the time left."""
        # A resumed run skips settings that are done: they must not count as fast ones.
        self.first = number if self.first is None else self.first
        done = number - self.first
        left = ""
        if done:
            seconds = (time.monotonic() - self.began) / done * (total - number)
            left = f"  (about {duration(seconds)} left)"
        print(f"[{number + 1}/{total}] {title}{left}", file=sys.stderr, flush=True)

    def step(self, text: str) -> None:
        """Do nothing: a line for each step would be too many."""


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress display that suits stderr."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description:<44.44}", markup=False),
        BarColumn(bar_width=14),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        TimeElapsedColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield ProgressBar(bar, bar.add_task("preparing", total=1))


class ProgressBar:
    """Progress on a bar of rich."""

    def __init__(self, bar: object, task: object) -> None:
        self.bar, self.task, self.name = bar, task, ""

    def setting(self, number: int, total: int, title: str) -> None:
        """Move the bar."""
        self.name = title.partition(":")[0]
        self.update(description=self.name, completed=number, total=total)

    def step(self, text: str) -> None:
        """Show the current step behind the setting's name."""
        self.update(description=f"{self.name}: {text}")

    def update(self, **fields: object) -> None:
        """Update the bar. It is typed as `object`, since rich is imported only where there is a bar."""
        self.bar.update(self.task, **fields)  # type: ignore[attr-defined]
