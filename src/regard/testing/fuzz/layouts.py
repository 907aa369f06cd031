"""Tensors of given numbers in unusual places of memory: strides, offsets, NaN all around.

Nothing but the entries of the tensor itself may be read: what lies between and around them is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

LAYOUTS = ("plain", "transposed", "sliced", "padded", "expanded", "flipped")


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers as `x`, laid out in another way; "expanded" repeats the first row of a dim."""
    if layout == "transposed":
        return x.mT.contiguous().mT
    if layout == "sliced":
        wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan)
        wide[..., ::2] = x
        return wide[..., ::2]
    if layout == "padded":
        wide = x.new_full((*x.shape[:-2], x.shape[-2] + 2, x.shape[-1] + 3), torch.nan)
        inside = wide[..., 1:-1, 2:-1]
        inside.copy_(x)
        return inside
    if layout == "flipped":
        return x.flip(-2).clone().flip(-2)
    if layout == "expanded":
        return x[..., :1, :].expand(x.shape) if x.shape[-2] > 1 else x
    return x.clone()


def numbers(x: Tensor, layout: str) -> Tensor:
    """What `laid_out` holds: `x`, but for a layout that repeats entries."""
    if layout == "expanded" and x.shape[-2] > 1:
        return x[..., :1, :].expand(x.shape).clone()
    return x
