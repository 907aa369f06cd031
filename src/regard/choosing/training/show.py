"""How far a comparison is, for a person: a bar by rich, or lines where there is no terminal."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from regard.measuring.words import duration

Tell = Callable[[str, float, float], None]
LINE = 10.0  # seconds between two lines of plain text
# Nothing is said of the time left before this many seconds and this part are done.
SECONDS, PART = 5.0, 0.05
FRESH = 0.2  # weight of a new estimate of the time left beside the earlier ones
# Told before anything is trained; `resume` is what a user has to give, to a function or a command.
UNFINISHED = (
    "An unfinished run of this data is here: to go on with it, stop this one now and give {resume}. "
    "This one begins anew and leaves it as it is."
)


class TimeLeft:
    """Says how long it takes yet, by the part that is done; smoothed, and nothing before it is known."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.first = self.until = 0.0
        self.end: float | None = None  # when it should be done

    def __call__(self, part: float, left: float) -> str:
        """Words, or none; `left` of the first call is the most that there is."""
        now = time.monotonic()
        if self.began is None:
            self.began, self.first, self.until = now, part, now + left
        done = part - self.first
        if now - self.began < SECONDS or done < PART:
            return ""
        end = min(now + (now - self.began) / done * (1 - part), self.until)
        self.end = end if self.end is None else self.end + FRESH * (end - self.end)
        return f"about {duration(max(self.end - now, 0.0))} left"


@contextmanager
def shown(progress: Tell | bool) -> Iterator[Tell]:
    """The function to tell: the user's, a bar, lines, or nothing."""
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
def bar() -> Iterator[Tell]:
    """A bar with the time left.

    It draws only when told to and leaves stdout alone: a thread that draws, or a stream that is
    replaced, would be copied into forked processes together with its lock.
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


def lines() -> Tell:
    """A line of plain text now and then."""
    last, time_left = [0.0], TimeLeft()

    def tell(label: str, part: float, left: float) -> None:
        now, rest = time.monotonic(), time_left(part, left)
        if now - last[0] > LINE:
            last[0] = now
            said = f"{label}, {100 * part:.0f}%"
            print(f"{said}, {rest}" if rest else said, file=sys.stderr, flush=True)

    return tell
