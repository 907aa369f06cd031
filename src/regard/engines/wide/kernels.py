"""The two Triton kernels: outputs by an online softmax, and weights with gradients of logits.

Both make the logits of a tile of pairs from features, BK columns at a time, in fp32. Logits are in units
of log 2, because the GPU has an instruction for 2^x.

Shape legend: Z heads, Q queries, L keys, W width of the features (a multiple of BK), X width of the
values; a tile has BM queries and BN keys. All tensors are contiguous.
"""

from __future__ import annotations

import triton.language as tl

import triton
from regard.engines.drawing import is_kept

LOG2_E, LN_2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)


@triton.jit
def rows_at(x, z, length, first, count: tl.constexpr, width, step: tl.constexpr):
    """Pointers (count, step) to the first `step` columns of the rows from `first` on, of head z.

    Rows beyond the end are the last row again, whose pairs are hidden: a load without a mask is faster.
    """
    # 64 bits for the head and the first row; within a tile 32 bits are enough.
    base = x + (z.to(tl.int64) * length + first) * width
    row = tl.minimum(tl.arange(0, count), length - 1 - first)
    return base + row[:, None] * width + tl.arange(0, step)[None, :]


@triton.jit
def tile_of_logits(
    phi, psi, z, first_row, first_column, queries, keys, W: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The logits (BM, BN) of a tile in units of log 2."""
    x = rows_at(phi, z, queries, first_row, BM, W, BK)
    y = rows_at(psi, z, keys, first_column, BN, W, BK)
    total = tl.zeros([BM, BN], tl.float32)
    for first in range(0, W, BK):
        total = tl.dot(tl.load(x + first), tl.trans(tl.load(y + first)), total)
    return total * LOG2_E


@triton.jit
def seen_pairs(
    start, stop, query_segment, key_segment, z, row, column, queries, keys, span_z,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Which pairs (BM, BN) of the tile with these rows and columns are seen."""
    here, there = row < queries, column < keys
    seen = here[:, None] & there[None, :]
    span = z.to(tl.int64) * span_z + row
    if CAUSAL:
        seen = seen & (column[None, :] <= row[:, None])
    if start is not None:
        seen = seen & (column[None, :] >= tl.load(start + span, mask=here, other=0)[:, None])
    if stop is not None:
        seen = seen & (column[None, :] < tl.load(stop + span, mask=here, other=0)[:, None])
    if query_segment is not None:
        own = tl.load(query_segment + z.to(tl.int64) * queries + row, mask=here, other=-1)
        theirs = tl.load(key_segment + z.to(tl.int64) * keys + column, mask=there, other=-2)
        seen = seen & (own[:, None] == theirs[None, :]) & (own >= 0)[:, None]
    return seen


@triton.jit
def range_of_keys(
    start, stop, z, first_row, queries, keys, span_z, CAUSAL: tl.constexpr, BM: tl.constexpr
):
    """The first key and the end of the keys that any query of the tile may see."""
    row = first_row + tl.arange(0, BM)
    span, here = z.to(tl.int64) * span_z + row, row < queries
    first, last = 0, keys
    if CAUSAL:
        last = tl.minimum(keys, first_row + BM)
    if start is not None:
        first = tl.maximum(tl.min(tl.load(start + span, mask=here, other=2**31 - 1), 0), 0)
    if stop is not None:
        last = tl.minimum(tl.max(tl.load(stop + span, mask=here, other=0), 0), last)
    return first, last


@triton.jit(do_not_specialize=["first_head"])
def attend_kernel(
    phi, psi, value, out, lse, start, stop, query_segment, key_segment, seed,
    first_head, queries, keys, blocks, span_z, dropout,
    W: tl.constexpr, X: tl.constexpr, CAUSAL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write out (Z, Q, X) and lse (Z, Q), one program for each block of queries of each head."""
    z = tl.program_id(0) // blocks
    # The last queries first: under a causal mask they see the most keys.
    first_row = (blocks - 1 - tl.program_id(0) % blocks) * BM
    row = first_row + tl.arange(0, BM)
    top = tl.full([BM], -float("inf"), tl.float32)
    total, sums = tl.zeros([BM], tl.float32), tl.zeros([BM, X], tl.float32)
    first, last = range_of_keys(start, stop, z, first_row, queries, keys, span_z, CAUSAL, BM)
    for first_column in range(first, last, BN):
        column = first_column + tl.arange(0, BN)
        logits = tile_of_logits(phi, psi, z, first_row, first_column, queries, keys, W, BM, BN, BK)
        seen = seen_pairs(
            start, stop, query_segment, key_segment, z, row, column, queries, keys, span_z, CAUSAL
        )
        logits = tl.where(seen, logits, -float("inf"))
        raised = tl.maximum(top, tl.max(logits, 1))
        # Rows that have seen nothing yet: -inf - -inf would be NaN.
        base = tl.where(raised == -float("inf"), 0.0, raised)
        weights = tl.exp2(logits - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        if seed is not None:
            keeps = is_kept(seed, first_head + z, row[:, None], column[None, :], queries, dropout)
            weights = tl.where(keeps, weights, 0.0)
        y = tl.load(rows_at(value, z, keys, first_column, BN, X, X))
        sums = tl.dot(weights.to(y.dtype), y, sums * shrink[:, None])
        top = raised
    filled = tl.where(total == 0.0, 1.0, total)
    at = z.to(tl.int64) * queries + row
    tl.store(lse + at, (top + tl.log2(filled)) * LN_2, mask=row < queries)
    sums = sums / (filled * (1.0 - dropout))[:, None]
    to = out + at[:, None] * X + tl.arange(0, X)[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=(row < queries)[:, None])


@triton.jit
def along_kernel(grad, out, along, rows, X: tl.constexpr, ROWS: tl.constexpr):
    """Write `along` (rows,), the sum of grad times out (rows, X) over each row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = row.to(tl.int64)[:, None] * X + tl.arange(0, X)[None, :]
    inside = (row < rows)[:, None]
    x = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(along + row, tl.sum(x * y, 1), mask=row < rows)


@triton.jit(do_not_specialize=["first_head", "chunk"])
def slopes_kernel(
    phi, psi, value, grad, along, lse, weights, slopes, start, stop, query_segment, key_segment,
    seed, first_head, chunk, queries, keys, rows, seen_keys, step, span_z,
    dropout, weight_scale, slope_scale,
    W: tl.constexpr, X: tl.constexpr, CAUSAL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write the weights P and the gradients dS of the logits of a chunk of queries, (Z, rows, step).

    The chunk begins at query `chunk`; its first `seen_keys` keys are written, one program for each tile.
    Weights are kept ones only, without 1 / (1 - dropout). Both are multiplied by a scale, a power of two
    that keeps small ones out of the subnormal numbers of fp16.
    """
    down, across = tl.cdiv(rows, BM), tl.cdiv(seen_keys, BN)
    z = tl.program_id(0) // (down * across)
    # Rows first: programs that run together share keys, which are the longer side.
    in_chunk = tl.program_id(0) % down * BM
    first_row, first_column = chunk + in_chunk, tl.program_id(0) // down % across * BN
    row, column = first_row + tl.arange(0, BM), first_column + tl.arange(0, BN)
    first, last = range_of_keys(start, stop, z, first_row, queries, keys, span_z, CAUSAL, BM)
    p, ds = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
    if (first_column < last) & (first_column + BN > first):
        at, here = z.to(tl.int64) * queries + row, row < queries
        ends = tl.load(lse + at, mask=here, other=0.0) * LOG2_E
        mean = tl.load(along + at, mask=here, other=0.0)
        x = tl.load(rows_at(grad, z, queries, first_row, BM, X, X))
        y = tl.load(rows_at(value, z, keys, first_column, BN, X, X))
        slope = tl.dot(x, tl.trans(y)) * (1.0 / (1.0 - dropout)) - mean[:, None]
        # In fp16 it takes half of the registers while the logits are made, so that two programs fit on a
        # multiprocessor: one computes while the other loads and stores.
        slope = slope.to(slopes.dtype.element_ty)
        logits = tile_of_logits(phi, psi, z, first_row, first_column, queries, keys, W, BM, BN, BK)
        seen = seen_pairs(
            start, stop, query_segment, key_segment, z, row, column, queries, keys, span_z, CAUSAL
        )
        # A pair that is seen has a finite LSE, and the others are not looked at.
        p = tl.where(seen, tl.exp2(logits - ends[:, None]), 0.0)
        slope = slope.to(tl.float32)
        if seed is not None:
            keeps = is_kept(seed, first_head + z, row[:, None], column[None, :], queries, dropout)
            ds = p * tl.where(keeps, slope, -mean[:, None])
            p = tl.where(keeps, p, 0.0)
        else:
            ds = p * slope
        ds = tl.where(seen, ds, 0.0)
    place = in_chunk + tl.arange(0, BM)
    at = (z.to(tl.int64) * rows + place)[:, None] * step + column[None, :]
    inside = (place < rows)[:, None] & (column < step)[None, :]
    tl.store(weights + at, (p * weight_scale).to(weights.dtype.element_ty), mask=inside)
    tl.store(slopes + at, (ds * slope_scale).to(slopes.dtype.element_ty), mask=inside)
