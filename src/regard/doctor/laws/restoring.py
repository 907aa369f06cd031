"""`untouched`: whatever a check does to a model, everything is as before when it ends."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from regard.doctor.running import undisturbed

# Held by `nn.Module` itself. `undisturbed` restores buffers and modes; nothing here writes the others.
OF_TORCH = frozenset(vars(nn.Module()))


@contextmanager
def untouched(model: nn.Module) -> Iterator[Callable[[], None]]:
    """A context with the model in evaluation mode; on exit, also by an error, all is as it was.

    Beside what `undisturbed` restores: attributes that a forward pass sets (caches, last weights), with
    the contents of lists and dicts, and the random numbers of Python and NumPy. Weights and `.grad` are
    never written, so they need no copy. The function it gives puts the attributes back at once: a cache
    that one pass leaves would change the next.
    """
    kept = [(module, kept_of(module)) for module in model.modules()]
    numpy = sys.modules.get("numpy")
    states = random.getstate(), None if numpy is None else numpy.random.get_state()

    def restore() -> None:
        for module, before in kept:
            put_back(module, before)

    try:
        with undisturbed(model):
            yield restore
    finally:
        random.setstate(states[0])
        if numpy is not None:
            numpy.random.set_state(states[1])
        restore()


def kept_of(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """The attributes of a module, with shallow copies of those that are lists, dicts or sets."""
    return {
        name: (x, x.copy() if isinstance(x, list | dict | set) else None)
        for name, x in vars(module).items()
        if name not in OF_TORCH
    }


def put_back(module: nn.Module, before: dict[str, tuple[Any, Any]]) -> None:
    """Give a module the attributes that it had."""
    for name in [name for name in vars(module) if name not in OF_TORCH and name not in before]:
        del module.__dict__[name]
    for name, (x, contents) in before.items():
        module.__dict__[name] = x
        if isinstance(x, list):
            x[:] = contents
        elif isinstance(x, dict | set):
            x.clear()
            x.update(contents)
