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
        task = drawn.add_task("", total=1.0, left="")

        def tell(label: str, part: float, left: float) -> None:
            drawn.update(task, description=label, completed=part, left=f"{duration(left)} left")
            drawn.refresh()

        yield tell


def lines() -> Tell:
    """A line of plain text now and then."""
    last = [0.0]

    def tell(label: str, part: float, left: float) -> None:
        now = time.monotonic()
        if now - last[0] > LINE:
            last[0] = now
            print(f"{label}, {100 * part:.0f}%, {duration(left)} left", file=sys.stderr, flush=True)

    return tell
