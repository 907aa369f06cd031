"""The backward kernel for few queries, such as the single one of a decoder.

A tile of the other backward is 16 or 32 queries high and would be nearly empty. Here one program owns a
block of keys of one head and processes all queries one after another, while the block stays in
registers. Gradients of its keys and values it writes once. Gradients of queries and of v it sums over its
own keys and writes to memory of its own; `sum_copies_kernel` then sums these copies. There are no atomic
additions, so that results are the same to the bit from run to run. As in `decode.py`, what depends on the
number of keys is an argument of its own.

Where the forward returned the weights they are read, and no score is computed again.
"""

from __future__ import annotations

import triton.language as tl

import triton
from regard.engines.triton.decode import GROWING, keys_at, summed_units, units_to_sum, values_at
from regard.engines.triton.structs import KernelForm, KernelSizes, PairTerms, Values
from regard.engines.triton.tiles import (
    activated,
    at_head,
    final_logits,
    seen_pairs,
    steepness,
    through_cap,
)


@triton.jit
def row_of(x, query, tile):
    """One row of a tile (BM, BN), as (BN, 1)."""
    own = tl.arange(0, tile.BM)[:, None] == query
    return tl.sum(tl.where(own, x, 0), 0)[:, None]


@triton.jit
def into_row(x, query, tile):
    """A tile (BM, BN) with x, (1, BN) or one number, in one row and 0 in the others."""
    own = tl.arange(0, tile.BM)[:, None] == query
    return tl.where(own, x, 0.0)


@triton.jit
def units_of(form, sizes, z, first, start, tile, WIDE: tl.constexpr, EVEN: tl.constexpr):
    """WIDE hidden units from `start` on: their indices, masks of real units and of pairs, b and v.

    The mask of pairs (key and unit) and b are (BN, WIDE), the others (WIDE,).
    """
    unit, keys = start + tl.arange(0, WIDE), first + tl.arange(0, tile.BN)
    real = unit < tile.REAL
    k, row = keys_at(form, sizes, z, EVEN)
    at = keys[:, None].to(tl.int64) * row + unit[None, :].to(tl.int64) * form.k_step
    inside = (keys[:, None] < sizes.keys) & real[None, :]
    b = tl.load(k + at, mask=inside, other=0.0).to(tile.WORK)
    v = form.v + z % (sizes.groups * sizes.heads) * tile.REAL
    return unit, real, inside, b, tl.load(v + unit, mask=real, other=0.0).to(tile.WORK)


@triton.jit
def first_query(form, sizes, z, unit):
    """The addresses of these hidden units of the first query; those of the next are `q_row` further."""
    q = form.q + at_head(z, sizes, form.q_b, form.q_k, form.q_g)
    return q + unit.to(tl.int64) * form.q_step


@triton.jit
def block_scores(form, sizes, z, first, tile, WIDE: tl.constexpr, EVEN: tl.constexpr):
    """Raw scores of all queries and a block of keys, (BM, BN)."""
    total = tl.zeros([tile.BM, tile.BN], tile.WORK)
    for start in range(0, tile.REAL, WIDE):
        unit, real, b, v = units_to_sum(form, sizes, z, first, start, tile, tile.BN, WIDE, EVEN)
        q = first_query(form, sizes, z, unit)
        for query in range(sizes.queries):
            a = tl.load(q, mask=real, other=0.0).to(tile.WORK)
            scores = summed_units(a, b, v, form, tile, tile.BN)
            total += into_row(scores[None, :], query, tile)
            q += form.q_row
    return total


