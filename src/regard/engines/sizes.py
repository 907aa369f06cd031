"""Arithmetic that several engines share: sizes of tiles, the work in a call, flattened leading dims."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from regard.problem import Problem

# Below these sizes exact attention is faster on a GPU than the series of engine `sine`. With few queries
# exact attention reads b once, while features have 2 * rank times as many bytes. With few tanh the time
# of a call from Python is that of its launches, of which the series has more: it takes longer at 2**29
# and half as long at 2**31 (benchmarks/results/small_h200_large.json), though on the device alone it is
# faster from 2**28 on (h200.json).
SERIES_QUERIES, SERIES_TANH = 32, 2**30
# The wide kernels have more launches, and masks are resolved by a few dozen small operations: called from
# Python, 2**34 tanh with lengths take 0.4 ms longer than on the device forward, and 1.1 ms with backward
# (benchmarks/results/wide_h200.json). Exact attention does 4.2e12 tanh a second (docs/benchmarks.md), 2**32 in
# 1 ms. Smaller calls through the wide kernels were not measured.
WIDE_SERIES_TANH = 2**32

# Below either of these, tiles in PyTorch are about as fast as the engine `compiled`, which turns keys and values
# for each call: at 2**21 tanh they take 1.2 times as long forward, at 2**20.3 and with 8 queries less.
COMPILED_QUERIES, COMPILED_TANH = 16, 2**21


# Releases before 2.7 do not tell an export from a compilation.
is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def power_of_two(n: int) -> int:
    """The least power of two that is at least n, as Triton requires for sizes of tiles.

    Triton has this and `blocks_in` too, but its versions take ten times as long when called from Python.
    """
    return 1 << max(n - 1, 0).bit_length()


def blocks_in(length: int, block: int) -> int:
    """The number of blocks that cover a length."""
    return -(-length // block)


def tanh_count(p: Problem) -> int:
    """The number of tanh in the exact form of this call."""
    return math.prod(p.lead) * p.heads * p.queries * p.keys * p.form.query.shape[-1]


def is_too_short_for_series(p: Problem) -> bool:
    """Whether exact attention is faster than the series on a GPU.

    False where any error is allowed, as when the engine is requested by name: the caller wants the series.
    """
    few = p.queries < SERIES_QUERIES or tanh_count(p) < SERIES_TANH
    return few and p.error != math.inf


def is_short_for_compiled(p: Problem) -> bool:
    """Whether a pairwise call on the CPU is below the sizes from which compiled kernels pay.

    The size alone decides, so that the first short call of a process never waits for a compiler. A program that
    is exported for any length counts as short: its engine must not depend on the length.
    """
    if is_exporting() or any(isinstance(n, torch.SymInt) for n in (p.queries, p.keys, *p.lead)):
        return True
    # In this order: under torch.compile each comparison is a guard, and few calls reach the second.
    return tanh_count(p) < COMPILED_TANH or p.queries < COMPILED_QUERIES


def four_dims(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """`x` as (batch, heads, length, width): leading dims broadcast to `lead` and flattened."""
    if len(lead) == 1 and x.shape[:-3] == lead:
        return x
    return x.expand(*lead, *x.shape[-3:]).reshape(math.prod(lead), *x.shape[-3:])
