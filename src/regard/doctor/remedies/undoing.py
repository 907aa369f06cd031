"""`undone_by_error`: undo a change to a model that fails half way.

When applying a remedy raises, the caller has not received the function that undoes it yet, so the
code that applies it has to call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def undone_by_error(undo: Callable[[], object]) -> Iterator[None]:
    """A context that calls `undo` if the block raises, Ctrl-C included."""
    try:
        yield
    except BaseException:  # KeyboardInterrupt too: a half-treated model must not be left behind
        undo()
        raise
