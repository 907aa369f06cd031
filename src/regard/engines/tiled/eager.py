"""Short ways of eager calls: they bypass the dispatcher and autograd when nothing observes the call."""

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
)
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from regard.observed import in_forward_mode, needs_dispatcher


def apply(function: type[torch.autograd.Function], *flat) -> Any:
    """`function.apply` without its checks of every call, which take longer than a short kernel.

    `Function.apply` binds the arguments to the signature of `forward`, and searches them for wrappers
    that a finished `torch.func` transform left behind. Transforms that are active are checked for here.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*flat)
    return super(torch.autograd.Function, function).apply(*flat)  # type: ignore[missing-attribute] # in C++


def below_autograd(operator: Callable, *flat) -> Any:
    """The result of an operator of which no gradient is needed.

    It skips autograd's entry to the operator, which is Python and would call the operator a second time.
    Under a transform of `torch.func` the entry is kept: an outer transform may need a gradient that the
    tensors here do not show. Compilers cannot trace this way, and do not need it.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return operator(*flat)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*flat)


def differentiated(inputs: Sequence[Tensor | None]) -> bool:
    """Whether one of the inputs requires a gradient, or carries a tangent of forward mode."""
    given = [x for x in inputs if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return True
    # With a tangent `apply` raises that there is no forward mode; an operator alone would return
    # tangents of 0.
    return in_forward_mode() and any(forward_ad.unpack_dual(x).tangent is not None for x in given)


def is_readable(x: Tensor) -> bool:
    """Whether Python can read the numbers of x: not if it is batched by `vmap` or fake."""
    while is_functorch_wrapped_tensor(x):
        if is_batchedtensor(x):
            return False
        x = get_unwrapped(x)
    return not isinstance(x, FakeTensor)


def numbers(*given: float) -> Tensor:
    """Numbers as the operators take them: a tensor in fp64 on the CPU.

    Where nothing observes the call it comes from a cache: making it takes longer than a short kernel.
    """
    # A tensor made under a mode or a tracer belongs to it and must not be kept.
    if needs_dispatcher(()):
        return torch.tensor(given, dtype=torch.float64, device="cpu")
    return remembered(*given)


@functools.lru_cache(maxsize=64)
def remembered(*given: float) -> Tensor:
    """The tensor of these numbers, shared by all calls that use them; nothing writes to it."""
    # A tensor made in inference mode could not be saved for a later backward.
    with torch.inference_mode(False):
        return torch.tensor(given, dtype=torch.float64, device="cpu")
