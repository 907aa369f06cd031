"""The cheap level in two kernels, for a GPU, where its eighty small operations would wait for launches.

`moments_kernel` reads queries and keys once and sums what all vitals need; `finish_kernel` makes the
vitals of each head of those sums, and reads nothing of the model, so that it may run beside it.

Shape legend: B batch, H query heads, K key heads, T length, D dims (W: up to a power of two).
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

import triton

INTERPRETED = triton.knobs.runtime.interpret
ROWS = 64  # rows that a program reads at once
PROGRAMS = 512  # about so many share the work
# After the Gram matrix and the sum of a side come these.
EXTRA = 4
SQUARES, PEAK, NANS, INFS = (tl.constexpr(i) for i in range(EXTRA))
# The first columns, in the order of `VITALS`, are made here.
FUSED = tl.constexpr(13)


@triton.jit
def larger(x, y):
    """The maximum, NaN where one is."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def moments_kernel(
    query, key, out, queries, keys, q_batch, q_head, q_row, k_batch, k_head, k_row, batch, heads,
    key_heads, PARTS: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
    ROWS: tl.constexpr, EXTRA: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Sums over one of PARTS parts of the rows of one head, of the query or, after all those, the key."""
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
    total = tl.zeros([ROWS, W], tl.float32)  # summed over rows at the end: that goes across warps
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
        else:  # products of halves are exact in fp32
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
    # tl.max passes over NaN; a part that has one has counted it.
    found = tl.sum(nans)
    tl.store(extra + PEAK, tl.where(found > 0, float("nan"), tl.max(peak)))
    tl.store(extra + NANS, found)
    tl.store(extra + INFS, tl.sum(infs))


@triton.jit
def spread_of(squares, peak, others):
    """The largest norm over the root mean square of the others; not a number where there are none."""
    return tl.sqrt(others * peak / larger(squares - peak, squares * 0))


@triton.jit
def side_of(sums, z, PARTS: tl.constexpr, W: tl.constexpr, EXTRA: tl.constexpr):
    """The parts of one head put together: Gram matrix, sum, squares, largest, NaN and Inf."""
    SIZE: tl.constexpr = W * W + W + EXTRA
    dim = tl.arange(0, W)
    one = tl.arange(0, 1)
    gram = tl.zeros([W, W], tl.float32)
    total = tl.zeros([W], tl.float32)
    squares = tl.zeros([1], tl.float32)
    peak = tl.zeros([1], tl.float32)
    nans = tl.zeros([1], tl.float32)
    infs = tl.zeros([1], tl.float32)
    for part in tl.static_range(PARTS):  # all loads at once
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
    """The vitals of one head, of the sums of all batch entries; the formulas are in `cheap.py`."""
    head = tl.program_id(0)
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

    Where operands are more than a program can hold at once, by way of memory, in chunks.
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
    """As `cheap.concentration` has it."""
    share = product(gram, covariance, scratch, W, CHUNK) / tl.sum(gram * covariance)
    power = share
    for _ in tl.static_range(3):
        power = product(power, power, scratch, W, CHUNK)
    power = power / tl.sqrt(tl.sum(power * tl.trans(power)))
    power = product(power, power, scratch, W, CHUNK)
    again = product(power, power, scratch, W, CHUNK)
    top = tl.sum(again * tl.trans(share)) / tl.sum(power * tl.trans(power))
    return 1 / tl.sum(share * tl.trans(share)), top


def cheap_row(
    query: Tensor, key: Tensor, scale: float, softcap: float | None, columns: int
) -> Tensor:
    """Vitals (H, columns) of query (B, H, Q, D) and key (B, K, L, D); NaN from the 13th on."""
    (batch, heads, queries, dims), (_, key_heads, keys, _) = query.shape, key.shape
    width = max(16, triton.next_power_of_2(dims))
    sides = batch * (heads + key_heads)
    blocks = triton.cdiv(max(queries, keys), ROWS)
    # A power of two, since each number is another kernel.
    parts = triton.next_power_of_2(max(1, min(PROGRAMS // sides, blocks)))
    sums = query.new_empty(sides, parts, width * width + width + EXTRA, dtype=torch.float32)
    if INTERPRETED:
        query, key = query.float(), key.float()  # NumPy has no bf16
    warps = 4 if width <= 64 else 8
    moments_kernel[(parts, sides)](
        query, key, sums, queries, keys, *query.stride()[:3], *key.stride()[:3], batch, heads,
        key_heads, parts, dims, width, ROWS, EXTRA, query.dtype == torch.float32, num_warps=warps,
    )  # fmt: skip
    row = sums.new_empty(heads, columns)
    scratch = sums.new_empty(heads, 2, width, width)
    finish_kernel[(heads,)](
        sums, scratch, row, float(scale), float("inf") if softcap is None else float(softcap),
        batch, heads, key_heads, queries, keys, parts, columns, width, width if width <= 64 else 16, EXTRA, num_warps=8,
    )  # fmt: skip
    return row
