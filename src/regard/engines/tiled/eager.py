"""The short ways of eager calls: around the dispatcher and autograd, where nobody would notice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
)
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from regard.arguments import autocast_enabled

# Tensors that nothing overrides.
PLAIN = (Tensor, torch.nn.Parameter)


def apply(function: type[torch.autograd.Function], *flat) -> Any:
    """`function.apply` without the questions that it asks each time, which take longer than a kernel.

    It binds arguments to names by reading the signature anew, and looks at each of them for a wrapper
    that a `torch.func` transform has left behind; at work, such a transform is asked for here.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*flat)
    return super(torch.autograd.Function, function).apply(*flat)  # type: ignore[missing-attribute] # in C++


def below_autograd(operator: Callable, *flat) -> Any:
    """Call an operator that no gradient is asked of.

    Autograd's own entry to it would find that out too, in Python and at the cost of a second call.
    Not under a transform of `torch.func`, around which a gradient may be asked for that its tensors do
    not know of; and compilers cannot trace this way, and need not.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return operator(*flat)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*flat)


def differentiated(inputs: Sequence[Tensor | None]) -> bool:
    """Whether one of them wants a gradient, or carries a tangent of forward mode."""
    given = [x for x in inputs if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return True
    # Then `apply` says that there is no forward mode; an operator alone would give tangents of 0.
    return in_forward_mode() and any(forward_ad.unpack_dual(x).tangent is not None for x in given)


def in_forward_mode() -> bool:
    """Whether somebody differentiates in forward mode; compilers refuse that by themselves."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def looked_at(tensors: Sequence[Tensor | None]) -> bool:
    """Whether somebody may look for the operator: a compiler, a transform, a mode, a profiler.

    If not, its kernels are called as they are: the way through the dispatcher and back to Python takes
    as long as four of them.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return True
    if torch.autograd._profiler_enabled() or torch._C._is_tracing() or in_forward_mode():
        return True
    return not all(x is None or is_plain(x) for x in tensors)


def as_they_come(tensors: Sequence[Tensor]) -> bool:
    """Whether torch computes with these tensors as they are, so that fewer operations mean the same.

    Not where a compiler, a tracer or a transform stands in between, nor autocast, which casts them
    first. Modes and profilers see such operations.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if torch._C._is_tracing() or saved_by_others() or autocast_enabled(tensors[0]):
        return False
    return all(map(is_plain, tensors))


def saved_by_others() -> bool:
    """Whether hooks get what is saved for a backward. They may count it, and a short way saves less.

    A checkpoint that ran the whole way would find another number when it runs again. Releases of torch that
    cannot say are taken to have hooks.
    """
    ask = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return ask is None or ask(True) is not None


def is_plain(x: Tensor) -> bool:
    """Whether the memory of a tensor holds what it says.

    Not where it is negated on reading (the imaginary part of a conjugate), nor where there is none,
    nor where it stands for a batch of gradients (`is_grads_batched`): the dispatcher sees to these.
    """
    if type(x) not in PLAIN or x.is_neg() or x._is_zerotensor():
        return False
    return not is_legacy_batchedtensor(x)


def is_readable(x: Tensor) -> bool:
    """Whether Python can be told its numbers: not those of a batch under `vmap`, nor fake ones."""
    while is_functorch_wrapped_tensor(x):
        if is_batchedtensor(x):
            return False
        x = get_unwrapped(x)
    return not isinstance(x, FakeTensor)


def numbers(*given: float) -> Tensor:
    """Numbers as operators take them, fp64 on the CPU.

    Made once where nobody looks on: it takes longer than a kernel.
    """
    if looked_at(()):
        return torch.tensor(given, dtype=torch.float64, device="cpu")
    return remembered(*given)


@functools.lru_cache(maxsize=64)
def remembered(*given: float) -> Tensor:
    """The same for all calls that agree in them; nothing writes to it."""
    # Made in inference mode it could not be saved for a backward later.
    with torch.inference_mode(False):
        return torch.tensor(given, dtype=torch.float64, device="cpu")
