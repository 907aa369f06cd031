"""Progress of work in named parts: bars on a terminal, otherwise one line for each part that ended."""

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

# Seconds at the expected pace that are added to those measured, so that the first estimates of the
# remaining time do not jump.
PRIOR = 5.0


class WorkProgress(Protocol):
    """Receives the beginning, the progress and the end of every part."""

    def begin(self, name: str) -> None:
        """The part begins."""

    def at(self, name: str, fraction: float) -> None:
        """The part has finished this fraction, from 0 to 1."""

    def end(self, name: str, outcome: str) -> None:
        """The part is done or failed; `outcome` says which, in a few words. Empty: it was done before this run."""


class Track:
    """Progress of the whole run and an estimate of the time left.

    Args:
        seconds: expected share of each part in the duration of the run, by name.
    """

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = dict(seconds)
        self.fractions = dict.fromkeys(seconds, 0.0)
        self.ended: set[str] = set()
        self.began = time.monotonic()

    def done(self) -> float:
        """The finished fraction of the whole run, from 0 to 1."""
        passed = sum(self.seconds[name] * part for name, part in self.fractions.items())
        return passed / (sum(self.seconds.values()) or 1.0)

    def left(self) -> str:
        """Estimated time left at the pace so far, for a reader."""
        total = sum(self.seconds.values())
        passed = total * self.done()
        pace = (time.monotonic() - self.began + PRIOR) / (passed + PRIOR)
        return duration((total - passed) * pace)

    def end(self, name: str) -> None:
        """Count a part as finished, whether it succeeded or failed."""
        self.fractions[name] = 1.0
        self.ended.add(name)

    def skip(self, name: str) -> None:
        """Count a part as finished before this run: it says nothing about the pace."""
        self.seconds[name] = 0.0
        self.ended.add(name)

    def count(self) -> str:
        """Finished parts out of all, as `3/36`."""
        return f"{len(self.ended)}/{len(self.seconds)}"


class WorkLines:
    """One line on stderr for each part that ended."""

    def __init__(self, track: Track) -> None:
        self.track = track

    def begin(self, name: str) -> None:
        """Print nothing: the line comes when the part ends."""

    def at(self, name: str, fraction: float) -> None:
        """Record the progress without printing it."""
        self.track.fractions[name] = fraction

    def end(self, name: str, outcome: str) -> None:
        """Print how the part ended and the estimated time left; nothing for a part that was done before."""
        if not outcome:
            self.track.skip(name)
            return
        self.track.end(name)
        left = f" (about {self.track.left()} left)" if self.track.done() < 1 else ""
        print(f"[{self.track.count()}] {name}: {outcome}{left}", file=sys.stderr, flush=True)


class Bars:
    """A bar for the whole run, and below it one for each running part.

    Args:
        bars: of rich.
        track: of the whole run.
        titles: by name.
        noun: what the parts are, in the plural.
    """

    def __init__(
        self, bars: RichProgress, track: Track, titles: dict[str, str], noun: str = "claims"
    ) -> None:
        self.bars, self.track, self.titles, self.noun = bars, track, titles, noun
        self.tasks: dict[str, TaskID] = {}
        self.whole = bars.add_task("", total=1.0, right="")
        self.show()

    def show(self) -> None:
        """Update the bar of the whole run."""
        self.bars.update(
            self.whole,
            description=f"{self.track.count()} {self.noun}",
            completed=self.track.done(),
            right=f"about {self.track.left()} left",
        )

    def begin(self, name: str) -> None:
        """Add a bar for the part."""
        if name not in self.tasks:  # a claim begins twice when its old numbers cannot be drawn
            title = f"{name} {self.titles[name]}"
            self.tasks[name] = self.bars.add_task(title, total=1.0, right="")

    def at(self, name: str, fraction: float) -> None:
        """Update the part's bar."""
        self.track.fractions[name] = fraction
        self.bars.update(self.tasks[name], completed=fraction)
        self.show()

    def end(self, name: str, outcome: str) -> None:
        """Remove the part's bar."""
        if outcome:
            self.track.end(name)
        else:
            self.track.skip(name)
        self.bars.remove_task(self.tasks.pop(name))
        self.show()


@contextmanager
def progress(
    seconds: dict[str, float],
    titles: dict[str, str],
    console: Console | None = None,
    noun: str = "claims",
) -> Iterator[WorkProgress]:
    """Show progress on stderr inside the `with` block: bars on a terminal, otherwise lines."""
    track = Track(seconds)
    # With FORCE_COLOR rich takes any stream for a terminal, and bars would fill a log file.
    seen = sys.stderr is not None and sys.stderr.isatty()
    console = console or Console(stderr=True, force_interactive=None if seen else False)
    if not console.is_interactive:
        yield WorkLines(track)
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
        yield Bars(bars, track, titles, noun)
