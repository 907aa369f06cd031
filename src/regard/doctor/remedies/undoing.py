"""Undo a change to a model that fails half way.

The caller never got the function that undoes it, so it has to be called here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def undone_by_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` where the block raises, Ctrl-C included."""
    try:
        yield
    except BaseException:
        undo()
        raise
