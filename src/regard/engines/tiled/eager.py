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


def is_readable(x: Tensor) -> bool:
    """Whether Python can be told its numbers: not those of a batch under `vmap`, nor fake ones."""
    while is_functorch_wrapped_tensor(x):
        if is_batchedtensor(x):
            return False
        x = get_unwrapped(x)
    return not isinstance(x, FakeTensor)


def numbers(*given: float) -> Tensor:
    """Numbers as operators take them, fp64 on the CPU.

    Made once where nothing observes the call: making it takes longer than a kernel.
    """
    if needs_dispatcher(()):
        return torch.tensor(given, dtype=torch.float64, device="cpu")
    return remembered(*given)


@functools.lru_cache(maxsize=64)
def remembered(*given: float) -> Tensor:
    """The same for all calls that agree in them; nothing writes to it."""
    # Made in inference mode it could not be saved for a backward later.
    with torch.inference_mode(False):
        return torch.tensor(given, dtype=torch.float64, device="cpu")