@triton.jit
def block_values(
    sizes, values, known, grads, z, first, weights, seen, tile, CHUNK: tl.constexpr,
    EVEN: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """<grad, value - output> of each pair, (BM, BN); also writes the gradient of the values, or adds it."""
    slope = tl.zeros([tile.BM, tile.BN], tile.WORK)
    key = first + tl.arange(0, tile.BN)[:, None]
    value, width = values_at(sizes, values, z, EVEN)
    head = z.to(tl.int64)
    for start in range(0, sizes.value_dim, CHUNK):
        dims = start + tl.arange(0, CHUNK)
        at = key.to(tl.int64) * width + dims[None, :]
        inside = (key < sizes.keys) & (dims[None, :] < sizes.value_dim)
        x = tl.load(value + at, mask=inside, other=0.0).to(tile.WORK)
        given = tl.zeros([tile.BN, CHUNK], tile.WORK)
        for query in range(sizes.queries):
            row = (head * sizes.queries + query) * width + dims
            real = dims < sizes.value_dim
            grad = tl.load(known.grad + row, mask=real, other=0.0).to(tile.WORK)
            output = tl.load(known.output + row, mask=real, other=0.0).to(tile.WORK)
            # 0 * NaN is NaN: hidden values are replaced by 0, and so is the incoming gradient of a query
            # that sees nothing.
            visible = row_of(seen.to(tl.int32), query, tile) > 0
            beyond = tl.where(visible, x, 0.0) - output[None, :]
            slopes = tl.sum(grad[None, :] * beyond, 1)
            slope += into_row(slopes[None, :], query, tile)
            given += tl.where(visible, row_of(weights, query, tile) * grad[None, :], 0.0)
        into = grads.value + head * sizes.keys * width + at
        if ADDS:
            given += tl.load(into, mask=inside, other=0.0).to(tile.WORK)
        tl.store(into, given, mask=inside)
    return slope


@triton.jit
def gradient_by_weights(
    sizes, values, known, grads, z, first, seen, tile, CHUNK: tl.constexpr, EVEN: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    """The gradient of the logits (BM, BN) from the weights that the forward wrote; also that of the values."""
    rows = tl.arange(0, tile.BM)[:, None]
    columns = first + tl.arange(0, tile.BN)[None, :]
    row, here = z.to(tl.int64) * sizes.queries + rows, rows < sizes.queries
    at, inside = row * sizes.keys + columns, here & (columns < sizes.keys)
    weights = tl.load(known.weights + at, mask=inside, other=0.0)
    slope = block_values(
        sizes, values, known, grads, z, first, weights, seen, tile, CHUNK, EVEN, ADDS
    )
    if known.grad_weights is not None:
        slope += tl.load(known.grad_weights + at, mask=inside, other=0.0)
        # What the weights of a row get on average, which the softmax takes off.
        slope -= tl.load(known.shift + row, mask=here, other=0.0)
    return tl.where(seen, slope * weights, 0.0)


@triton.jit
def block_gradient(
    form, pairs, sizes, values, known, grads, z, first, part, parts, seen, tile, WIDE: tl.constexpr,
    CHUNK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The gradient of the raw scores (BM, BN); also writes those of values, bias and rate."""
    rows = tl.arange(0, tile.BM)[:, None]
    columns = first + tl.arange(0, tile.BN)[None, :]
    row, here = z.to(tl.int64) * sizes.queries + rows, rows < sizes.queries
    score = block_scores(form, sizes, z, first, tile, WIDE, EVEN)
    score, capped, final = final_logits(score, pairs, sizes, z, rows, columns, seen)
    peak = tl.load(known.peak + row, mask=here, other=0.0)
    tail = tl.load(known.tail + row, mask=here, other=0.0).to(tile.WORK)
    below = final - tl.where(peak == -float("inf"), 0.0, peak)
    # Two exponentials: below - tail would be rounded for each pair on its own, while the error of
    # exp(-tail) is the same for a whole row.
    weights = tl.where(seen, tl.exp(below) * tl.exp(-tail), 0.0)
    slope = block_values(
        sizes, values, known, grads, z, first, weights, seen, tile, CHUNK, EVEN, False
    )
    if known.grad_tail is not None:
        slope += tl.load(known.grad_tail + row, mask=here, other=0.0).to(tile.WORK)
    ds = tl.where(seen, slope * weights, 0.0)
    if grads.bias is not None:
        tl.store(grads.bias + row * sizes.keys + columns, ds, mask=here & (columns < sizes.keys))
    ds = through_cap(ds, capped, seen, pairs)
    if pairs.rate is not None:
        of_rate = tl.sum(tl.where(seen, ds * score, 0.0), 1)[:, None]
        at = (z.to(tl.int64) * parts + part) * sizes.queries + rows
        tl.store(grads.rate + at, of_rate, mask=here)
        ds = ds * tl.load(pairs.rate + row, mask=here, other=0.0)
    return ds


@triton.jit
def give_units(
    form, sizes, grads, z, first, part, parts, ds, seen, tile, WIDE: tl.constexpr, EVEN: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a, b and v for ds, the gradient of the raw scores, or add those of b and v."""
    head, keys = z.to(tl.int64), first + tl.arange(0, tile.BN)[:, None]
    own, heads = head * parts + part, tl.num_programs(0) // parts
    for start in range(0, tile.REAL, WIDE):
        unit, real, inside, b, v = units_of(form, sizes, z, first, start, tile, WIDE, EVEN)
        of_b = tl.zeros([tile.BN, WIDE], tile.WORK)
        of_v = tl.zeros([WIDE], tile.WORK)
        q = first_query(form, sizes, z, unit)
        for query in range(sizes.queries):
            x = tl.load(q, mask=real, other=0.0).to(tile.WORK)[None, :] + b
            y, given = activated(x, form, tile), row_of(ds, query, tile)
            # A hidden key may hold NaN, and 0 * NaN is NaN.
            visible = row_of(seen.to(tl.int32), query, tile) > 0
            terms = tl.where(visible, given * steepness(x, y, form, tile), 0.0)
            of_b += terms
            of_v += tl.sum(tl.where(visible, given * y, 0.0), 0)
            at = (own * sizes.queries + query) * tile.REAL + unit
            tl.store(grads.q + at, v * tl.sum(terms, 0), mask=real)
            q += form.q_row
        at = (head * sizes.keys + keys) * tile.REAL + unit[None, :]
        of_k = v[None, :] * of_b
        if ADDS:
            of_k += tl.load(grads.k + at, mask=inside, other=0.0).to(tile.WORK)
        tl.store(grads.k + at, of_k, mask=inside)
        into = grads.v + (part * heads + head) * tile.REAL + unit
        if ADDS:
            of_v += tl.load(into, mask=real, other=0.0)
        tl.store(into, of_v, mask=real)


@triton.jit
def give_nothing(
    pairs, sizes, grads, z, first, part, parts, tile, WIDE: tl.constexpr, CHUNK: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    """Write zeros as all gradients of a block of keys that no query sees, or leave what is there."""
    head, keys = z.to(tl.int64), first + tl.arange(0, tile.BN)[:, None]
    own, heads = head * parts + part, tl.num_programs(0) // parts
    for start in range(0, sizes.value_dim, CHUNK):
        dims = start + tl.arange(0, CHUNK)[None, :]
        inside = (keys < sizes.keys) & (dims < sizes.value_dim)
        at = (head * sizes.keys + keys) * sizes.value_dim + dims
        if not ADDS:
            tl.store(grads.value + at, tl.zeros([tile.BN, CHUNK], tile.WORK), mask=inside)
    for start in range(0, tile.REAL, WIDE):
        unit = start + tl.arange(0, WIDE)
        real, none = unit < tile.REAL, tl.zeros([WIDE], tile.WORK)
        for query in range(sizes.queries):
            tl.store(grads.q + (own * sizes.queries + query) * tile.REAL + unit, none, mask=real)
        if not ADDS:
            tl.store(grads.v + (part * heads + head) * tile.REAL + unit, none, mask=real)
        at = (head * sizes.keys + keys) * tile.REAL + unit[None, :]
        inside = (keys < sizes.keys) & real[None, :]
        if not ADDS:
            tl.store(grads.k + at, tl.zeros([tile.BN, WIDE], tile.WORK), mask=inside)
    rows, columns = tl.arange(0, tile.BM)[:, None], first + tl.arange(0, tile.BN)[None, :]
    here = rows < sizes.queries
    if grads.bias is not None:
        at = (head * sizes.queries + rows) * sizes.keys + columns
        none = tl.zeros([tile.BM, tile.BN], tile.WORK)
        tl.store(grads.bias + at, none, mask=here & (columns < sizes.keys))
    if pairs.rate is not None:
        none = tl.zeros([tile.BM, 1], tile.WORK)
        tl.store(grads.rate + own * sizes.queries + rows, none, mask=here)


@triton.jit(do_not_specialize=[*GROWING, "parts"])
def decode_backward_kernel(
    form, pairs, sizes, values, known, grads, keys, k_b, k_k, k_g, value_b, value_k, value_g, bias_b,
    bias_k, bias_g, bias_q, dense_b, dense_k, dense_g, dense_q, parts, tile, WIDE: tl.constexpr,
    CHUNK: tl.constexpr, EVEN: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """Write all gradients of `DecodePointers`; one program for each block of keys of each head.

    With ADDS the gradients of keys, values and v are added to what is there.
    """
    form = KernelForm(*form[:7], k_b, k_k, k_g, *form[10:])  # type: ignore[bad-argument-count]
    of_bias, of_dense = (bias_b, bias_k, bias_g, bias_q), (dense_b, dense_k, dense_g, dense_q)
    pairs = PairTerms(*pairs[:5], *of_bias, *pairs[9:11], *of_dense, *pairs[15:])  # type: ignore[bad-argument-count]
    sizes = KernelSizes(sizes.groups, sizes.heads, sizes.queries, keys, sizes.value_dim)
    values = Values(values.value, value_b, value_k, value_g, values.dropout, values.seed)
    part, z = tl.program_id(0) % parts, tl.program_id(0) // parts
    first = part * tile.BN
    rows = tl.arange(0, tile.BM)[:, None]
    seen = seen_pairs(pairs, sizes, z, rows, first + tl.arange(0, tile.BN)[None, :])
    if tile.HIDES:
        if tl.max(tl.max(seen.to(tl.int32), 1), 0) == 0:
            give_nothing(pairs, sizes, grads, z, first, part, parts, tile, WIDE, CHUNK, ADDS)
            return
    if known.weights is not None:
        ds = gradient_by_weights(
            sizes, values, known, grads, z, first, seen, tile, CHUNK, EVEN, ADDS
        )
    else:
        ds = block_gradient(
            form, pairs, sizes, values, known, grads, z, first, part, parts, seen, tile, WIDE, CHUNK,
            EVEN,
        )  # fmt: skip
    give_units(form, sizes, grads, z, first, part, parts, ds, seen, tile, WIDE, EVEN, ADDS)


@triton.jit(do_not_specialize=["copies", "of_copy", "of_row", "columns"])
def sum_copies_kernel(
    found, result, copies, of_copy, of_row, columns, COPIES: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Write (rows, columns), each the sum of copies that lie `of_copy` apart.

    One program sums some columns of one row, COPIES copies at a time.
    """
    blocks = tl.cdiv(columns, WIDE)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros([COPIES, WIDE], found.dtype.element_ty)
    for first in range(0, copies, COPIES):
        copy = first + tl.arange(0, COPIES)[:, None]
        inside = (copy < copies) & (column[None, :] < columns)
        at = row * of_row + copy.to(tl.int64) * of_copy + column[None, :]
        total += tl.load(found + at, mask=inside, other=0.0)
    sums = tl.sum(total, 0)
    tl.store(result + row * columns + column, sums, mask=column < columns)
