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
def decode_kernel(
    form, pairs, sizes, values, output, totals, tops, parts, share, tile, BK: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One part of the keys of one query: sums (Z, Q, parts, dv), totals and largest logits."""
    part = tl.program_id(0) % parts
    row = tl.program_id(0) // parts
    z, query = row // sizes.queries, row % sizes.queries
    dims = tl.arange(0, tile.DV)
    value = values.value + at_head(z, sizes, values.value_b, values.value_k, values.value_g)
    top = tl.full([1], -float("inf"), tile.WORK)
    total = tl.zeros([1], tile.WORK)
    sums = tl.zeros([tile.DV], tile.WORK)
    rows = query + tl.arange(0, 1)[:, None]
    for first in range(part * share, tl.minimum((part + 1) * share, sizes.keys), BK):
        keys = first + tl.arange(0, BK)
        columns = keys[None, :]
        seen = seen_pairs(pairs, sizes, z, rows, columns)
        score = row_scores(form, sizes, z, query, first, tile, BK, WIDE)[None, :]
        logits = final_logits(score, pairs, sizes, z, rows, columns, seen)[2]
        raised = tl.maximum(top, tl.max(logits, 1))
        base = tl.where(raised == -float("inf"), 0.0, raised)
        shrink = tl.exp(top - base)
        weights = tl.exp(logits - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        inside = (keys[:, None] < sizes.keys) & (dims[None, :] < sizes.value_dim)
        at = keys[:, None].to(tl.int64) * sizes.value_dim + dims[None, :]
        x = tl.load(value + at, mask=inside, other=0.0).to(tile.WORK)
        # A value that is not seen is not read into the sum, whatever it holds.
        column = tl.reshape(weights, [BK, 1])
        terms = tl.where(tl.reshape(seen, [BK, 1]), column * x, 0.0)
        sums = sums * shrink + tl.sum(terms, 0)
        top = raised
    at = tl.program_id(0).to(tl.int64)
    tl.store(tops + at + tl.arange(0, 1), tl.where(total != total, total, top))
    tl.store(totals + at + tl.arange(0, 1), total)
    tl.store(output + at * sizes.value_dim + dims, sums, mask=dims < sizes.value_dim)


@triton.jit
def combine_kernel(
    parts_output, totals, tops, output, tail, entropy, peak, parts, value_dim,
    PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Put the parts of one query together, CHUNK dims of the values at a time.

    The entropy, which nobody asked for, is 0 or None.
    """
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, PARTS)
    real = n < parts
    top = tl.load(tops + row * parts + n, mask=real, other=-float("inf"))
    total = tl.load(totals + row * parts + n, mask=real, other=0.0)
    raised = tl.max(top, 0)
    base = tl.where(raised == -float("inf"), 0.0, raised)
    shrink = tl.where(real, tl.exp(top - base), 0.0)
    whole = tl.sum(total * shrink, 0)
    filled = tl.where(whole == 0.0, 1.0, whole)
    for first in range(0, value_dim, CHUNK):
        dims = first + tl.arange(0, CHUNK)
        at = (row * parts + n[:, None]) * value_dim + dims[None, :]
        inside = real[:, None] & (dims[None, :] < value_dim)
        sums = tl.load(parts_output + at, mask=inside, other=0.0) * shrink[:, None]
        tl.store(output + row * value_dim + dims, tl.sum(sums, 0) / filled, mask=dims < value_dim)
    tl.store(tail + row, tl.log(filled))
    if entropy is not None:
        tl.store(entropy + row, 0.0)
    # A maximum passes over NaN, a sum does not.
    tl.store(peak + row, tl.where(whole != whole, whole, raised))
