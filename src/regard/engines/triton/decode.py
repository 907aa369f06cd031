"""The forward kernels for few queries, such as the single one of a decoder.

With one query the rows of a tile have nothing to share, and laying keys out would take longer than
reading them once as they are. One program takes a part of the keys of one query and head. Where there are
few heads, several programs share the keys of one, and `combine_kernel` combines their parts.
"""

from __future__ import annotations

import triton.language as tl

import triton
from regard.engines.triton.structs import KernelForm, KernelSizes, PairTerms, Values
from regard.engines.triton.tiles import (
    activated,
    at_head,
    final_logits,
    seen_pairs,
)

# Arguments of both kernels that depend on the number of keys, in the order of `choices.growing`.
GROWING = (
    "keys", "k_b", "k_k", "k_g", "value_b", "value_k", "value_g", "bias_b", "bias_k", "bias_g",
    "bias_q", "dense_b", "dense_k", "dense_g", "dense_q",
)  # fmt: skip
# Bits of the values of a block up to which registers can hold them while its scores are computed.
EARLY_BITS = tl.constexpr(2**18)


@triton.jit
def even(n, EVEN: tl.constexpr):
    """The same n, in a form that shows the compiler a multiple of EVEN: loads then take that many numbers."""
    return n // EVEN * EVEN


@triton.jit
def keys_at(form, sizes, z, EVEN: tl.constexpr):
    """The address of the keys of head z, and the stride between them."""
    at = at_head(z, sizes, form.k_b, form.k_k, form.k_g)
    return form.k + even(at, EVEN), even(form.k_row, EVEN)


