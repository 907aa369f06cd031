"""The forward kernel: scores, online softmax and the weighted sum of values, statistics included."""

from __future__ import annotations

import triton.language as tl

import triton
from regard.engines.triton.tiles import (
    at_head,
    column_index,
    flat,
    is_other,
    kept,
    key_range,
    off_the_maximum,
    row_index,
    row_max,
    row_sum,
    row_vector,
    seen_pairs,
    selecting_dot,
    some,
    tile_logits,
)


@triton.jit
def forward_step(
    form, pairs, sizes, values, z, first_row, first_column, seen, state, tile, CHUNK: tl.constexpr,
    ENTROPY: tl.constexpr,
):  # fmt: skip
    """Take one tile into the state (largest logit, total, rest, moment, sums)."""
    top, total, rest, moment, sums = state
    logits = tile_logits(form, pairs, sizes, z, first_row, first_column, seen, tile, CHUNK)[2]
    raised = tl.maximum(top, row_max(logits, tile))
    base = tl.where(raised == -float("inf"), 0.0, raised)
    shrink = tl.exp(top - base)
    below = logits - base
    weights = tl.exp(below)
    if ENTROPY:
        rest = rest * shrink + off_the_maximum(logits, weights, top, shrink, tile)
        lift = tl.where(top == -float("inf"), 0.0, top - base)
        terms = tl.where(below == -float("inf"), 0.0, weights * below)
        moment = shrink * (moment + lift * total) + row_sum(terms, tile)
    total = total * shrink + row_sum(weights, tile)
    if values.seed is not None:
        weights = weights * kept(values, sizes, z, first_row, first_column, tile)
    columns = first_column + tl.arange(0, tile.BN)
    dims = tl.arange(0, tile.DV)
    value = values.value + at_head(z, sizes, values.value_b, values.value_k, values.value_g)
    inside = (columns[:, None] < sizes.keys) & (dims[None, :] < sizes.value_dim)
    at = columns[:, None].to(tl.int64) * sizes.value_dim + dims[None, :]
    x = tl.load(value + at, mask=inside, other=0.0).to(tile.DOT)
    sums = sums * row_vector(shrink, tile)[:, None]
    sums = selecting_dot(flat(weights.to(tile.DOT), tile), x, flat(seen, tile), sums, tile)
    return raised, total, rest, moment, sums


@triton.jit
def forward_kernel(
    form, pairs, sizes, values, skip, output, tail, entropy, peak, tile, CHUNK: tl.constexpr,
    ENTROPY: tl.constexpr,
):  # fmt: skip
    """One program for each block of queries of each head.

    Results: output (Z, Q, dv), tail, entropy (0 unless asked for) and peak (Z, Q). Where the flag `skip` is given and
    set, nothing is done: the caller has the result already.
    """
    blocks = tl.cdiv(sizes.queries, tile.BM)
    z = tl.program_id(0) // blocks
    if is_other(z, form, sizes, skip, tile):
        return
    first_row = tl.program_id(0) % blocks * tile.BM
    rows = row_index(first_row, tile)
    none = rows * 0.0
    state = (
        (none - float("inf")).to(tile.WORK),
        none.to(tile.WORK),
        none.to(tile.WORK),
        none.to(tile.WORK),
        tl.zeros([tile.BM, tile.DV], tile.WORK),
    )
    first, last = key_range(pairs, sizes, z, first_row, tile)
    for first_column in range(first, last, tile.BN):
        columns = column_index(first_column, tile)
        seen = seen_pairs(pairs, sizes, z, rows, columns)
        if tile.SPARSE:
            if some(seen, tile) > 0:
                state = forward_step(
                    form, pairs, sizes, values, z, first_row, first_column, seen, state, tile,
                    CHUNK, ENTROPY,
                )  # fmt: skip
        else:
            state = forward_step(
                form, pairs, sizes, values, z, first_row, first_column, seen, state, tile, CHUNK,
                ENTROPY,
            )  # fmt: skip
    top, total, rest, moment, sums = state
    inside = rows < sizes.queries
    at = z.to(tl.int64) * sizes.queries + rows
    filled = tl.where(total == 0.0, 1.0, total)
    log_total = tl.log(filled)
    if ENTROPY:
        # log1p by hand: near 0 the logarithm of 1 + rest has lost the digits of rest.
        log_total = tl.where(rest < 1e-4, rest - 0.5 * rest * rest, tl.log(1.0 + rest))
        tl.store(entropy + at, log_total - moment / filled, mask=inside)
    elif entropy is not None:
        # Where it is not asked for: the same call gives the same numbers.
        tl.store(entropy + at, none, mask=inside)
    tl.store(tail + at, log_total, mask=inside)
    # A maximum passes over NaN, a sum does not.
    tl.store(peak + at, tl.where(total != total, total, top), mask=inside)
    dims = tl.arange(0, tile.DV)[None, :]
    row = first_row + tl.arange(0, tile.BM)[:, None]
    at = (z.to(tl.int64) * sizes.queries + row) * sizes.value_dim + dims
    sums = sums / row_vector(filled, tile)[:, None]
    tl.store(output + at, sums, mask=(row < sizes.queries) & (dims < sizes.value_dim))
