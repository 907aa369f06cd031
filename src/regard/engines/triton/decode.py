"""The forward kernel for few queries, such as a decoder's one: every key is read once, as it lies.

With one query there is nothing to share between the rows of a tile, and no time to lay keys out. One
program takes a part of the keys of one query and head; where heads are few, several programs share
the keys of one, and `combine_kernel` puts their parts together.
"""

from __future__ import annotations

import triton.language as tl

import triton
from regard.engines.triton.tiles import (
    activated,
    at_head,
    final_logits,
    seen_pairs,
)


@triton.jit
def row_scores(form, sizes, z, query, first, tile, BK: tl.constexpr, WIDE: tl.constexpr):
    """Raw scores of one query and BK keys, (BK,)."""
    # 64 bits: queries or units may be the outermost dim of a large memory.
    q = form.q + at_head(z, sizes, form.q_b, form.q_k, form.q_g) + query.to(tl.int64) * form.q_row
    k = form.k + at_head(z, sizes, form.k_b, form.k_k, form.k_g)
    v = form.v + z % (sizes.groups * sizes.heads) * tile.REAL
    keys = first + tl.arange(0, BK)
    inside = keys < sizes.keys
    total = tl.zeros([BK], tile.WORK)
    for start in range(0, tile.REAL, WIDE):
        unit = (start + tl.arange(0, WIDE)).to(tl.int64)
        real = unit < tile.REAL
        a = tl.load(q + unit * form.q_step, mask=real, other=0.0).to(tile.WORK)
        at = keys[:, None].to(tl.int64) * form.k_row + unit[None, :] * form.k_step
        b = tl.load(k + at, mask=inside[:, None] & real[None, :], other=0.0).to(tile.WORK)
        weight = tl.load(v + unit, mask=real, other=0.0).to(tile.WORK)
        total += tl.sum(weight[None, :] * activated(a[None, :] + b, form, tile), 1)
    return total


@triton.jit
def add_both(a, b, other_a, other_b):
    """Two sums."""
    return a + other_a, b + other_b


@triton.jit
def sums_together(x, y, axis: tl.constexpr, tile):
    """Sums of two tensors of one shape.

    As one reduction, which makes the compiler keep both in the same lanes: on their own each gets an
    arrangement, and all that it was computed from is computed twice. The interpreter takes them one by
    one, or it would go through them number by number.
    """
    if tile.INTERPRET:
        return tl.sum(x, axis, keep_dims=True), tl.sum(y, axis, keep_dims=True)
    else:
        return tl.reduce((x, y), axis, add_both, keep_dims=True)


@triton.jit
def decode_kernel(
    form, pairs, sizes, values, output, totals, tops, parts, share, tile, BK: tl.constexpr,
    WIDE: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """One part of the keys of one query: sums (Z, Q, parts, dv), totals and largest logits.

    SIDE keys lie side by side in the lanes, and the others of a block behind them in registers. Each of
    the SIDE has a softmax of its own, so that lanes have nothing to tell each other until the end.
    """
    part = tl.program_id(0) % parts
    row = tl.program_id(0) // parts
    z, query = row // sizes.queries, row % sizes.queries
    dims = tl.arange(0, tile.DV)[None, None, :]
    value = values.value + at_head(z, sizes, values.value_b, values.value_k, values.value_g)
    top = tl.full([SIDE, 1, 1], -float("inf"), tile.WORK)
    total = tl.zeros([SIDE, 1, tile.DV], tile.WORK)
    sums = tl.zeros([SIDE, 1, tile.DV], tile.WORK)
    rows = query + tl.arange(0, 1)[:, None]
    beside, behind = tl.arange(0, SIDE)[:, None, None], tl.arange(0, BK // SIDE)[None, :, None]
    for first in range(part * share, tl.minimum((part + 1) * share, sizes.keys), BK):
        # Before the scores, so that both wait for memory at once.
        key = first + beside * (BK // SIDE) + behind
        inside = (key < sizes.keys) & (dims < sizes.value_dim)
        x = tl.load(value + key.to(tl.int64) * sizes.value_dim + dims, mask=inside, other=0.0)
        columns = first + tl.arange(0, BK)[None, :]
        seen = seen_pairs(pairs, sizes, z, rows, columns)
        score = row_scores(form, sizes, z, query, first, tile, BK, WIDE)[None, :]
        logits = final_logits(score, pairs, sizes, z, rows, columns, seen)[2]
        logits = tl.reshape(logits, [SIDE, BK // SIDE, 1])
        raised = tl.maximum(top, tl.max(logits, 1, keep_dims=True))
        base = tl.where(raised == -float("inf"), 0.0, raised)
        shrink = tl.exp(top - base)
        weights = tl.broadcast_to(tl.exp(logits - base), [SIDE, BK // SIDE, tile.DV])
        terms = weights * x.to(tile.WORK)
        if tile.HIDES:
            # A value that is not seen is not read into the sum, whatever it holds.
            terms = tl.where(tl.reshape(seen, [SIDE, BK // SIDE, 1]), terms, 0.0)
        more, further = sums_together(weights, terms, 1, tile)
        total, sums = total * shrink + more, sums * shrink + further
        top = raised
    raised = tl.max(top, 0, keep_dims=True)
    shrink = tl.exp(top - tl.where(raised == -float("inf"), 0.0, raised))
    whole, found = sums_together(total * shrink, sums * shrink, 0, tile)
    at = tl.program_id(0).to(tl.int64)
    raised, here = tl.where(whole != whole, whole, raised), dims == 0
    tl.store(tops + at + dims * 0, raised, mask=here)
    tl.store(totals + at + dims * 0, whole, mask=here)
    tl.store(output + at * sizes.value_dim + dims, found, mask=dims < sizes.value_dim)


@triton.jit
def combine_kernel(
    parts_output, totals, tops, output, tail, entropy, peak, parts, value_dim,
    PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Put the parts of one query together, CHUNK dims of the values in each program.

    The entropy, which nobody asked for, is 0 or None.
    """
    chunks = tl.cdiv(value_dim, CHUNK)
    row = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    n, dims = tl.arange(0, PARTS), chunk * CHUNK + tl.arange(0, CHUNK)
    real = n < parts
    top = tl.load(tops + row * parts + n, mask=real, other=-float("inf"))
    total = tl.load(totals + row * parts + n, mask=real, other=0.0)
    raised = tl.max(top, 0)
    base = tl.where(raised == -float("inf"), 0.0, raised)
    shrink = tl.where(real, tl.exp(top - base), 0.0)
    whole = tl.sum(total * shrink, 0)
    filled = tl.where(whole == 0.0, 1.0, whole)
    at = (row * parts + n[:, None]) * value_dim + dims[None, :]
    inside = real[:, None] & (dims[None, :] < value_dim)
    sums = tl.load(parts_output + at, mask=inside, other=0.0) * shrink[:, None]
    tl.store(output + row * value_dim + dims, tl.sum(sums, 0) / filled, mask=dims < value_dim)
    if chunk == 0:
        tl.store(tail + row, tl.log(filled))
        if entropy is not None:
            tl.store(entropy + row, 0.0)
        # A maximum passes over NaN, a sum does not.
        tl.store(peak + row, tl.where(whole != whole, whole, raised))
