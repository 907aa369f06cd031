"""The backward kernel: every tile is computed again, once, and gives its gradient to all inputs.

One program owns a block of keys and runs over all queries, or, where that would leave most of the GPU
idle, over a part of them. What belongs to its keys it adds up alone or with the programs of the other
parts, and so it does with the gradient of v, which has a place for each key until the end; what
belongs to queries all programs of a head add to the same memory, in whatever order they come. Where
a fixed result is asked for there is one part, and programs add integers, whose sum does not depend on
the order: see `ordered.py`.

Of the sums over a tile that each hidden unit needs, those over queries stay within a lane, which
holds one key and all queries of the tile; those over keys are a matrix product with zeros and ones,
two hidden units at a time, which tensor cores do beside the rest. By shuffles between lanes they
would cost more than the terms themselves. In fp32, without tensor cores, the product is with ones
alone. In bf16 tensor cores take both sums from the registers as they are: see `lanes.py`.
"""

from __future__ import annotations

import triton.language as tl

import triton
from regard.engines.triton import lanes
from regard.engines.triton.tiles import (
    activated,
    at_head,
    by_fma,
    column_index,
    features,
    is_other,
    kept,
    reciprocal,
    row_index,
    seen_pairs,
    selecting_dot,
    some,
    steepness,
    through_cap,
    tile_logits,
    two_units,
    unit_of,
)

# Dims of a value that are read at once.
VALUE_CHUNK = tl.constexpr(16)


@triton.jit
def add(place, x, mask):
    """Add to memory."""
    tl.atomic_add(place, x, mask=mask, sem="relaxed")


@triton.jit
def add_shared(place, x, mask, grads, who):
    """Add to memory that other programs add to as well; NaN is noted for the rows `who`."""
    if grads.unit is None:
        add(place, x, mask)
    else:
        bad = (x != x) | (tl.abs(x) == float("inf"))
        # In fp64: gradients of 1e-36 take units beyond the range of fp32.
        unit = tl.load(grads.unit + who, mask=mask, other=0.0)
        count = tl.where(bad, 0.0, x).to(tl.float64) * unit
        count = count.to(tl.int64)
        add(place, count, mask)
        tl.atomic_max(grads.broken_rows + who, bad.to(tl.int32), mask=mask & bad, sem="relaxed")


@triton.jit
def lane_by_key(x, tile):
    """The same tile, arranged such that a lane holds one key: Triton would keep that of a product.

    It is a gather of every entry from its own place, which brings its own arrangement with it.
    """
    if tile.INTERPRET or tile.W > 1:
        return x
    else:
        place = tl.broadcast_to(tl.arange(0, tile.BN)[None, :], [tile.BM, tile.BN])
        return tl.gather(x, place, 1)


@triton.jit
def two_halves(tile):
    """(2 BN, 8): even rows have ones in the first 4 columns, odd rows in the last 4."""
    n, which = tl.arange(0, 8)[None, :] // 4, tl.arange(0, 2 * tile.BN)[:, None] % 2
    return tl.where(n == which, 1.0, 0.0).to(tile.DOT)


