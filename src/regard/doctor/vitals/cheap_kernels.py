"""The cheap level in two GPU kernels; as eighty small operations it would wait for their launches.

`moments_kernel` reads queries and keys once and sums what all vitals need. `finish_kernel` computes
the vitals of each head from those sums. It reads nothing of the model, so it can run later. For one
call it keeps a few programs busy for as long as the first kernel keeps the whole GPU busy, and it
can finish many calls in the same time (`waiting.py`). `squares_kernel` is for gradients.

Shape legend: B batch, H query heads, K key heads, T length, D dims (W: up to a power of two).
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

import triton

INTERPRETED = triton.knobs.runtime.interpret
ROWS = 64  # rows that a program reads at once
PROGRAMS = 256  # about this many programs share the work of a call
PROGRAMS_OF_SQUARES = 1024
# Launch options of `moments_kernel`, by whether a head has at most 64 dims.
LAUNCH = {True: {"num_warps": 4, "num_stages": 5}, False: {"num_warps": 8, "num_stages": 2}}
# The sums of a head are its Gram matrix (W * W), the sum of its rows (W), and then these.
EXTRA = 4
SQUARES, PEAK, NANS, INFS = (tl.constexpr(i) for i in range(EXTRA))
# How many columns `finish_kernel` computes: the first ones of `VITALS`, in their order.
FUSED = tl.constexpr(13)


@triton.jit
def larger(x, y):
    """The maximum; NaN where one of the two is NaN."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def moments_kernel(
    query, key, out, queries, keys, q_batch, q_head, q_row, k_batch, k_head, k_row, batch, heads,
    key_heads, PARTS: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
    ROWS: tl.constexpr, EXTRA: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Sums over one of PARTS parts of the rows of one head; query heads first, then key heads."""
    z = tl.program_id(1).to(tl.int64)
    slot = (z * PARTS + tl.program_id(0)) * (W * W + W + EXTRA)
    of_query = z < batch * heads
    x = key
    if of_query:
        x = query
    z = tl.where(of_query, z, z - batch * heads)
    count = tl.where(of_query, heads, key_heads)
    length = tl.where(of_query, queries, keys)
    by_row = tl.where(of_query, q_row, k_row)
    x += z // count * tl.where(of_query, q_batch, k_batch)
    x += z % count * tl.where(of_query, q_head, k_head)
    dim = tl.arange(0, W)
    gram = tl.zeros([W, W], tl.float32)
    total = tl.zeros([ROWS, W], tl.float32)  # summed over rows at the end, since that crosses warps
    squares = tl.zeros([ROWS], tl.float32)
    peak = tl.zeros([ROWS], tl.float32)
    nans = tl.zeros([ROWS], tl.float32)
    infs = tl.zeros([ROWS], tl.float32)
    for start in range(tl.program_id(0) * ROWS, length, PARTS * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < length)[:, None] & (dim < D)[None, :]
        at = row[:, None].to(tl.int64) * by_row + dim[None, :]
        given = tl.load(x + at, mask=inside, other=0.0)
        block = given.to(tl.float32)
        if EXACT:
            gram += tl.dot(tl.trans(block), block, input_precision="ieee")
        else:  # products of two fp16 or bf16 numbers are exact in fp32
            gram += tl.dot(tl.trans(given), given)
        total += block
        square = tl.sum(block * block, 1)
        squares += square
        peak = larger(peak, square)
        nans += (square != square).to(tl.float32)
        infs += (square == float("inf")).to(tl.float32)
    out += slot
    tl.store(out + dim[:, None] * W + dim[None, :], gram)
    tl.store(out + W * W + dim, tl.sum(total, 0))
    extra = out + W * W + W
    tl.store(extra + SQUARES, tl.sum(squares))
    # tl.max ignores NaN, so a part that has counted one stores NaN as its peak.
    found = tl.sum(nans)
    tl.store(extra + PEAK, tl.where(found > 0, float("nan"), tl.max(peak)))
    tl.store(extra + NANS, found)
    tl.store(extra + INFS, tl.sum(infs))


@triton.jit
def spread_of(squares, peak, others):
    """The largest norm over the root mean square of the others; NaN where there are none."""
    return tl.sqrt(others * peak / larger(squares - peak, squares * 0))


@triton.jit
def side_of(sums, z, PARTS: tl.constexpr, W: tl.constexpr, EXTRA: tl.constexpr):
    """The sums of one head over all parts: Gram matrix, sum, squares, peak, NaN and Inf counts."""
    SIZE: tl.constexpr = W * W + W + EXTRA
    dim = tl.arange(0, W)
    one = tl.arange(0, 1)
    gram = tl.zeros([W, W], tl.float32)
    total = tl.zeros([W], tl.float32)
    squares = tl.zeros([1], tl.float32)
    peak = tl.zeros([1], tl.float32)
    nans = tl.zeros([1], tl.float32)
    infs = tl.zeros([1], tl.float32)
    for part in tl.static_range(PARTS):  # unrolled, so that all loads are issued at once
        at = sums + (z * PARTS + part) * SIZE
        gram += tl.load(at + dim[:, None] * W + dim[None, :])
        total += tl.load(at + W * W + dim)
        extra = at + W * W + W + one
        squares += tl.load(extra + SQUARES)
        peak = larger(peak, tl.load(extra + PEAK))
        nans += tl.load(extra + NANS)
        infs += tl.load(extra + INFS)
    return gram, total, squares, peak, nans, infs


@triton.jit
def finish_kernel(
    sums, scratch, out, scale, softcap, batch, heads, key_heads, queries, keys,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr, W: tl.constexpr, CHUNK: tl.constexpr,
    EXTRA: tl.constexpr,
):  # fmt: skip
    """The vitals of one head of one call, from the sums of all batch entries; see `cheap.py`."""
    head = tl.program_id(0)
    call = tl.program_id(1).to(tl.int64)
    sums += call * batch * (heads + key_heads) * PARTS * (W * W + W + EXTRA)
    scratch += call * heads * 2 * W * W
    out += call * heads * COLUMNS
    gram = tl.zeros([W, W], tl.float32)
    covariance = tl.zeros([W, W], tl.float32)
    zero = tl.zeros([1], tl.float32)
    mean, variance, bound = zero, zero, zero
    q_squares, q_spread, q_nans, q_infs = zero, zero, zero, zero
    k_squares, k_spread, k_nans, k_infs = zero, zero, zero, zero
    for b in range(batch):
        here, total, squares, q_peak, nans, infs = side_of(sums, b * heads + head, PARTS, W, EXTRA)
        mean_query = total / queries
        gram += here
        q_squares += squares
        q_spread = larger(q_spread, spread_of(squares, q_peak, queries - 1))
        q_nans += nans
        q_infs += infs
        z = (batch * heads + b * key_heads) + head * key_heads // heads
        varied, total, squares, k_peak, nans, infs = side_of(sums, z, PARTS, W, EXTRA)
        center = total / keys
        varied -= keys * center[:, None] * center[None, :]
        covariance += varied
        k_squares += squares
        k_spread = larger(k_spread, spread_of(squares, k_peak, keys - 1))
        k_nans += nans
        k_infs += infs
        mean += tl.sum(mean_query * center)
        variance += larger(zero + tl.sum(here * varied), zero) / queries / keys
        bound = larger(bound, tl.sqrt(q_peak) * tl.sqrt(k_peak))
    rank, top = concentration(gram, covariance, scratch + head * 2 * W * W, W, CHUNK)
    # Columns in the order of `VITALS`; NaN in those that only other levels measure.
    out += head * COLUMNS
    column = tl.arange(0, 128)
    tl.store(out + column, float("nan"), mask=(column >= FUSED) & (column < COLUMNS))
    out += tl.arange(0, 1)
    tl.store(out, scale * mean / batch)
    tl.store(out + 1, scale * scale * variance / batch)
    bound = tl.abs(scale) * bound
    tl.store(out + 2, tl.where(bound > softcap, softcap, bound))
    tl.store(out + 3, tl.sqrt(q_squares / batch / queries))
    tl.store(out + 4, tl.sqrt(k_squares / batch / keys))
    tl.store(out + 5, q_spread)
    tl.store(out + 6, k_spread)
    tl.store(out + 7, zero + rank)
    tl.store(out + 8, zero + top)
    tl.store(out + 9, q_nans)
    tl.store(out + 10, q_infs)
    tl.store(out + 11, k_nans)
    tl.store(out + 12, k_infs)


@triton.jit
def product(x, y, scratch, W: tl.constexpr, CHUNK: tl.constexpr):
    """Matrix product in nearly fp32 on tensor cores.

    Operands that are too large for a program to hold at once go through memory, in chunks.
    """
    if CHUNK == W:
        return tl.dot(x, y, input_precision="tf32x3")
    dim, chunk = tl.arange(0, W), tl.arange(0, CHUNK)
    square = dim[:, None] * W + dim[None, :]
    tl.store(scratch + square, x)
    tl.store(scratch + W * W + square, y)
    tl.debug_barrier()
    out = tl.zeros([W, W], tl.float32)
    for start in range(0, W, CHUNK):
        left = tl.load(scratch + dim[:, None] * W + (start + chunk)[None, :])
        right = tl.load(scratch + W * W + (start + chunk)[:, None] * W + dim[None, :])
        out += tl.dot(left, right, input_precision="tf32x3")
    tl.debug_barrier()
    return out


@triton.jit
def concentration(gram, covariance, scratch, W: tl.constexpr, CHUNK: tl.constexpr):
    """Effective number of eigenvalues and share of the largest, as in `cheap.concentration`."""
    share = product(gram, covariance, scratch, W, CHUNK) / tl.sum(gram * covariance)
    power = share
    for _ in tl.static_range(3):
        power = product(power, power, scratch, W, CHUNK)
    power = power / tl.sqrt(tl.sum(power * tl.trans(power)))
    power = product(power, power, scratch, W, CHUNK)
    again = product(power, power, scratch, W, CHUNK)
    top = tl.sum(again * tl.trans(share)) / tl.sum(power * tl.trans(power))
    return 1 / tl.sum(share * tl.trans(share)), top


@triton.jit
def squares_kernel(
    x, out, length, by_batch, by_head, by_row, heads, D: tl.constexpr, W: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The sum of squares over the rows of one head that this program reads."""
    z = tl.program_id(1).to(tl.int64)
    x += z // heads * by_batch + z % heads * by_head
    dim = tl.arange(0, W)
    squares = tl.zeros([ROWS, W], tl.float32)
    for start in range(tl.program_id(0) * ROWS, length, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < length)[:, None] & (dim < D)[None, :]
        at = row[:, None].to(tl.int64) * by_row + dim[None, :]
        block = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        squares += block * block
    tl.store(out + z * tl.num_programs(0) + tl.program_id(0), tl.sum(squares))


