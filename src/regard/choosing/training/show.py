"""Progress of a comparison: a bar of rich, or plain lines without a terminal."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from regard.measuring.words import duration

ProgressCallback = Callable[[str, float, float], None]
"""Called every so often with a label, the fraction done and the seconds left."""
LINE = 10.0  # seconds between two lines of plain text
# The time left is shown only after this many seconds and this fraction of the work.
SECONDS, PART = 5.0, 0.05
FRESH = 0.2  # weight of a new estimate of the time left against the earlier ones
# Printed before anything is trained; `resume` is the argument of the function or the command's option.
UNFINISHED = (
    "The storage has an unfinished run on this data: to continue it, stop this one now and give "
    "{resume}. This new run leaves it as it is."
)


class TimeLeft:
    """Estimates the time left from the fraction done, smoothed; silent until there is an estimate."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.first = self.until = 0.0
        self.end: float | None = None  # the estimated end

    def __call__(self, part: float, left: float) -> str:
        """The time left in words, or an empty string; the first `left` is the time limit."""
        now = time.monotonic()
        # A resumed run starts at a fraction above 0, which must not count as work of this run.
        if self.began is None:
            self.began, self.first, self.until = now, part, now + left
        done = part - self.first
        if now - self.began < SECONDS or done < PART:
            return ""
        end = min(now + (now - self.began) / done * (1 - part), self.until)
        self.end = end if self.end is None else self.end + FRESH * (end - self.end)
        return f"about {duration(max(self.end - now, 0.0))} left"


@contextmanager
def shown(progress: ProgressCallback | bool) -> Iterator[ProgressCallback]:
    """The function to report progress to: the user's, a bar, lines, or one that does nothing."""
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda label, part, left: None
    elif sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        with bar() as tell:
            yield tell
    else:
        yield lines()


@contextmanager
def bar() -> Iterator[ProgressCallback]:
    """A progress bar with the time left.

    It draws only when called and does not redirect stdout: forked processes would inherit the lock of a
    drawing thread or of a replaced stream, possibly locked.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description:<36}"), BarColumn(), TextColumn("{task.fields[left]}"))
    with Progress(
        *columns, console=Console(stderr=True), transient=True, auto_refresh=False,
        redirect_stdout=False, redirect_stderr=False,
    ) as drawn:  # fmt: skip
        task, time_left = drawn.add_task("", total=1.0, left=""), TimeLeft()

        def tell(label: str, part: float, left: float) -> None:
            drawn.update(task, description=label, completed=part, left=time_left(part, left))
            drawn.refresh()

        yield tell


def lines() -> ProgressCallback:
    """A function that prints a line of progress every 10 seconds."""
    last, time_left = [0.0], TimeLeft()

    def tell(label: str, part: float, left: float) -> None:
        now, rest = time.monotonic(), time_left(part, left)
        if now - last[0] > LINE:
            last[0] = now
            said = f"{label}, {100 * part:.0f}%"
            print(f"{said}, {rest}" if rest else said, file=sys.stderr, flush=True)

    return tell