@triton.jit
def give_two_units(
    grads, head, h, first_row, first_column, t0, t1, g0, g1, v0, v1, halves, sizes, tile
):
    """Add what hidden units h and h + 1 give: t sums to a and b with factor v, g sums to v itself.

    g are (BN,), summed over queries already; the second unit may be one too many. Where a tile
    begins in memory takes 64 bits, and one number for all lanes; what is within it takes 32.
    """
    unit, second = head * grads.units + h, h + 1 < tile.REAL
    begin = unit * grads.k_step + first_column
    column = tl.arange(0, tile.BN)
    mask = column < sizes.keys - first_column
    add(grads.k + begin + column, v0 * tl.sum(t0, 0), mask)
    add(grads.k + begin + grads.k_step + column, v1 * tl.sum(t1, 0), mask & second)
    add(grads.v + begin + column, g0, mask)
    add(grads.v + begin + grads.k_step + column, g1, mask & second)
    if by_fma(tile.DOT, tile.PRECISION):
        # One below the other, times ones: every term is added once, by the lane of its query.
        pair = tl.permute(tl.join(t0.to(tile.DOT), t1.to(tile.DOT)), (2, 0, 1))
        pair, ones = tl.reshape(pair, [2 * tile.BM, tile.BN]), tl.full([tile.BN, 1], 1.0, tile.DOT)
        sums = tl.dot(pair, ones, input_precision=tile.PRECISION, out_dtype=tile.WORK)
        at = tl.arange(0, 2 * tile.BM)[:, None]
        n, row = at // tile.BM * 4, at % tile.BM
    else:
        # Side by side, entry by entry: one product sums both over keys.
        pair = tl.reshape(tl.join(t0.to(tile.DOT), t1.to(tile.DOT)), [tile.BM, 2 * tile.BN])
        sums = tl.dot(pair, halves, input_precision=tile.PRECISION, out_dtype=tile.WORK)
        n, row = tl.arange(0, 8)[None, :], tl.arange(0, tile.BM)[:, None]
    sums = sums * tl.where(n < 4, v0, v1)
    inside = (row < sizes.queries - first_row) & (n % 4 == 0) & (h + n // 4 < tile.REAL)
    place = grads.q + (unit * grads.q_step + first_row) + (n // 4 * grads.q_step + row)
    add_shared(place, sums, inside, grads, head * sizes.queries + first_row + row + n * 0)


@triton.jit
def fast_terms(q0, q1, k0, k1, ds, tile):
    """Of two hidden units: ds r and ds (r - r^2) of each pair, where r = 1 / (1 + exp(2a) exp(2b)).

    tanh is 1 - 2r and its derivative 4 (r - r^2). In a bounded head r is always a number, so that
    hidden pairs, whose ds is 0, need no care.
    """
    d0, d1 = q0 * k0 + 1.0, q1 * k1 + 1.0
    both = reciprocal(d0 * d1, tile)
    r0, r1 = both * d1, both * d0
    g0, g1 = ds * r0, ds * r1
    return g0, g1, g0 - g0 * r0, g1 - g1 * r1


@triton.jit
def fast_units(q, k, v, grads, head, first_row, first_column, rows, columns, ds, form, sizes, tile):
    """The gradient through the fast form of tanh."""
    whole, halves = tl.sum(ds, 0), two_halves(tile)
    v0, v1 = tl.load(v), tl.load(v + tl.minimum(1, tile.REAL - 1))
    for h in range(0, tile.REAL, 2):
        q0, k0 = q + h * form.q_step + rows, k + h * form.k_step + columns
        # One turn ahead: nothing else hides how long a load takes.
        next0 = tl.load(v + tl.minimum(h + 2, tile.REAL - 1))
        next1 = tl.load(v + tl.minimum(h + 3, tile.REAL - 1))
        g0, g1, t0, t1 = fast_terms(
            tl.load(q0), tl.load(q0 + form.q_step), tl.load(k0), tl.load(k0 + form.k_step), ds, tile
        )
        give_two_units(
            grads, head, h, first_row, first_column, t0, t1, whole - 2.0 * tl.sum(g0, 0),
            whole - 2.0 * tl.sum(g1, 0), 4.0 * v0, 4.0 * v1, halves, sizes, tile,
        )  # fmt: skip
        v0, v1 = next0, next1


@triton.jit
def fast_units_in_lanes(
    q, k, v, grads, head, first_row, first_column, rows, columns, ds, form, sizes, tile
):
    """The same, summed as in `lanes.py`; the memory of the gradients is padded, no mask is needed."""
    whole, q, k = tl.sum(ds, 0), q + rows, k + columns
    chosen, fixed = lanes.selections(), lanes.counting(grads, head, first_row, sizes)
    to_key, to_query, to_v = lanes.places(grads, head, first_row, first_column)
    # One turn ahead, one number by each lane: nothing else hides how long a load takes.
    q0, q1, k0, k1 = two_units(q, k, 0, form, tile)
    v0, v1 = tl.load(v), tl.load(v + tl.minimum(1, tile.REAL - 1))
    for h in range(0, tile.E, 2):
        next0 = tl.load(v + tl.minimum(h + 2, tile.REAL - 1))
        next1 = tl.load(v + tl.minimum(h + 3, tile.REAL - 1))
        g0, g1, t0, t1 = fast_terms(q0, q1, k0, k1, ds, tile)
        q0, q1, k0, k1 = two_units(q, k, h + 2, form, tile)
        add(to_v, whole - 2.0 * tl.sum(g0, 0), None)
        add(to_v + grads.k_step, whole - 2.0 * tl.sum(g1, 0), None)
        lanes.give(grads, t0, t1, 4.0 * v0, 4.0 * v1, to_key, to_query, chosen, fixed, tile)
        v0, v1 = next0, next1
        # Places go along: made anew from h they would take more instructions.
        to_key += 2 * grads.k_step
        to_query += 2 * grads.q_step
        to_v += 2 * grads.k_step


@triton.jit
def is_broken(ds):
    """Whether a tile holds NaN, or what may be infinite in bf16."""
    return tl.max(tl.max(tl.where(tl.abs(ds) < 1e37, 0, 1), 0), 0) > 0


@triton.jit
def broken_units(
    q, k, v, grads, head, first_row, first_column, rows, columns, ds, form, sizes, tile
):
    """`fast_units` for a tile whose bad numbers must not spread: each row is summed on its own."""
    row, column = tl.arange(0, tile.BM)[:, None], tl.arange(0, tile.BN)[None, :]
    here, there = row < sizes.queries - first_row, column < sizes.keys - first_column
    for h in range(tile.REAL):
        d = tl.load(q + h * form.q_step + rows) * tl.load(k + h * form.k_step + columns) + 1.0
        r, factor = 1.0 / d, 4.0 * tl.load(v + h)
        g, unit = ds * r, head * grads.units + h
        terms, at = g - g * r, unit * grads.k_step + first_column + column
        add(grads.k + at, factor * tl.sum(terms, 0)[None, :], there)
        add(grads.v + at, tl.sum(ds - 2.0 * g, 0)[None, :], there)
        place = grads.q + (unit * grads.q_step + first_row + row)
        who = head * sizes.queries + first_row + row
        add_shared(place, factor * tl.sum(terms, 1)[:, None], here, grads, who)


@triton.jit
def plain_unit(q, k, h, rows, columns, ds, seen, form, tile):
    """Of one hidden unit: ds f' of each pair (BM, BN), and ds f summed over queries (BN,)."""
    x = tl.load(q + unit_of(h, form.q_step, rows, tile) + rows * form.q_row).to(tile.WORK)
    at = unit_of(h, form.k_step, columns, tile) + columns * form.k_row
    x += tl.load(k + at).to(tile.WORK)
    y = activated(x, form, tile)
    given, terms = ds * y, ds * steepness(x, y, form, tile)
    if tile.HIDES:
        # What a hidden key holds may make its terms NaN, and 0 * NaN is NaN.
        given, terms = tl.where(seen, given, 0.0), tl.where(seen, terms, 0.0)
    return terms, tl.sum(given, 0)


@triton.jit
def plain_units(
    q, k, v, grads, head, first_row, first_column, rows, columns, ds, seen, form, sizes, tile
):
    """The gradient through any activation."""
    halves = two_halves(tile)
    for h in range(0, tile.REAL, 2):
        last = tl.minimum(h + 1, tile.REAL - 1)
        t0, g0 = plain_unit(q, k, h, rows, columns, ds, seen, form, tile)
        t1, g1 = plain_unit(q, k, last, rows, columns, ds, seen, form, tile)
        v0, v1 = tl.load(v + h), tl.load(v + last)
        give_two_units(
            grads, head, h, first_row, first_column, t0, t1, g0, g1, v0, v1, halves, sizes, tile
        )


@triton.jit
def pairwise_gradient(form, sizes, grads, z, first_row, first_column, ds, seen, tile):
    """Give ds, the gradient of the raw scores of a tile, to a, b and v."""
    rows, columns = row_index(first_row, tile), column_index(first_column, tile)
    of_q = at_head(z, sizes, form.q_b, form.q_k, form.q_g)
    q, k = form.q + of_q, form.k + at_head(z, sizes, form.k_b, form.k_k, form.k_g)
    v, head = form.v + z % (sizes.groups * sizes.heads) * tile.REAL, z.to(tl.int64)
    ds = lane_by_key(ds, tile)
    if tile.FORM == "fast":
        q = form.second_q + of_q
        if not tile.LANES:
            fast_units(
                q, k, v, grads, head, first_row, first_column, rows, columns, ds, form, sizes, tile
            )
        elif is_broken(ds):
            broken_units(
                q, k, v, grads, head, first_row, first_column, rows, columns, ds, form, sizes, tile
            )
        else:
            fast_units_in_lanes(
                q, k, v, grads, head, first_row, first_column, rows, columns, ds, form, sizes, tile
            )
    else:
        if tile.FORM == "direct":
            # There is no padding to read.
            rows = tl.minimum(rows, sizes.queries - 1).to(tl.int64)
            columns = tl.minimum(columns, sizes.keys - 1).to(tl.int64)
        plain_units(
            q, k, v, grads, head, first_row, first_column, rows, columns, ds, seen, form, sizes,
            tile,
        )  # fmt: skip


@triton.jit
def inner_gradient(
    form, sizes, grads, z, first_row, first_column, ds, seen, tile, CHUNK: tl.constexpr
):
    """Give ds to phi and psi, chunk by chunk of features."""
    q = form.q + at_head(z, sizes, form.q_b, form.q_k, form.q_g)
    k = form.k + at_head(z, sizes, form.k_b, form.k_k, form.k_g)
    head, n = z.to(tl.int64), tl.arange(0, CHUNK)
    row = first_row + tl.arange(0, tile.BM)
    column = first_column + tl.arange(0, tile.BN)
    x = (ds * form.scale).to(tile.DOT)
    for first in range(0, tile.E, CHUNK):
        phi = features(q, row, sizes.queries, first, tile, CHUNK).to(tile.DOT)
        psi = features(k, column, sizes.keys, first, tile, CHUNK).to(tile.DOT)
        none = tl.zeros([tile.BM, CHUNK], tile.WORK)
        of_q = selecting_dot(x, psi, seen, none, tile)
        none = tl.zeros([tile.BN, CHUNK], tile.WORK)
        of_k = selecting_dot(tl.trans(x), phi, tl.trans(seen), none, tile)
        unit = first + n[None, :]
        at = (head * sizes.queries + row[:, None]) * tile.E + unit
        inside = (row[:, None] < sizes.queries) & (unit < tile.E)
        add_shared(
            grads.q + at,
            of_q,
            inside,
            grads,
            head * sizes.queries + row[:, None] + unit * 0,
        )
        at = (head * sizes.keys + column[:, None]) * tile.E + unit
        add(grads.k + at, of_k, (column[:, None] < sizes.keys) & (unit < tile.E))


@triton.jit
def gradient_of_weights(sizes, values, known, grads, z, first_row, first_column, used, seen, tile):
    """<grad, value> of each pair; what the pairs, weighed by `used`, give to the values is added.

    By chunks of the value's dims: the whole, and where it lies in memory, would take the registers
    that let more warps run.
    """
    head, slope = z.to(tl.int64), tl.zeros([tile.BM, tile.BN], tile.WORK)
    row, key = tl.arange(0, tile.BM)[:, None], tl.arange(0, tile.BN)[:, None]
    of_row, of_key = row < sizes.queries - first_row, key < sizes.keys - first_column
    value = values.value + at_head(z, sizes, values.value_b, values.value_k, values.value_g)
    value += first_column.to(tl.int64) * sizes.value_dim
    grad = known.grad + (head * sizes.queries + first_row) * sizes.value_dim
    found = grads.value + (head * sizes.keys + first_column) * sizes.value_dim
    for first in range(0, tile.DV, VALUE_CHUNK):
        dims = first + tl.arange(0, VALUE_CHUNK)[None, :]
        at, inside = key * sizes.value_dim + dims, of_key & (dims < sizes.value_dim)
        v = tl.load(value + at, mask=inside, other=0.0).to(tile.DOT)
        mask = of_row & (dims < sizes.value_dim)
        g = tl.load(grad + row * sizes.value_dim + dims, mask=mask, other=0.0).to(tile.DOT)
        slope = tl.dot(g, tl.trans(v), slope, input_precision=tile.PRECISION, out_dtype=tile.WORK)
        none = tl.zeros([tile.BN, VALUE_CHUNK], tile.WORK)
        given = selecting_dot(tl.trans(used), g, tl.trans(seen), none, tile)
        add(found + at, given, inside)
    return slope


@triton.jit
def gradient_of_logits(
    form, pairs, sizes, values, known, grads, z, first_row, first_column, seen, tile,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """The gradient of the raw scores of a tile; those of values, bias and the like are added here.

    Values are read anew for each tile, and their gradient goes straight to memory: kept in
    registers, the two would leave no room for more warps.
    """
    rows, columns = row_index(first_row, tile), column_index(first_column, tile)
    head = z.to(tl.int64)
    row = head * sizes.queries + rows
    here = rows < sizes.queries
    score, capped, final = tile_logits(
        form, pairs, sizes, z, first_row, first_column, seen, tile, CHUNK
    )
    peak = tl.load(known.peak + row, mask=here, other=0.0)
    tail = tl.load(known.tail + row, mask=here, other=0.0).to(tile.WORK)
    below = final - tl.where(peak == -float("inf"), 0.0, peak)
    weights = tl.where(seen, tl.exp(below - tail), 0.0)
    used, keep = weights, 1.0
    if values.seed is not None:
        keep = kept(values, sizes, z, first_row, first_column, tile)
        used = weights * keep
    slope = gradient_of_weights(
        sizes, values, known, grads, z, first_row, first_column, used.to(tile.DOT), seen, tile
    )
    if values.seed is not None:
        slope *= keep
    slope += tl.load(known.shift + row, mask=here, other=0.0)
    if known.grad_entropy is not None:
        # log p + entropy, where a weight of 0 has no say.
        surprise = tl.where(seen, below - tail, 0.0)
        surprise += tl.load(known.entropy + row, mask=here, other=0.0)
        slope -= surprise * tl.load(known.grad_entropy + row, mask=here, other=0.0)
    ds = tl.where(seen, slope * weights, 0.0)
    if grads.bias is not None:
        at = at_head(z, sizes, grads.bias_b, grads.bias_k, grads.bias_g)
        at += rows.to(tl.int64) * grads.bias_q + columns.to(tl.int64) * grads.bias_l
        add(grads.bias + at, ds, seen)
    ds = through_cap(ds, capped, seen, pairs)
    if pairs.rate is not None:
        of_rate = tl.sum(tl.where(seen, ds * score, 0.0), 1)[:, None]
        add_shared(grads.rate + row, of_rate, here, grads, row)
        ds = ds * tl.load(pairs.rate + row, mask=here, other=0.0)
    if pairs.alpha is not None:
        of_alpha = tl.sum(ds, 1)[:, None]
        add_shared(grads.alpha + row, of_alpha, here, grads, row)
    if pairs.beta is not None:
        add(grads.beta + head * sizes.keys + columns, tl.sum(ds, 0)[None, :], columns < sizes.keys)
    return ds


@triton.jit
def backward_step(
    form, pairs, sizes, values, known, grads, z, first_row, first_column, seen, tile,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """All of one tile."""
    if known.given is not None:
        rows, columns = row_index(first_row, tile), column_index(first_column, tile)
        at = (z.to(tl.int64) * sizes.queries + rows) * sizes.keys + columns
        ds = tl.load(known.given + at, mask=seen, other=0.0).to(tile.WORK)
    else:
        ds = gradient_of_logits(
            form, pairs, sizes, values, known, grads, z, first_row, first_column, seen, tile, CHUNK
        )
    if tile.FORM == "inner":
        inner_gradient(form, sizes, grads, z, first_row, first_column, ds, seen, tile, CHUNK)
    else:
        pairwise_gradient(form, sizes, grads, z, first_row, first_column, ds, seen, tile)


@triton.jit
def backward_kernel(
    form, pairs, sizes, values, known, grads, skip, parts, tile, CHUNK: tl.constexpr,
):  # fmt: skip
    """One program for each block of keys of each head, and each part of the queries."""
    blocks, row_blocks = tl.cdiv(sizes.keys, tile.BN), tl.cdiv(sizes.queries, tile.BM)
    part, block = tl.program_id(0) % parts, tl.program_id(0) // parts
    z, first_column = block // blocks, block % blocks * tile.BN
    if is_other(z, form, sizes, skip, tile):
        return
    columns, share = column_index(first_column, tile), tl.cdiv(row_blocks, parts) * tile.BM
    for first_row in range(part * share, tl.minimum((part + 1) * share, sizes.queries), tile.BM):
        seen = seen_pairs(pairs, sizes, z, row_index(first_row, tile), columns)
        if tile.HIDES:
            if some(seen, tile) > 0:
                backward_step(
                    form, pairs, sizes, values, known, grads, z, first_row, first_column, seen,
                    tile, CHUNK,
                )  # fmt: skip
        else:
            backward_step(
                form, pairs, sizes, values, known, grads, z, first_row, first_column, seen, tile,
                CHUNK,
            )  # fmt: skip
