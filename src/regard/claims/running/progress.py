"""How far a run is: bars where there is a terminal, else a line for each claim that is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from regard.measuring.words import duration

# Expected seconds that count as measured from the start, so that the first guess does not jump.
PRIOR = 5.0


class ClaimProgress(Protocol):
    """Told of every claim that begins, how far it is, and how it ended."""

    def begin(self, name: str) -> None:
        """A claim begins."""

    def at(self, name: str, fraction: float) -> None:
        """How far it is, from 0 to 1."""

    def end(self, name: str, outcome: str) -> None:
        """It is done, or it failed: `outcome` in a few words."""


class Track:
    """How far the whole is.

    Args:
        seconds: that each claim should take of the whole run's time.
    """

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.fractions = dict.fromkeys(seconds, 0.0)
        self.ended: set[str] = set()
        self.began = time.monotonic()

    def done(self) -> float:
        """The part of the whole that is behind, from 0 to 1."""
        passed = sum(self.seconds[name] * part for name, part in self.fractions.items())
        return passed / (sum(self.seconds.values()) or 1.0)

    def left(self) -> str:
        """About how long the rest takes, at the pace so far."""
        total = sum(self.seconds.values())
        passed = total * self.done()
        pace = (time.monotonic() - self.began + PRIOR) / (passed + PRIOR)
        return duration((total - passed) * pace)

    def end(self, name: str) -> None:
        """A claim is done."""
        self.fractions[name] = 1.0
        self.ended.add(name)

    def count(self) -> str:
        """`3/36`."""
        return f"{len(self.ended)}/{len(self.seconds)}"


class ClaimLines:
    """One line on stderr for each claim that ended."""

    def __init__(self, track: Track) -> None:
        self.track = track

    def begin(self, name: str) -> None:
        """Said when it ends."""

    def at(self, name: str, fraction: float) -> None:
        """Too much for lines."""
        self.track.fractions[name] = fraction

    def end(self, name: str, outcome: str) -> None:
        """Say how it ended, and about how long the rest takes."""
        self.track.end(name)
        left = f" (about {self.track.left()} left)" if self.track.done() < 1 else ""
        print(f"[{self.track.count()}] {name}: {outcome}{left}", file=sys.stderr, flush=True)


class Bars:
    """A bar for the whole, and under it one for each claim that runs."""

    def __init__(self, bars: RichProgress, track: Track, titles: dict[str, str]) -> None:
        self.bars, self.track, self.titles = bars, track, titles
        self.tasks: dict[str, TaskID] = {}
        self.whole = bars.add_task("", total=1.0, right="")
        self.show()

    def show(self) -> None:
        """Move the bar of the whole."""
        self.bars.update(
            self.whole,
            description=f"{self.track.count()} claims",
            completed=self.track.done(),
            right=f"about {self.track.left()} left",
        )

    def begin(self, name: str) -> None:
        """A bar more."""
        if name not in self.tasks:  # else it begins once more
            title = f"{name} {self.titles[name]}"
            self.tasks[name] = self.bars.add_task(title, total=1.0, right="")

    def at(self, name: str, fraction: float) -> None:
        """Move its bar."""
        self.track.fractions[name] = fraction
        self.bars.update(self.tasks[name], completed=fraction)
        self.show()

    def end(self, name: str, outcome: str) -> None:
        """A bar less."""
        self.track.end(name)
        self.bars.remove_task(self.tasks.pop(name))
        self.show()


@contextmanager
def progress(
    seconds: dict[str, float], titles: dict[str, str], console: Console | None = None
) -> Iterator[ClaimProgress]:
    """A way to say how far it is, on stderr."""
    track = Track(seconds)
    # FORCE_COLOR makes no terminal of a log file: bars would fill it.
    seen = sys.stderr is not None and sys.stderr.isatty()
    console = console or Console(stderr=True, force_interactive=None if seen else False)
    if not console.is_interactive:
        yield ClaimLines(track)
        return
    columns = (
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
        BarColumn(bar_width=16),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn(
            "{task.fields[right]}", markup=False, table_column=Column(no_wrap=True, width=17)
        ),
    )
    with RichProgress(*columns, console=console, transient=True, expand=True) as bars:
        yield Bars(bars, track, titles)
