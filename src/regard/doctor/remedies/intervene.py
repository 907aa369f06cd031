"""Change one attention call of a live model, or one module around it, whatever they are.

`put(model, place, name, change)` registers a `Change`, a module, below the module that attends: its
parameters move, cast, train and save with the model. The module's class becomes a subclass of
itself whose forward runs under a mode that knows which call is meant; everything else goes by
untouched. It stays without any doctor, and through copies, pickles, compilers and checkpoints.

A checkpoint that begins inside that forward computes again without the change, which torch notices
and refuses.
"""

from __future__ import annotations

import copyreg
import functools
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from regard.doctor.capture.names import named_modules
from regard.doctor.remedies.change import WHOLE, Change, ChangePlace
from regard.doctor.remedies.changing import Changing
from regard.observed import WATCHERS

__all__ = [
    "HOLDER",
    "Change",
    "ChangePlace",
    "changes_in",
    "describe_changes",
    "module_at",
    "put",
    "take_away",
]

# Under this name a module holds its changes.
HOLDER = "regard_changes"
# Marks an encoder of torch that made nested tensors before something inside was treated.
WAS_NESTED = "_regard_was_nested"
NOT_MADE = (
    "the treatment {0} of a {1} did not act: the attention call that it was made for was not made. "
    "If the model attends in another way now, undo the treatment and treat it anew"
)


def treated_forward(base: type[nn.Module], module: nn.Module, args: tuple, kwargs: dict) -> Any:
    """The forward of a module with changes."""
    held: Any = module._modules.get(HOLDER)
    if held is None:
        return base.forward(module, *args, **kwargs)
    mode = Changing(list(held.values()))
    around = mode.at(WHOLE)
    for change in around:
        args, kwargs = change.before(args, kwargs)
    forward = base.forward
    if mode.reconnects and "torch._dynamo" in sys.modules:  # no_grad is part of compiled code
        forward = torch.compiler.disable(forward)
    # First of all: who else watches sees what becomes of the call.
    WATCHERS.insert(0, mode)
    try:
        with mode:
            output = forward(module, *args, **kwargs)
    finally:
        WATCHERS.remove(mode)
    for change in around:
        output = change.after(output, args, kwargs)
    if not torch.compiler.is_compiling() and mode.acted < len(mode.changes):
        idle = [name for name, x in held.items() if mode.counts[x.place.route] <= x.place.index]
        warnings.warn(NOT_MADE.format(", ".join(idle), base.__name__), stacklevel=3)
    return output


@functools.cache
def treated(base: type[nn.Module]) -> type[nn.Module]:
    """A subclass, the same to the eye, whose forward runs under the changes it holds."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return treated_forward(base, self, args, kwargs)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        function, given, *state = base.__reduce_ex__(self, protocol)
        if function is copyreg.__newobj__:  # type: ignore[attr-defined] # what object gives
            return (rebuild, (base,), *state)
        return (function, given, *state)

    same = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    members = {"forward": forward, "__reduce_ex__": reduce, "_regard_base": base}
    return type(base.__name__, (base,), {**same, **members})


def rebuild(base: type[nn.Module]) -> nn.Module:
    """An empty module with changes, for copies and pickles."""
    made = treated(base)
    return made.__new__(made)


def stay_off_the_fast_path(module: nn.Module, inputs: tuple) -> None:
    """A hook that does nothing: where one is, torch's encoder layer calls its attention module."""


def put(model: nn.Module, place: ChangePlace, name: str, change: Change) -> str:
    """Let `change` act at a place; gives the name under which the module holds it."""
    module = module_at(model, place.module)
    held = module._modules.get(HOLDER)
    if held is None:
        held = nn.ModuleDict()
        module.__class__ = treated(type(module))
        module.add_module(HOLDER, held)
        module.register_forward_pre_hook(stay_off_the_fast_path)
        for encoder in encoders_around(model, module):
            if encoder.use_nested_tensor:
                encoder.use_nested_tensor = False
                encoder.__dict__[WAS_NESTED] = True
    assert isinstance(held, nn.ModuleDict)
    taken = (f"{name}_{i}" if i > 1 else name for i in range(1, len(held) + 2))
    key = next(key for key in taken if key not in held)
    change.place = place
    held[key] = change.train(module.training)
    return key


def take_away(model: nn.Module, module: nn.Module, key: str) -> None:
    """Undo `put`: after the last one the module is as it was, even if it left the model since."""
    held = module._modules.get(HOLDER)
    assert isinstance(held, nn.ModuleDict)
    del held[key]
    if len(held):
        return
    del module._modules[HOLDER]
    module.__class__ = type(module)._regard_base  # type: ignore[attr-defined] # of `treated`
    hooks = module._forward_pre_hooks
    for number in [n for n, hook in hooks.items() if hook is stay_off_the_fast_path]:
        del hooks[number]
    for encoder in encoders_around(model, module):
        treated_inside = any(HOLDER in inside._modules for inside in encoder.modules())
        if not treated_inside and encoder.__dict__.pop(WAS_NESTED, False):
            encoder.use_nested_tensor = True


def encoders_around(model: nn.Module, module: nn.Module) -> Iterator[nn.TransformerEncoder]:
    """Torch's encoders that hold a module: off the fast path it takes no nested tensors."""
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and module in set(encoder.modules()):
            yield encoder


def module_at(model: nn.Module, path: str) -> nn.Module:
    """The module of a path as the doctor names it; TorchScript has none, and cannot be changed."""
    for name, module in named_modules(model):
        if name == path:
            return module
    raise KeyError(f"{type(model).__name__} has no module {path!r}")


def changes_in(model: nn.Module) -> Iterator[tuple[str, Change]]:
    """All changes of a model, by the names under which their modules hold them."""
    for _, module in named_modules(model):
        held = module._modules.get(HOLDER)
        if held is not None:
            yield from held.items()  # type: ignore[misc] # a dict of changes


def describe_changes(model: nn.Module) -> list[dict[str, Any]]:
    """Plain JSON that `put_again` builds the changes from."""
    return [
        {
            "change": type(change).__name__,
            "name": name,
            "place": asdict(change.place),
            "arguments": change.arguments(),
        }
        for name, change in changes_in(model)
    ]
