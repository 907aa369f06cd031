"""A progress bar for work with a known number of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str, float, float], None]]:
    """A bar with the time left; call the result as `step(label, done, total)`.

    Without a terminal nothing is shown.
    """
    columns = (TextColumn("{task.description:<36}"), BarColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("preparing", total=None)

        def step(label: str, done: float, total: float) -> None:
            bar.update(task, description=label, completed=done, total=max(total, done))

        yield step