class SumLayout(NamedTuple):
    """How the sums of calls of one size are laid out.

    Attributes:
        width: W.
        parts: how many programs share a head; a power of two, since each value compiles a kernel.
        sides: the number of query and key heads of all batch entries.
        numbers: how many numbers the sums of one call take.
    """

    width: int
    parts: int
    sides: int
    numbers: int


@functools.lru_cache(maxsize=256)
def layout_of(batch: int, heads: int, key_heads: int, longest: int, dims: int) -> SumLayout:
    """The layout of the sums of calls of these sizes.

    Cached, since Triton's helpers take more host time than the launch of a kernel.
    """
    width = max(16, triton.next_power_of_2(dims))
    sides = batch * (heads + key_heads)
    blocks = triton.cdiv(longest, ROWS)
    parts = triton.next_power_of_2(max(1, min(PROGRAMS // sides, blocks)))
    return SumLayout(width, parts, sides, sides * parts * (width * width + width + EXTRA))


class CallSizes(NamedTuple):
    """The sizes and options that calls must share to be finished together."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    dims: int
    scale: float
    softcap: float
    layout: SumLayout


def sizes_of(query: Tensor, key: Tensor, scale: float, softcap: float | None) -> CallSizes:
    """The sizes of a call with query (B, H, Q, D) and key (B, K, L, D)."""
    (batch, heads, queries, dims), (_, key_heads, keys, _) = query.shape, key.shape
    cap = math.inf if softcap is None else float(softcap)
    layout = layout_of(batch, heads, key_heads, max(queries, keys), dims)
    return CallSizes(batch, heads, key_heads, queries, keys, dims, float(scale), cap, layout)


def add_up(query: Tensor, key: Tensor, sizes: CallSizes, sums: Tensor) -> None:
    """Write the `layout.numbers` sums of one call into `sums`."""
    if INTERPRETED:
        query, key = query.float(), key.float()  # NumPy has no bf16
    width, parts, sides, _ = sizes.layout
    moments_kernel[(parts, sides)](
        query, key, sums, sizes.queries, sizes.keys, *query.stride()[:3], *key.stride()[:3],
        sizes.batch, sizes.heads, sizes.key_heads, parts, sizes.dims, width, ROWS, EXTRA,
        query.dtype == torch.float32, **LAUNCH[width <= 64],
    )  # fmt: skip


def finish(sums: Tensor, calls: int, sizes: CallSizes, columns: int) -> Tensor:
    """Vitals (calls, H, columns) from sums of adjacent calls; NaN beyond the first 13 columns."""
    heads, (width, parts, *_) = sizes.heads, sizes.layout
    rows = sums.new_empty(calls, heads, columns)
    by_memory = width > 64
    scratch = sums.new_empty(calls, heads, 2, width, width) if by_memory else rows
    finish_kernel[(heads, calls)](
        sums, scratch, rows, sizes.scale, sizes.softcap, sizes.batch, heads, sizes.key_heads,
        sizes.queries, sizes.keys, parts, columns, width, 16 if by_memory else width, EXTRA,
        num_warps=8,
    )  # fmt: skip
    return rows


def cheap_row(
    query: Tensor, key: Tensor, scale: float, softcap: float | None, columns: int
) -> Tensor:
    """Vitals (H, columns) of a single call."""
    sizes = sizes_of(query, key, scale, softcap)
    sums = query.new_empty(sizes.layout.numbers, dtype=torch.float32)
    add_up(query, key, sizes, sums)
    return finish(sums, 1, sizes, columns)[0]


@functools.lru_cache(maxsize=256)
def layout_of_squares(batch: int, heads: int, length: int, dims: int) -> tuple[int, int]:
    """W, and how many programs share a head."""
    parts = max(1, min(PROGRAMS_OF_SQUARES // (batch * heads), triton.cdiv(length, ROWS)))
    return max(16, triton.next_power_of_2(dims)), parts


def add_up_squares(gradient: Tensor, sums: Tensor) -> None:
    """Write B * K * parts sums of squares of a gradient (B, K, T, D)."""
    if INTERPRETED:
        gradient = gradient.float()
    batch, heads, length, dims = gradient.shape
    width, parts = layout_of_squares(batch, heads, length, dims)
    squares_kernel[(parts, batch * heads)](
        gradient, sums, length, *gradient.stride()[:3], heads, dims, width, ROWS, num_warps=4
    )