@triton.jit
def units_to_sum(
    form, sizes, z, first, start, tile, BK: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """WIDE hidden units from `start` on: indices, mask of real ones, b of BK keys (1, 1, BK, WIDE), v.

    Forward and backward have to sum a score in the same order: where scores are large, their last digit
    changes the softmax. The order depends on how the compiler distributes b over lanes, which it does
    alike for tensors of one shape. b therefore has 4 dims in both, and nothing else in the kernels has.
    """
    unit, keys = start + tl.arange(0, WIDE), first + tl.arange(0, BK)
    k, row = keys_at(form, sizes, z, EVEN)
    # 64 bits: keys or units may be the outermost dim of a large tensor.
    key, column = keys[None, None, :, None].to(tl.int64), unit[None, None, None, :].to(tl.int64)
    inside = (key < sizes.keys) & (column < tile.REAL)
    b = tl.load(k + key * row + column * form.k_step, mask=inside, other=0.0).to(tile.WORK)
    real = unit < tile.REAL
    v = form.v + z % (sizes.groups * sizes.heads) * tile.REAL
    return unit, real, b, tl.load(v + unit, mask=real, other=0.0).to(tile.WORK)


@triton.jit
def summed_units(a, b, v, form, tile, BK: tl.constexpr):
    """The sum of these hidden units in the raw scores of one query, (BK,); b is (1, 1, BK, units)."""
    x = a[None, None, None, :] + b
    terms = v[None, None, None, :] * activated(x, form, tile)
    return tl.reshape(tl.sum(terms, 3), [BK])


@triton.jit
def row_scores(
    form, sizes, z, query, first, tile, BK: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Raw scores of one query and BK keys, (BK,)."""
    q = form.q + at_head(z, sizes, form.q_b, form.q_k, form.q_g) + query.to(tl.int64) * form.q_row
    total = tl.zeros([BK], tile.WORK)
    for start in range(0, tile.REAL, WIDE):
        unit, real, b, v = units_to_sum(form, sizes, z, first, start, tile, BK, WIDE, EVEN)
        a = tl.load(q + unit.to(tl.int64) * form.q_step, mask=real, other=0.0).to(tile.WORK)
        total += summed_units(a, b, v, form, tile, BK)
    return total


@triton.jit
def add_both(a, b, other_a, other_b):
    """Two additions, as the combining function of a reduction."""
    return a + other_a, b + other_b


@triton.jit
def sums_together(x, y, axis: tl.constexpr, tile):
    """The sums of two tensors of one shape along `axis`.

    One reduction makes the compiler keep both in the same layout. With two, each gets a layout of its
    own, and everything it depends on is computed twice. The interpreter uses two sums, because it would
    run a reduction of pairs number by number.
    """
    if tile.INTERPRET:
        return tl.sum(x, axis, keep_dims=True), tl.sum(y, axis, keep_dims=True)
    else:
        return tl.reduce((x, y), axis, add_both, keep_dims=True)


@triton.jit
def seen_range(pairs, sizes, z, query, begin, end, BK: tl.constexpr):
    """The part of [begin, end) that the spans of a query allow, from the start of a block on."""
    at = z.to(tl.int64) * (pairs.own_spans * sizes.queries) + query
    if pairs.start is not None:
        begin = tl.maximum(begin, tl.load(pairs.start + at) // BK * BK)
    end = tl.minimum(end, sizes.keys)
    if pairs.stop is not None:
        end = tl.minimum(end, tl.load(pairs.stop + at))
    return begin, end


@triton.jit
def values_at(sizes, values, z, EVEN: tl.constexpr):
    """The address of the values of head z, and the stride between them."""
    at = at_head(z, sizes, values.value_b, values.value_k, values.value_g)
    return values.value + even(at, EVEN), even(sizes.value_dim, EVEN)


@triton.jit
def step_values(
    sizes, values, z, first, tile, BK: tl.constexpr, SIDE: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """The values of BK keys, (SIDE, BK / SIDE, dv)."""
    dims = tl.arange(0, tile.DV)[None, None, :]
    beside, behind = tl.arange(0, SIDE)[:, None, None], tl.arange(0, BK // SIDE)[None, :, None]
    key = first + beside * (BK // SIDE) + behind
    inside = (key < sizes.keys) & (dims < sizes.value_dim)
    value, row = values_at(sizes, values, z, EVEN)
    return tl.load(value + key.to(tl.int64) * row + dims, mask=inside, other=0.0)


@triton.jit
def step_weights(
    form, pairs, sizes, z, query, first, seen, top, kept, tile, BK: tl.constexpr, WIDE: tl.constexpr,
    SIDE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The largest logit after BK more keys, the factor for sums so far, and the weights for each dim.

    The logits themselves are written to `kept` (Z, Q, L), unless it is None.
    """
    rows, columns = query + tl.arange(0, 1)[:, None], first + tl.arange(0, BK)[None, :]
    score = row_scores(form, sizes, z, query, first, tile, BK, WIDE, EVEN)[None, :]
    logits = final_logits(score, pairs, sizes, z, rows, columns, seen)[2]
    if kept is not None:
        at = (z.to(tl.int64) * sizes.queries + query) * sizes.keys + columns
        tl.store(kept + at, logits, mask=columns < sizes.keys)
    logits = tl.reshape(logits, [SIDE, BK // SIDE, 1])
    raised = tl.maximum(top, tl.max(logits, 1, keep_dims=True))
    base = tl.where(raised == -float("inf"), 0.0, raised)
    weights = tl.broadcast_to(tl.exp(logits - base), [SIDE, BK // SIDE, tile.DV])
    return raised, tl.exp(top - base), weights


@triton.jit
def decode_step(
    form, pairs, sizes, values, z, query, first, seen, state, logits, tile, BK: tl.constexpr,
    WIDE: tl.constexpr, SIDE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The state after BK more keys: largest logit (SIDE, 1, 1), sums of weights and values (SIDE, 1, dv)."""
    top, total, sums = state
    if BK * tile.DV * values.value.dtype.element_ty.primitive_bitwidth <= EARLY_BITS:
        # Values are loaded before the scores, so that the latencies of both overlap.
        x = step_values(sizes, values, z, first, tile, BK, SIDE, EVEN)
        raised, shrink, weights = step_weights(
            form, pairs, sizes, z, query, first, seen, top, logits, tile, BK, WIDE, SIDE, EVEN
        )
    else:
        raised, shrink, weights = step_weights(
            form, pairs, sizes, z, query, first, seen, top, logits, tile, BK, WIDE, SIDE, EVEN
        )
        x = step_values(sizes, values, z, first, tile, BK, SIDE, EVEN)
    terms = weights * x.to(tile.WORK)
    if tile.HIDES:
        # A hidden value may be NaN, and 0 * NaN is NaN.
        terms = tl.where(tl.reshape(seen, [SIDE, BK // SIDE, 1]), terms, 0.0)
    more, further = sums_together(weights, terms, 1, tile)
    return raised, total * shrink + more, sums * shrink + further


@triton.jit(do_not_specialize=[*GROWING, "parts", "share"])
def decode_kernel(
    form, pairs, sizes, values, output, totals, tops, logits, keys, k_b, k_k, k_g, value_b, value_k,
    value_g, bias_b, bias_k, bias_g, bias_q, dense_b, dense_k, dense_g, dense_q, parts, share, tile,
    BK: tl.constexpr, WIDE: tl.constexpr, SIDE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Write sums (Z, Q, parts, dv), totals and largest logits; one program for a part of a query's keys.

    SIDE keys of a block are spread over the lanes, the others are in registers of the same lanes. Each of
    the SIDE has an online softmax of its own, so that lanes exchange nothing until the end. `logits`
    (Z, Q, L) are written too, unless they are None.
    """
    form = KernelForm(*form[:7], k_b, k_k, k_g, *form[10:])  # type: ignore[bad-argument-count]
    of_bias, of_dense = (bias_b, bias_k, bias_g, bias_q), (dense_b, dense_k, dense_g, dense_q)
    pairs = PairTerms(*pairs[:5], *of_bias, *pairs[9:11], *of_dense, *pairs[15:])  # type: ignore[bad-argument-count]
    sizes = KernelSizes(sizes.groups, sizes.heads, sizes.queries, keys, sizes.value_dim)
    values = Values(values.value, value_b, value_k, value_g, values.dropout, values.seed)
    part = tl.program_id(0) % parts
    row = tl.program_id(0) // parts
    z, query = row // sizes.queries, row % sizes.queries
    state = (
        tl.full([SIDE, 1, 1], -float("inf"), tile.WORK),
        tl.zeros([SIDE, 1, tile.DV], tile.WORK),
        tl.zeros([SIDE, 1, tile.DV], tile.WORK),
    )
    rows = query + tl.arange(0, 1)[:, None]
    begin, end = part * share, tl.minimum((part + 1) * share, keys)
    if logits is None:
        begin, end = seen_range(pairs, sizes, z, query, begin, end, BK)
    for first in range(begin, end, BK):
        columns = first + tl.arange(0, BK)[None, :]
        seen = seen_pairs(pairs, sizes, z, rows, columns)
        # Logits of hidden keys are written as well: those of their blocks are not left out by the range.
        if tile.SPARSE or (tile.HIDES and logits is not None):
            if tl.max(tl.max(seen.to(tl.int32), 1), 0) > 0:
                state = decode_step(
                    form, pairs, sizes, values, z, query, first, seen, state, logits, tile, BK, WIDE,
                    SIDE, EVEN,
                )  # fmt: skip
            elif logits is not None:
                nothing = tl.full([1, BK], -float("inf"), tile.WORK)
                at = row.to(tl.int64) * keys + columns
                tl.store(logits + at, nothing, mask=columns < keys)
        else:
            state = decode_step(
                form, pairs, sizes, values, z, query, first, seen, state, logits, tile, BK, WIDE, SIDE,
                EVEN,
            )  # fmt: skip
    top, total, sums = state
    dims = tl.arange(0, tile.DV)[None, None, :]
    raised = tl.max(top, 0, keep_dims=True)
    shrink = tl.exp(top - tl.where(raised == -float("inf"), 0.0, raised))
    whole, found = sums_together(total * shrink, sums * shrink, 0, tile)
    at = tl.program_id(0).to(tl.int64)
    raised, here = tl.where(whole != whole, whole, raised), dims == 0
    tl.store(tops + at + dims * 0, raised, mask=here)
    tl.store(totals + at + dims * 0, whole, mask=here)
    tl.store(output + at * even(sizes.value_dim, EVEN) + dims, found, mask=dims < sizes.value_dim)


@triton.jit(do_not_specialize=["keys", "parts"])
def combine_kernel(
    parts_output, totals, tops, output, tail, entropy, peak, rounded, logits, shown, keys, parts,
    value_dim, PARTS: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write the results of one query from its parts; each program takes CHUNK value dims.

    Each program computes the weights of the parts again, which costs less than sharing them. Results that
    are None are not written. The decode kernels do not compute the entropy: it is written as 0. `rounded`
    is the output again, in another dtype. `shown` are `ShownWeights`, made from `logits` (Z, Q, L).
    """
    # At least one program, also where values have no dims: it writes the other results.
    chunks = tl.maximum(tl.cdiv(value_dim, CHUNK), 1)
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
    found = tl.sum(sums, 0) / filled
    tl.store(output + row * value_dim + dims, found, mask=dims < value_dim)
    if rounded is not None:
        tl.store(rounded + row * value_dim + dims, found, mask=dims < value_dim)
    if chunk == 0 and tail is not None:
        tl.store(tail + row, tl.log(filled))
        if entropy is not None:
            tl.store(entropy + row, 0.0)
        # A maximum ignores NaN, a sum does not.
        tl.store(peak + row, tl.where(whole != whole, whole, raised))
    if logits is not None:
        for first in range(chunk * KEYS, keys, chunks * KEYS):
            key = first + tl.arange(0, KEYS)
            show_weights(logits, shown, row * keys + key, key < keys, base, filled)


@triton.jit
def show_weights(logits, shown, at, inside, base, filled):
    """Write the weights of some keys of a query: the exponentials over their sum, and 0 for hidden keys."""
    logit = tl.load(logits + at, mask=inside, other=-float("inf"))
    # A hidden key has weight 0 also in a row whose sum is NaN.
    weights = tl.where(logit == -float("inf"), 0.0, tl.exp(logit - base) / filled)
    tl.store(shown.weights + at, weights, mask=inside)
    if shown.copy is not None:
        tl.store(shown.copy + at, weights, mask=inside)
    if shown.after is not None:
        before = tl.load(shown.before + at, mask=inside, other=0.0)
        tl.store(shown.after + at, before + weights, mask=inside)
