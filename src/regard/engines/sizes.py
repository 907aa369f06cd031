"""Arithmetic that several engines share: sizes of tiles, how much a call computes, leading dims made one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from regard.problem import Problem

# Below these the series of engine `sine` is not worth asking on a GPU. For few queries exact attention
# reads b once, and features are 2 * rank times as many bytes. With fewer tanh a call from Python waits for
# launches, of which the series has more: it takes longer at 2**29 and half of the time at 2**31
# (benchmarks/results/small_h200_large.json), though on the device alone it is faster from 2**28 on (h200.json).
SERIES_QUERIES, SERIES_TANH = 32, 2**30


def power_of_two(n: int) -> int:
    """The least power of two that is at least n: what Triton takes for sizes of tiles.

    Triton has this and `blocks_in` too; called from Python, its own take ten times as long.
    """
    return 1 << max(n - 1, 0).bit_length()


def blocks_in(length: int, block: int) -> int:
    """How many blocks cover a length."""
    return -(-length // block)


def tanh_count(p: Problem) -> int:
    """How many tanh the exact form of this call takes."""
    return math.prod(p.lead) * p.heads * p.queries * p.keys * p.form.query.shape[-1]


def is_too_short_for_series(p: Problem) -> bool:
    """Whether exact attention is done sooner than the series on a GPU.

    Not where any error is allowed, as by the name of the engine: then the series itself was asked for.
    """
    few = p.queries < SERIES_QUERIES or tanh_count(p) < SERIES_TANH
    return few and p.error != math.inf


def four_dims(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Broadcast the leading dims of x to `lead` and make them one: (batch, heads, length, width)."""
    if len(lead) == 1 and x.shape[:-3] == lead:
        return x
    return x.expand(*lead, *x.shape[-3:]).reshape(math.prod(lead), *x.shape[-3:])
