"""Put a `Change` at an attention call of a live model, or at a whole module, and take it away.

`put(model, place, name, change)` registers the change, itself a module, below the module that attends:
its parameters move, cast, train and save with the model. The class of that module becomes a subclass
whose forward runs under the mode `Changing`, which changes the call that is meant and nothing else. The
change works without a doctor, and survives copies, pickles, compilers and checkpoints.

One limit: an activation checkpoint that begins inside that forward is recomputed without the change.
torch notices the difference and raises.
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

# The child of a treated module that holds its changes; part of the keys of a state dict.
HOLDER = "regard_changes"
# Set on an encoder of torch that used nested tensors before a module inside it was treated.
WAS_NESTED = "_regard_was_nested"
NOT_MADE = (
    "the treatment {0} of a {1} did not act: the attention call it is meant for did not happen. If "
    "the model computes attention in another way now, undo the treatment and treat it again"
)


def treated_forward(base: type[nn.Module], module: nn.Module, args: tuple, kwargs: dict) -> Any:
    """The output of a module with its changes applied."""
    held: Any = module._modules.get(HOLDER)
    if held is None:
        return base.forward(module, *args, **kwargs)
    mode = Changing(list(held.values()))
    around = mode.at(WHOLE)
    for change in around:
        args, kwargs = change.before(args, kwargs)
    forward = base.forward
    # The compiler would trace no_grad into the graph, where the mode cannot pass over it.
    if mode.reconnects and "torch._dynamo" in sys.modules:
        forward = torch.compiler.disable(forward)
    # First in the list, so that a watching doctor sees calls of regard as they are after the change.
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
    """A subclass of `base` under the same name, whose forward applies the changes it holds.

    Cached: each class has one such subclass, so that treated modules of a model share a type, which
    compilers guard on.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return treated_forward(base, self, args, kwargs)

    # A pickle looks a class up by name and would find `base`, so it names `rebuild` in its place.
    def reduce(self: nn.Module, protocol: Any) -> Any:
        function, given, *state = base.__reduce_ex__(self, protocol)
        if function is copyreg.__newobj__:  # type: ignore[attr-defined] # the default of `object`
            return (rebuild, (base,), *state)
        return (function, given, *state)

    same = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    members = {"forward": forward, "__reduce_ex__": reduce, "_regard_base": base}
    return type(base.__name__, (base,), {**same, **members})


def rebuild(base: type[nn.Module]) -> nn.Module:
    """An uninitialised module of the treated class, for copies and pickles to fill."""
    made = treated(base)
    return made.__new__(made)


def stay_off_the_fast_path(module: nn.Module, inputs: tuple) -> None:
    """A hook that does nothing: with any hook, torch's encoder layer does not take its fused path.

    The fused path reads the weights and never calls the attention module.
    """


def put(model: nn.Module, place: ChangePlace, name: str, change: Change) -> str:
    """Put a change at a place; returns the name under which the module holds it."""
    module = module_at(model, place.module)
    held = module._modules.get(HOLDER)
    if held is None:
        held = nn.ModuleDict()
        module.__class__ = treated(type(module))
        module.add_module(HOLDER, held)
        module.register_forward_pre_hook(stay_off_the_fast_path)
        # Only the fused path takes the nested tensors that an encoder makes of padded batches.
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
    """Undo `put`; without further changes the module gets its own class back.

    The module is given itself, because it may have left the model since.
    """
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
    """The encoders of torch that contain a module."""
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and module in set(encoder.modules()):
            yield encoder


def module_at(model: nn.Module, path: str) -> nn.Module:
    """The module of a path as the doctor names it; inside TorchScript there is none to change."""
    for name, module in named_modules(model):
        if name == path:
            return module
    raise KeyError(f"{type(model).__name__} has no module {path!r}")


def changes_in(model: nn.Module) -> Iterator[tuple[str, Change]]:
    """All changes in a model, each with the name under which its module holds it."""
    for _, module in named_modules(model):
        held = module._modules.get(HOLDER)
        if held is not None:
            yield from held.items()  # type: ignore[misc] # a dict of changes


def describe_changes(model: nn.Module) -> list[dict[str, Any]]:
    """The changes in a model as plain JSON, from which `put_again` rebuilds them."""
    return [
        {
            "change": type(change).__name__,
            "name": name,
            "place": asdict(change.place),
            "arguments": change.arguments(),
        }
        for name, change in changes_in(model)
    ]
