"""Kernels for results requested rarely: raw scores, the best key, the norm of the softmax Jacobian."""

from __future__ import annotations

import triton.language as tl

import triton
from regard.engines.triton.structs import KernelSizes
from regard.engines.triton.tiles import (
    column_index,
    flat,
    is_other,
    key_range,
    off_the_maximum,
    row_index,
    row_max,
    row_sum,
    seen_pairs,
    tile_logits,
    tile_scores,
)


@triton.jit(do_not_specialize=["queries", "keys"])
def scores_kernel(
    form, pairs, groups, heads, queries, keys, value_dim, scores, tile, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the raw scores (Z, Q, L); one program for each tile."""
    sizes = KernelSizes(groups, heads, queries, keys, value_dim)
    down, across = tl.cdiv(sizes.queries, tile.BM), tl.cdiv(sizes.keys, tile.BN)
    z = tl.program_id(0) // (down * across)
    if is_other(z, form, sizes, None, tile):
        return
    first_row = tl.program_id(0) // across % down * tile.BM
    first_column = tl.program_id(0) % across * tile.BN
    score = tile_scores(form, sizes, z, first_row, first_column, tile, CHUNK)
    rows, columns = row_index(first_row, tile), column_index(first_column, tile)
    here, there = rows < sizes.queries, columns < sizes.keys
    head = z.to(tl.int64)
    # Added here and not by `final_logits`: raw scores have neither rate nor cap nor bias.
    if pairs.alpha is not None:
        score += tl.load(pairs.alpha + head * sizes.queries + rows, mask=here, other=0.0)
    if pairs.beta is not None:
        score += tl.load(pairs.beta + head * sizes.keys + columns, mask=there, other=0.0)
    row = first_row + tl.arange(0, tile.BM)[:, None]
    column = first_column + tl.arange(0, tile.BN)[None, :]
    at = (head * sizes.queries + row) * sizes.keys + column
    inside = (row < sizes.queries) & (column < sizes.keys)
    tl.store(scores + at, flat(score, tile), mask=inside)


@triton.jit(do_not_specialize=["queries", "keys"])
def best_kernel(
    form, pairs, groups, heads, queries, keys, value_dim, best, tile, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the index (Z, Q) of the visible key with the largest logit: -1 for none, -2 for NaN.

    Among equals it is the lowest.
    """
    sizes = KernelSizes(groups, heads, queries, keys, value_dim)
    blocks = tl.cdiv(sizes.queries, tile.BM)
    z, first_row = tl.program_id(0) // blocks, tl.program_id(0) % blocks * tile.BM
    if is_other(z, form, sizes, None, tile):
        return
    rows = row_index(first_row, tile)
    top = (rows * 0.0 - float("inf")).to(tile.WORK)
    index, broken = rows * 0 - 1, rows * 0.0
    first, last = key_range(pairs, sizes, z, first_row, tile)
    for first_column in range(first, last, tile.BN):
        columns = column_index(first_column, tile)
        seen = seen_pairs(pairs, sizes, z, rows, columns)
        logits = tile_logits(form, pairs, sizes, z, first_row, first_column, seen, tile, CHUNK)[2]
        # Counted apart: maxima pass over NaN.
        broken += row_sum(tl.where(logits != logits, 1.0, 0.0), tile)
        peak = row_max(logits, tile)
        # The lowest index is the largest of the negated ones.
        place = -row_max(tl.where(logits == peak, -columns, -(2**30)), tile)
        # Strictly larger: among equals in several tiles the first stays.
        index = tl.where(peak > top, place, index)
        top = tl.maximum(top, peak)
    index = tl.where(broken > 0, -2, index)
    tl.store(best + z.to(tl.int64) * sizes.queries + rows, index, mask=rows < sizes.queries)


@triton.jit(do_not_specialize=["queries", "keys"])
def jacobian_kernel(
    form, pairs, groups, heads, queries, keys, value_dim, sums, squares, cubes, tile,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Write sums (Z, Q) of weights, squares and cubes over all logits but one largest.

    Weights are relative to that of the largest, which is 1; the host scales them, see `calls.jacobian`.
    """
    sizes = KernelSizes(groups, heads, queries, keys, value_dim)
    blocks = tl.cdiv(sizes.queries, tile.BM)
    z, first_row = tl.program_id(0) // blocks, tl.program_id(0) % blocks * tile.BM
    if is_other(z, form, sizes, None, tile):
        return
    rows = row_index(first_row, tile)
    none = (rows * 0.0).to(tile.WORK)
    top, one, two, three = none - float("inf"), none, none, none
    first, last = key_range(pairs, sizes, z, first_row, tile)
    for first_column in range(first, last, tile.BN):
        seen = seen_pairs(pairs, sizes, z, rows, column_index(first_column, tile))
        logits = tile_logits(form, pairs, sizes, z, first_row, first_column, seen, tile, CHUNK)[2]
        raised = tl.maximum(top, row_max(logits, tile))
        base = tl.where(raised == -float("inf"), 0.0, raised)
        shrink, weights = tl.exp(top - base), tl.exp(logits - base)
        one = one * shrink + off_the_maximum(logits, weights, top, shrink, tile)
        power, shrunk = weights * weights, shrink * shrink
        two = two * shrunk + off_the_maximum(logits, power, top, shrunk, tile)
        power, shrunk = power * weights, shrunk * shrink
        three = three * shrunk + off_the_maximum(logits, power, top, shrunk, tile)
        top = raised
    inside = rows < sizes.queries
    at = z.to(tl.int64) * sizes.queries + rows
    tl.store(sums + at, one, mask=inside)
    tl.store(squares + at, two, mask=inside)
    tl.store(cubes + at, three, mask=inside)
