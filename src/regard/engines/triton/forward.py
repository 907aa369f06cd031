"""The forward kernel: scores, online softmax and the weighted sum of values, statistics included."""

from __future__ import annotations

import triton.language as tl

import triton
from regard.engines.triton.structs import KernelSizes
from regard.engines.triton.tiles import (
    at_head,
    by_fma,
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

# Keys of one product in fp32. It holds whole operands in registers, of which more keys need too many.
PART_KEYS = tl.constexpr(16)
# Value dims up to which one product takes all keys in fp32 nevertheless, where no pair is hidden.
FEW_DIMS = 64
# `count_bad` counts +inf, -inf and NaN in the digits of one number to this base, which is more than the
# keys of a tile.
MINUS, NAN = tl.constexpr(128), tl.constexpr(128**2)


@triton.constexpr_function
def in_parts(dtype, precision, hides, dims):
    """Whether weighted values are added some keys at a time: in fp32 a whole tile would spill registers."""
    return by_fma(dtype, precision) and (hides or dims > FEW_DIMS)


@triton.jit
def read_values(values, sizes, z, first_column, KEYS: tl.constexpr, tile):
    """The values of KEYS keys, (KEYS, DV)."""
    columns = first_column + tl.arange(0, KEYS)
    dims = tl.arange(0, tile.DV)
    value = values.value + at_head(z, sizes, values.value_b, values.value_k, values.value_g)
    inside = (columns[:, None] < sizes.keys) & (dims[None, :] < sizes.value_dim)
    at = columns[:, None].to(tl.int64) * sizes.value_dim + dims[None, :]
    return tl.load(value + at, mask=inside, other=0.0).to(tile.DOT)


@triton.jit
def halves(x, tile):
    """The first and second half, along the keys, of a tile or a part of it.

    With 5 dims (see `tiles.py`) the halves are different registers, so that splitting moves nothing.
    """
    if tile.FIVE:
        x = tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2, x.shape[2], x.shape[3], x.shape[4]])
        return tl.split(tl.permute(x, (0, 2, 3, 4, 5, 1)))
    else:
        return tl.split(tl.permute(tl.reshape(x, [tile.BM, 2, x.shape[1] // 2]), (0, 2, 1)))


@triton.jit
def flat_part(x, KEYS: tl.constexpr, tile):
    """A part of a tile as (BM, KEYS), see `tiles.flat`."""
    if tile.FIVE:
        return tl.reshape(tl.permute(x, (0, 3, 1, 2, 4)), [tile.BM, KEYS])
    else:
        return x


@triton.jit
def add_in_parts(values, sizes, z, first_column, weights, sums, tile):
    """`sums` plus the weighted values, added some keys at a time; and where values are NaN or inf.

    Where pairs may be hidden, values that are NaN or inf are left out (0 * NaN is NaN).
    """
    KEYS: tl.constexpr = weights.numel // tile.BM
    if KEYS > PART_KEYS:
        first, second = halves(weights, tile)
        sums, bad = add_in_parts(values, sizes, z, first_column, first, sums, tile)
        half = first_column + KEYS // 2
        sums, more = add_in_parts(values, sizes, z, half, second, sums, tile)
        return sums, bad | more
    else:
        x = read_values(values, sizes, z, first_column, KEYS, tile)
        bad = (x != x) | (tl.abs(x) == float("inf"))
        if tile.HIDES:
            x = tl.where(bad, 0.0, x)
        weights = flat_part(weights.to(tile.DOT), KEYS, tile)
        sums = tl.dot(weights, x, sums, input_precision=tile.PRECISION, out_dtype=tile.WORK)
        return sums, bad


@triton.jit
def count_bad(values, sizes, z, first_column, codes, counts, tile):
    """`counts` plus the coded numbers of +inf, -inf and NaN of a tile, in the parts of `add_in_parts`."""
    KEYS: tl.constexpr = codes.numel // tile.BM
    if KEYS > PART_KEYS:
        first, second = halves(codes, tile)
        counts = count_bad(values, sizes, z, first_column, first, counts, tile)
        half = first_column + KEYS // 2
        return count_bad(values, sizes, z, half, second, counts, tile)
    else:
        x = read_values(values, sizes, z, first_column, KEYS, tile)
        infinite = tl.where(x > 0, 1.0, MINUS)
        sort = tl.where(tl.abs(x) == float("inf"), infinite, tl.where(x != x, NAN, 0.0))
        return tl.dot(flat_part(codes, KEYS, tile), sort.to(tl.float16), counts)


@triton.jit
def add_bad_values(values, sizes, z, first_column, weights, seen, sums, tile):
    """`sums` plus the values of a tile that are NaN or inf, for queries that see them.

    Only their sort matters (+inf, -inf or NaN). Tensor cores count how many of each sort a query sees, in
    the digits of one number. An infinite value times a weight of 0 or NaN is NaN too.
    """
    codes = tl.where(seen, tl.where(weights > 0, 1.0, NAN), 0.0).to(tl.float16)
    none = tl.zeros([tile.BM, tile.DV], tl.float32)
    counts = tl.minimum(count_bad(values, sizes, z, first_column, codes, none, tile), NAN)
    minus, plus = counts >= MINUS, (counts.to(tl.int32) & (MINUS - 1)) != 0
    bad = tl.where(minus, -float("inf"), float("inf"))
    bad = tl.where((counts >= NAN) | (minus & plus), float("nan"), bad)
    return sums + tl.where(counts > 0, bad, 0.0)


@triton.jit
def log_of_one_and(rest):
    """log(1 + rest), by a series where rest is small: 1 + rest would round its digits away."""
    # The terms that are cut off are less than one rounding error.
    SMALL: tl.constexpr = 1e-4 if rest.dtype == tl.float64 else 1e-2
    series = rest * (1.0 - rest * (0.5 - rest * (1.0 / 3.0 - 0.25 * rest)))
    return tl.where(rest < SMALL, series, tl.log(1.0 + rest))


@triton.jit
def forward_step(
    form, pairs, sizes, values, z, first_row, first_column, seen, state, tile, CHUNK: tl.constexpr,
    ENTROPY: tl.constexpr,
):  # fmt: skip
    """The state of the online softmax (largest logit, total, rest, moment, sums) after one more tile.

    Total is the sum of exp(logit - largest), rest the same without the largest, moment the sum of
    (logit - largest) exp(logit - largest), which the entropy needs, sums the weighted values.
    """
    top, total, rest, moment, sums = state
    logits = tile_logits(form, pairs, sizes, z, first_row, first_column, seen, tile, CHUNK)[2]
    raised = tl.maximum(top, row_max(logits, tile))
    # Rows that have seen nothing yet: -inf - -inf would be NaN.
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
    if in_parts(tile.DOT, tile.PRECISION, tile.HIDES, tile.DV):
        sums = sums * row_vector(shrink, tile)[:, None]
        sums, bad = add_in_parts(values, sizes, z, first_column, weights, sums, tile)
        if tile.HIDES:
            if tl.max(tl.max(bad.to(tl.int32), 1), 0) > 0:
                sums = add_bad_values(values, sizes, z, first_column, weights, seen, sums, tile)
    else:
        x = read_values(values, sizes, z, first_column, tile.BN, tile)
        sums = sums * row_vector(shrink, tile)[:, None]
        sums = selecting_dot(flat(weights.to(tile.DOT), tile), x, flat(seen, tile), sums, tile)
    return raised, total, rest, moment, sums


@triton.jit(do_not_specialize=["queries", "keys"])
def forward_kernel(
    form, pairs, groups, heads, queries, keys, value_dim, values, skip, output, tail, entropy, peak,
    tile, CHUNK: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """Write output (Z, Q, dv), tail, entropy (0 unless requested) and peak (Z, Q).

    One program for each block of queries of each head. Where the flag `skip` is given and set, nothing
    is written: the caller has the result already.
    """
    sizes = KernelSizes(groups, heads, queries, keys, value_dim)
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
    # No prefetching of values in fp32, which would take more shared memory than some GPUs have.
    AHEAD: tl.constexpr = 1 if in_parts(tile.DOT, tile.PRECISION, tile.HIDES, tile.DV) else None
    for first_column in tl.range(first, last, tile.BN, num_stages=AHEAD):
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
        log_total = log_of_one_and(rest)
        tl.store(entropy + at, log_total - moment / filled, mask=inside)
    elif entropy is not None:
        # Defined also where it is not requested, so that equal calls return equal numbers.
        tl.store(entropy + at, none, mask=inside)
    tl.store(tail + at, log_total, mask=inside)
    # A maximum ignores NaN, a sum does not.
    tl.store(peak + at, tl.where(total != total, total, top), mask=inside)
    dims = tl.arange(0, tile.DV)[None, :]
    row = first_row + tl.arange(0, tile.BM)[:, None]
    at = (z.to(tl.int64) * sizes.queries + row) * sizes.value_dim + dims
    sums = sums / row_vector(filled, tile)[:, None]
    tl.store(output + at, sums, mask=(row < sizes.queries) & (dims < sizes.value_dim))
