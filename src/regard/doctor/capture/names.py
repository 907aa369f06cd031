"""Hooks that report which module is running, by its path in the model.

Two hooks on each module maintain a stack of running modules. Layers of `torch.nn` without children
(Linear, Dropout, Softmax) get no hooks, and neither does a Sequential of such layers: a softmax
there belongs to the module around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

# Wrappers keep the module that they wrap under these names, which users do not write in a path.
WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)
# Attributes in which modules keep their number of heads.
HEADS = ("num_heads", "num_attention_heads", "n_heads", "heads", "n_head", "nhead")
# torch runs these as one fused kernel in inference, unless a mode or hook is active.
FUSED = (nn.TransformerEncoderLayer, nn.MultiheadAttention)


class WatchedModule:
    """A module of the watched model.

    Attributes:
        name: its path in the model; the class name for the model itself.
        heads: its number of heads, 1 if it has no such attribute. Needed where batch and heads are
            one dim.
        fused: whether torch has a fused inference path for it.
        handle: (capture, place) as a tensor. A compiled graph takes it as an input, not as a
            constant, so that one graph serves all layers of the same shape.
    """

    def __init__(self, name: str, module: nn.Module, capture: int, index: int) -> None:
        self.name = name
        sizes = [getattr(module, attribute, None) for attribute in HEADS]
        self.heads = next((n for n in sizes if type(n) is int and n > 0), 1)
        self.fused = isinstance(module, FUSED)
        self.handle = torch.tensor([capture, index], device="cpu")


class Visited(Protocol):
    """The interface that the hooks call."""

    def enter(self, place: WatchedModule, training: bool) -> None:
        """Called when the forward of a module begins."""

    def leave(self, place: WatchedModule) -> None:
        """Called when the forward of a module ends, also by an error."""


class Hook:
    """A hook that becomes a function without effect when it is copied or pickled."""

    def __init__(self, visited: Visited, place: WatchedModule) -> None:
        self.visited, self.place = visited, place

    def __reduce__(self) -> tuple[Any, ...]:
        """Reduce to a function of the standard library: a pickled model loads without regard."""
        return getattr, (nullcontext(), "__exit__")


class Enter(Hook):
    """Runs before the forward of a module."""

    def __call__(self, module: nn.Module, args: Any) -> None:
        """Report that the module begins."""
        self.visited.enter(self.place, module.training)


class Leave(Hook):
    """Runs after the forward of a module."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """Report that the module has ended."""
        self.visited.leave(self.place)


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Paths and modules, without the wrappers of compilers and of parallel training.

    A module that is registered in several places has the path of the first.
    """
    seen: set[nn.Module] = set()

    def walk(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
        if module in seen or isinstance(module, torch.jit.ScriptModule):
            return
        seen.add(module)
        inside = next((name for name in WRAPPED if name in module._modules), None)
        inside = "module" if isinstance(module, PARALLEL) else inside
        if inside is None:
            yield path, module
        for name, child in module._modules.items():
            if child is not None:
                yield from walk(child, path if name == inside else f"{path}.{name}".lstrip("."))

    return walk(model, "")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside its wrappers for compiling or parallel training."""
    return next((module for _, module in named_modules(model)), model)


def plain(module: nn.Module) -> bool:
    """Whether a module is a layer of `torch.nn` without children, or a Sequential of such."""
    of_torch = type(module).__module__.startswith("torch.nn.modules.")
    alone = not module._modules or type(module) is nn.Sequential
    return of_torch and alone and all(plain(x) for x in module.children())


def hook_modules(
    model: nn.Module, visited: Visited, capture: int, key: int
) -> tuple[list[WatchedModule], list[Callable[[], object]]]:
    """Put both hooks on every module that may call attention; returns modules and undo functions.

    The hooks are stored under `key` and not by torch's `register_forward_hook`: that would give
    each hook a new number, which is part of a compiled graph, so that every watch would compile
    again.
    """
    places: list[WatchedModule] = []
    undo: list[Callable[[], object]] = []
    for name, module in named_modules(model):
        if places and plain(module):  # the model itself always gets hooks
            continue
        place = WatchedModule(name or type(module).__name__, module, capture, len(places))
        places.append(place)
        hooks = (
            (module._forward_pre_hooks, Enter(visited, place)),
            (module._forward_hooks, Leave(visited, place)),
            (module._forward_hooks_always_called, True),  # `Leave` runs after an error too
        )
        for stored, hook in hooks:
            stored[key] = hook  # type: ignore[index] # three dicts of different values
            undo.append(partial(stored.pop, key, None))
    return places, undo
