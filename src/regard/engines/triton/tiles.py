"""One tile of pairs: which pairs are seen, their scores and logits. Every kernel here is built from these.

A tile is BM queries by BN keys. In the forward of pairwise scores, where the loop over hidden units takes
the time, it has 5 dims

    (BM / 8, BN / (4 W), W, 8, 4)   row = 8 i + lane,   column = (4 W) j + 4 warp + lane

because Triton assigns the last two dims to the 32 lanes of a warp, the one before to the W warps, and
the first two to registers. Each thread then holds a block of rows by columns and loads one number
for each of its rows and columns. With 2 dims it would hold one column and nearly all rows, and the loop
would wait for loads: 2.8e12 instead of 4.4e12 tanh/s of the kernel alone on one NVIDIA H200.

Row tensors have the shape of `row_index`, column tensors that of `column_index`, and broadcast.
"""

from __future__ import annotations

import triton.language as tl

import triton
from regard.engines.drawing import is_kept

# Hidden units of the plain form in one partial sum, see `plain_scores`.
SUMMED_APART = tl.constexpr(32)
# Features of one product in fp32. It holds whole operands in registers, of which more features need too many.
PART_FEATURES = tl.constexpr(16)


@triton.constexpr_function
def by_fma(dtype, precision):
    """Whether matrix products are in fp32, which tensor cores do not support; known at compile time."""
    return dtype == tl.float32 and precision == "ieee"


