"""The layouts of inputs, batch first or length first, and how they are split into heads.

Layouts are strings, not an enum: the compilers of older torch releases do not trace enum methods.

Shape legend: N batch, L length, H heads, W width of a head.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

NO_BATCH: Final = "(length, dim)"
BATCH_FIRST: Final = "(batch, length, dim)"
LENGTH_FIRST: Final = "(length, batch, dim)"


class MultiheadSizes(NamedTuple):
    """The sizes of one call, its layout and its device."""

    batch: int
    heads: int
    queries: int
    keys: int
    layout: str
    device: torch.device


def batch_and_length(x: Tensor, layout: str) -> tuple[int, int]:
    """The batch size (1 without a batch) and the length."""
    if layout == NO_BATCH:
        return 1, x.shape[0]
    return (x.shape[0], x.shape[1]) if layout == BATCH_FIRST else (x.shape[1], x.shape[0])


def to_heads(x: Tensor, heads: int, layout: str) -> Tensor:
    """A view (N, H, L, W) of a tensor whose last dim is H * W."""
    x = x.view(*x.shape[:-1], heads, x.shape[-1] // heads)
    if layout == NO_BATCH:
        return x.transpose(0, 1).unsqueeze(0)
    return x.transpose(1, 2) if layout == BATCH_FIRST else x.permute(1, 2, 0, 3)


def from_heads(x: Tensor, layout: str) -> Tensor:
    """The inverse of `to_heads`."""
    if layout == NO_BATCH:
        x = x.squeeze(0).transpose(0, 1)
    else:
        x = x.transpose(1, 2) if layout == BATCH_FIRST else x.permute(2, 0, 1, 3)
    return x.flatten(-2)