@triton.jit
def row_index(first, tile):
    """The indices of the queries of the tile, shaped as rows."""
    if tile.FIVE:
        register = tl.arange(0, tile.BM // 8)[:, None, None, None, None]
        return first + register * 8 + tl.arange(0, 8)[None, None, None, :, None]
    else:
        return first + tl.arange(0, tile.BM)[:, None]


@triton.jit
def column_index(first, tile):
    """The indices of the keys of the tile, shaped as columns."""
    if tile.FIVE:
        register = tl.arange(0, tile.BN // (4 * tile.W))[None, :, None, None, None]
        warp = tl.arange(0, tile.W)[None, None, :, None, None]
        lane = tl.arange(0, 4)[None, None, None, None, :]
        return first + register * (4 * tile.W) + warp * 4 + lane
    else:
        return first + tl.arange(0, tile.BN)[None, :]


@triton.jit
def flat(x, tile):
    """The tile x as (BM, BN), for matrix products."""
    if tile.FIVE:
        return tl.reshape(tl.permute(x, (0, 3, 1, 2, 4)), [tile.BM, tile.BN])
    else:
        return x


@triton.jit
def row_vector(x, tile):
    """A row tensor as (BM,)."""
    return tl.reshape(x, [tile.BM])


@triton.jit
def row_max(x, tile):
    """The largest entry of each row."""
    if tile.FIVE:
        # Registers first, then lanes, then warps: the cheapest reduction takes most of the numbers.
        x = tl.max(x, 1, keep_dims=True)
        return tl.max(tl.max(x, 4, keep_dims=True), 2, keep_dims=True)
    else:
        return tl.max(x, 1, keep_dims=True)


@triton.jit
def row_sum(x, tile):
    """The sum of each row."""
    if tile.FIVE:
        x = tl.sum(x, 1, keep_dims=True)
        return tl.sum(tl.sum(x, 4, keep_dims=True), 2, keep_dims=True)
    else:
        return tl.sum(x, 1, keep_dims=True)


@triton.jit
def some(x, tile):
    """Whether any entry of a tile of booleans is True, as an integer."""
    return tl.max(tl.max(flat(x, tile).to(tl.int32), 1), 0)


@triton.jit
def at_head(z, sizes, of_b, of_k, of_g):
    """The offset of head z in an operand with these strides; 64 bits, since operands may be large."""
    z = z.to(tl.int64)
    b = z // (sizes.groups * sizes.heads)
    return b * of_b + (z // sizes.heads) % sizes.groups * of_k + z % sizes.heads * of_g


@triton.jit
def is_other(z, form, sizes, skip, tile):
    """Whether this launch leaves out head z.

    The fast kernel leaves loose heads to the plain kernel that follows it, which leaves out all others:
    with both loops in one kernel each would cost the other registers. The flag `skip` leaves out all heads.
    """
    other = False
    if form.loose_q is not None:
        q = at_head(z, sizes, form.q_b, form.q_k, form.q_g) // (tile.E * form.q_step)
        # Without keys the step and the offset are 0: divide by 1 instead.
        k = at_head(z, sizes, form.k_b, form.k_k, form.k_g) // (tile.E * tl.maximum(form.k_step, 1))
        loose = tl.load(form.loose_q + q) + tl.load(form.loose_k + k) > 0
        other = loose == (tile.FORM == "fast")
    if skip is not None:
        other = other | (tl.load(skip) != 0)
    return other


@triton.jit
def reciprocal(x, tile):
    """1 / x by the special-function unit alone, with an error of one unit in the last place."""
    if tile.INTERPRET:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def tanh(x):
    """The tanh of x, with an absolute error of at most 2e-7.

    It is never NaN for a number: where the exponential overflows or vanishes, the limit is exact.
    """
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def close_tanh(x):
    """The tanh of x, with a relative error of 2e-7, or 1e-15 in fp64: for results that a large number multiplies."""
    # Near 0 the formula of `tanh` cancels: a continued fraction or a Taylor series takes its place.
    y = x * x
    if x.dtype == tl.float64:
        near = x / (1 + y / (3 + y / (5 + y / (7 + y / (9 + y / (11 + y / 13))))))
    else:
        near = x + x * y * (-1 / 3 + y * (2 / 15 + y * (-17 / 315 + y * (62 / 2835))))
    return tl.where(tl.abs(x) < 0.25, near, tanh(x))


@triton.jit
def short_tanh(x):
    """`tanh` of fp32 in five instructions, with an error of at most 3e-7.

    They are 2 log2(e) x, 2^x, x + 1, 1 / x and 1 - 2x. A full division alone would take more, for ranges
    that do not occur here.
    """
    return tl.inline_asm_elementwise(
        "mul.f32 $0, $1, 0f4038AA3B; ex2.approx.ftz.f32 $0, $0; add.f32 $0, $0, 0f3F800000; "
        "rcp.approx.ftz.f32 $0, $0; fma.rn.f32 $0, $0, 0fC0000000, 0f3F800000;",
        "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def activated(x, form, tile):
    """f(x): tanh, or LeakyReLU with its slope as parameter."""
    if tile.ACTIVATION == "tanh":
        if tile.INTERPRET or x.dtype == tl.float64:
            return tanh(x)
        else:
            return short_tanh(x)
    else:
        return tl.where(x > 0, x, form.parameter * x)


@triton.jit
def steepness(x, y, form, tile):
    """f'(x) where y = f(x)."""
    if tile.ACTIVATION == "tanh":
        return 1.0 - y * y
    else:
        none = tl.zeros_like(x)  # not x * 0, which is NaN where x is infinite
        return tl.where(x > 0, none + 1.0, none + form.parameter)


@triton.jit
def fast_pair(q, k, gate, h, rows, columns, form, tile):
    """`1 / (gate_h + q_h k_h)` of hidden units h and h + 1 together, by one reciprocal."""
    q0, k0 = q + h * form.q_step + rows, k + h * form.k_step + columns
    d0 = tl.load(q0) * tl.load(k0) + tl.load(gate + h)
    d1 = tl.load(q0 + form.q_step) * tl.load(k0 + form.k_step) + tl.load(gate + h + 1)
    return (d0 + d1) * reciprocal(d0 * d1, tile)


@triton.jit
def two_units(q, k, h, form, tile):
    """Hidden units h and h + 1 of both sides, or the last two where h is beyond them."""
    h = tl.minimum(h, tile.E - 2)
    q, k = q + h * form.q_step, k + h * form.k_step
    return tl.load(q), tl.load(q + form.q_step), tl.load(k), tl.load(k + form.k_step)


@triton.jit
def fast_scores_ahead(q, k, gate, form, total, tile):
    """`fast_scores` with loads one iteration ahead: of one number by each lane, which costs few registers."""
    q0, q1, k0, k1 = two_units(q, k, 0, form, tile)
    g0, g1 = tl.load(gate), tl.load(gate + 1)
    for h in tl.range(0, tile.E, 2, loop_unroll_factor=2):
        d0, d1 = q0 * k0 + g0, q1 * k1 + g1
        q0, q1, k0, k1 = two_units(q, k, h + 2, form, tile)
        ahead = tl.minimum(h + 2, tile.E - 2)
        g0, g1 = tl.load(gate + ahead), tl.load(gate + ahead + 1)
        total += (d0 + d1) * reciprocal(d0 * d1, tile)
    return total


@triton.jit
def fast_scores(q, k, gate, rows, columns, form, total, tile):
    """`sum_h 1 / (gate_h + q_h k_h)`, with one reciprocal for two hidden units; see `prepare.py`."""
    if tile.FIVE:
        for h in tl.range(0, tile.E, 2, loop_unroll_factor=2):
            total += fast_pair(q, k, gate, h, rows, columns, form, tile)
    elif tile.LANES:
        total = fast_scores_ahead(q + rows, k + columns, gate, form, total, tile)
    else:
        # Loads go through shared memory here: `num_stages` makes them two iterations ahead.
        for h in tl.range(0, tile.E // 4 * 4, 4, num_stages=3):
            total += fast_pair(q, k, gate, h, rows, columns, form, tile)
            total += fast_pair(q, k, gate, h + 2, rows, columns, form, tile)
        if tile.E % 4 == 2:
            total += fast_pair(q, k, gate, tile.E - 2, rows, columns, form, tile)
    return total


@triton.jit
def unit_of(h, step, index, tile):
    """The offset of hidden unit h.

    In 64 bits for a "direct" form, where units may be the outermost dim of a large tensor.
    """
    if tile.FORM == "direct":
        # By way of the 64 bit index: in the interpreter h is a Python number, which has no `to`.
        return (index * 0 + h) * step
    else:
        return h * step


@triton.jit
def plain_scores(q, k, v, rows, columns, form, total, tile):
    """`sum_h v_h f(a_h + b_h)`, term by term.

    In partial sums: one long sum of hundreds of terms would lose digits that plain PyTorch, which sums
    in a tree, keeps.
    """
    for first in range(0, tile.REAL, SUMMED_APART):
        part = tl.zeros_like(total)
        for h in range(first, tl.minimum(first + SUMMED_APART, tile.REAL)):
            a = tl.load(q + unit_of(h, form.q_step, rows, tile) + rows * form.q_row).to(tile.WORK)
            at = unit_of(h, form.k_step, columns, tile) + columns * form.k_row
            b = tl.load(k + at).to(tile.WORK)
            part += tl.load(v + h) * activated(a + b, form, tile)
        total += part
    return total


@triton.jit
def features(x, index, length, first, tile, CHUNK: tl.constexpr):
    """Features `first` to `first + CHUNK` of the rows `index`, (rows, CHUNK)."""
    at = first + tl.arange(0, CHUNK)[None, :]
    inside = (index[:, None] < length) & (at < tile.E)
    return tl.load(x + index[:, None].to(tl.int64) * tile.E + at, mask=inside, other=0.0)


@triton.jit
def inner_scores(q, k, first_row, first_column, form, sizes, tile, CHUNK: tl.constexpr):
    """`scale <phi, psi>`, some features at a time."""
    # The smaller tiles of the backward leave enough registers for whole chunks.
    PARTS: tl.constexpr = by_fma(tile.DOT, tile.PRECISION) and tile.BN > 32
    WIDE: tl.constexpr = PART_FEATURES if PARTS else CHUNK
    total = tl.zeros([tile.BM, tile.BN], tile.WORK)
    rows, columns = first_row + tl.arange(0, tile.BM), first_column + tl.arange(0, tile.BN)
    for first in range(0, tile.E, WIDE):
        phi = features(q, rows, sizes.queries, first, tile, WIDE).to(tile.DOT)
        psi = features(k, columns, sizes.keys, first, tile, WIDE).to(tile.DOT)
        total = tl.dot(
            phi, tl.trans(psi), total, input_precision=tile.PRECISION, out_dtype=tile.WORK
        )
    return total * form.scale


@triton.jit
def pairwise_scores(form, sizes, z, of_q, of_k, first_row, first_column, tile):
    """Raw scores of a pairwise form."""
    rows, columns = row_index(first_row, tile), column_index(first_column, tile)
    if tile.FIVE:
        total = tl.zeros([tile.BM // 8, tile.BN // (4 * tile.W), tile.W, 8, 4], tile.WORK)
    else:
        total = tl.zeros([tile.BM, tile.BN], tile.WORK)
    q, k = form.q + of_q, form.k + of_k
    if tile.FORM != "fast":
        v = form.v + z % (sizes.groups * sizes.heads) * tile.REAL
        if tile.FORM == "direct":
            # The caller's tensors have no padding: clamp to the last row and key.
            rows = tl.minimum(rows, sizes.queries - 1).to(tl.int64)
            columns = tl.minimum(columns, sizes.keys - 1).to(tl.int64)
        total = plain_scores(q, k, v, rows, columns, form, total, tile)
    else:
        gate = form.gate + of_q // form.q_step
        total = fast_scores(q, k, gate, rows, columns, form, total, tile)
        # The base is the sum of v over hidden units, the first term of the formula in `prepare.py`.
        total += tl.load(form.base + of_q // (tile.E * form.q_step))
    return total


@triton.jit
def tile_scores(form, sizes, z, first_row, first_column, tile, CHUNK: tl.constexpr):
    """Raw scores of the tile of head z that starts at this row and column."""
    of_q = at_head(z, sizes, form.q_b, form.q_k, form.q_g)
    of_k = at_head(z, sizes, form.k_b, form.k_k, form.k_g)
    if tile.FORM == "inner":
        return inner_scores(
            form.q + of_q, form.k + of_k, first_row, first_column, form, sizes, tile, CHUNK
        )
    else:
        return pairwise_scores(form, sizes, z, of_q, of_k, first_row, first_column, tile)


@triton.jit
def bias_at(pairs, sizes, z, rows, columns, seen):
    """The bias of each pair, 0 where it is not seen."""
    at = at_head(z, sizes, pairs.bias_b, pairs.bias_k, pairs.bias_g)
    at += rows.to(tl.int64) * pairs.bias_q + columns.to(tl.int64) * pairs.bias_l
    return tl.load(pairs.bias + at, mask=seen, other=0.0)


@triton.jit
def seen_pairs(pairs, sizes, z, rows, columns):
    """Which pairs of a tile are seen."""
    here, there = rows < sizes.queries, columns < sizes.keys
    seen = here & there
    row = z.to(tl.int64) * sizes.queries + rows
    span = z.to(tl.int64) * (pairs.own_spans * sizes.queries) + rows
    if pairs.start is not None:
        seen = seen & (columns >= tl.load(pairs.start + span, mask=here, other=0))
    if pairs.stop is not None:
        seen = seen & (columns < tl.load(pairs.stop + span, mask=here, other=0))
    if pairs.query_segment is not None:
        # A negative segment is padding. Queries and keys out of range get different ones.
        own = tl.load(pairs.query_segment + row, mask=here, other=-1)
        column = z.to(tl.int64) * sizes.keys + columns
        seen = seen & (own >= 0)
        seen = seen & (own == tl.load(pairs.key_segment + column, mask=there, other=-2))
    if pairs.dense is not None:
        at = at_head(z, sizes, pairs.dense_b, pairs.dense_k, pairs.dense_g)
        at += rows.to(tl.int64) * pairs.dense_q + columns.to(tl.int64) * pairs.dense_l
        seen = seen & (tl.load(pairs.dense + at, mask=seen, other=0) != 0)
    if pairs.bias is not None:
        bias = bias_at(pairs, sizes, z, rows, columns, seen)
        seen = seen & (bias != -float("inf"))
    return seen


@triton.jit
def tempered(score, pairs, sizes, z, rows, columns):
    """The raw score with alpha and beta, and the logits before cap and bias."""
    row = z.to(tl.int64) * sizes.queries + rows
    here = rows < sizes.queries
    if pairs.alpha is not None:
        score += tl.load(pairs.alpha + row, mask=here, other=0.0)
    if pairs.beta is not None:
        column = z.to(tl.int64) * sizes.keys + columns
        score += tl.load(pairs.beta + column, mask=columns < sizes.keys, other=0.0)
    if pairs.rate is not None:
        return score, score * tl.load(pairs.rate + row, mask=here, other=0.0)
    else:
        return score, score


@triton.jit
def capped_logits(logits, pairs):
    """The logits after the soft cap."""
    if pairs.softcap is not None:
        return pairs.softcap * close_tanh(logits / pairs.softcap)
    else:
        return logits


@triton.jit
def tile_logits(form, pairs, sizes, z, first_row, first_column, seen, tile, CHUNK: tl.constexpr):
    """`final_logits` of the tile that starts at this row and column."""
    rows, columns = row_index(first_row, tile), column_index(first_column, tile)
    score = tile_scores(form, sizes, z, first_row, first_column, tile, CHUNK)
    return final_logits(score, pairs, sizes, z, rows, columns, seen)


@triton.jit
def final_logits(score, pairs, sizes, z, rows, columns, seen):
    """Raw score, capped logits, and final logits with -inf where a pair is not seen."""
    score, logits = tempered(score, pairs, sizes, z, rows, columns)
    capped = capped_logits(logits, pairs)
    final = capped
    if pairs.bias is not None:
        final = capped + bias_at(pairs, sizes, z, rows, columns, seen)
    return score, capped, tl.where(seen, final, -float("inf"))


@triton.jit
def through_cap(ds, capped, seen, pairs):
    """The gradient of the logits before the soft cap, from that after it."""
    if pairs.softcap is not None:
        share = capped / pairs.softcap
        return tl.where(seen, ds * (1.0 - share * share), 0.0)
    else:
        return ds


@triton.jit
def key_range(pairs, sizes, z, first_row, tile):
    """The first key and the end of the keys that any query of these rows may see."""
    rows = first_row + tl.arange(0, tile.BM)
    row, here = z.to(tl.int64) * (pairs.own_spans * sizes.queries) + rows, rows < sizes.queries
    first, last = 0, sizes.keys
    if pairs.start is not None:
        # From the start of a tile, so that every query cuts its keys into the same tiles.
        first = tl.maximum(tl.min(tl.load(pairs.start + row, mask=here, other=2**31 - 1), 0), 0)
        first = first // tile.BN * tile.BN
    if pairs.stop is not None:
        last = tl.minimum(tl.max(tl.load(pairs.stop + row, mask=here, other=0), 0), sizes.keys)
    return first, last


@triton.jit
def off_the_maximum(logits, powers, top, shrink, tile):
    """What a tile adds to the sum of powers of weights over all logits but one largest.

    The largest contributes exactly 1 and is left out, so that a saturated row keeps the digits of the
    others. If the tile has a new largest logit, that is left out and the former one joins the sum. If
    not, the whole tile is added. `powers` are powers of the weights, `shrink` the same power of the weight
    that the former largest logit has now.
    """
    peak = row_max(logits, tile)
    reaches = logits == peak
    # If the tile has the new maximum, each logit equal to it has weight 1, and one of them is left out.
    others = row_sum(tl.where(reaches, 0.0, powers), tile)
    others += row_sum(tl.where(reaches, 1.0, 0.0), tile) - 1.0
    others += tl.where(top == -float("inf"), 0.0, shrink)
    return tl.where(peak > top, others, row_sum(powers, tile))


@triton.jit
def kept(values, sizes, z, first_row, first_column, tile):
    """The dropout factors of a tile, 0 or 1 / (1 - p), from the seed and the position of each pair alone."""
    rows, columns = row_index(first_row, tile), column_index(first_column, tile)
    keeps = is_kept(values.seed, z, rows, columns, sizes.queries, values.dropout)
    return tl.where(keeps, 1.0 / (1.0 - values.dropout), 0.0)


@triton.jit
def selecting_dot(weights, x, seen, total, tile):
    """`total + weights @ x` that does not read x at hidden pairs, whatever it holds.

    0 * NaN is NaN. Where a tile of x holds NaN or inf and some pairs are hidden, the product is computed
    without these numbers, and with them only for results that see one.
    """
    if tile.HIDES and by_fma(tile.DOT, tile.PRECISION):
        total = careful_product(weights, x, seen, total, tile)
    elif tile.HIDES:
        total = careful_dot(weights, x, seen, total, tile)
    else:
        total = tl.dot(weights, x, total, input_precision=tile.PRECISION, out_dtype=tile.WORK)
    return total


@triton.jit
def careful_dot(weights, x, seen, total, tile):
    """`selecting_dot` where pairs may be hidden."""
    bad = (x != x) | (tl.abs(x) == float("inf"))
    if tl.max(tl.max(bad.to(tl.int32), 1), 0) > 0:
        clean = tl.dot(
            weights, tl.where(bad, 0.0, x), input_precision=tile.PRECISION, out_dtype=tile.WORK
        )
        whole = tl.dot(weights, x, input_precision=tile.PRECISION, out_dtype=tile.WORK)
        met = tl.dot(seen.to(tl.float16), bad.to(tl.float16))
        total += tl.where(met > 0, whole, clean)
    else:
        total = tl.dot(weights, x, total, input_precision=tile.PRECISION, out_dtype=tile.WORK)
    return total


@triton.jit
def careful_product(weights, x, seen, total, tile):
    """`careful_dot` in fp32, where a second product would take more registers than there are.

    For a result that sees NaN or inf only which of them it becomes matters. The signs of the weights
    decide that, in a product of fp16 by tensor cores.
    """
    bad = (x != x) | (tl.abs(x) == float("inf"))
    good = tl.where(bad, 0.0, x)
    total = tl.dot(weights, good, total, input_precision=tile.PRECISION, out_dtype=tile.WORK)
    if tl.max(tl.max(bad.to(tl.int32), 1), 0) > 0:
        signs = tl.where(weights > 0, 1.0, tl.where(weights < 0, -1.0, 0.0))
        which = tl.dot(signs.to(tl.float16), tl.where(bad, x, 0.0).to(tl.float16))
        met = tl.dot(seen.to(tl.float16), bad.to(tl.float16))
        total += tl.where(met > 0, which, 0.0)
    return total
