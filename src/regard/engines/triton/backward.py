"""The backward kernel: every tile is computed again, once, and adds its gradient to that of all inputs.

One program owns a block of keys and runs over all queries, or over a part of them where that would leave
most of the GPU idle. Gradients of its keys and values are added to by it and the programs of the other
parts. So is the gradient of v, which has one number for each key until the end. Gradients of queries are
added to by all programs of a head, in no fixed order. Where torch is set to be deterministic there is
one part, and programs add integers, whose sum does not depend on the order: see `ordered.py`.

Each hidden unit needs sums over the queries and over the keys of a tile. Sums over queries stay within a
lane, which holds one key and all queries of the tile. Sums over keys are a matrix product with zeros and
ones, two hidden units at a time, which tensor cores compute beside the other work. Shuffles between lanes
would cost more than the terms themselves. In fp32, without tensor cores, the product is with ones alone.
In bf16 tensor cores take both sums straight from registers: see `lanes.py`.
"""

from __future__ import annotations

import triton.language as tl

import triton
from regard.engines.triton import lanes
from regard.engines.triton.structs import KernelSizes
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

# Value dims that a program reads at once.
VALUE_CHUNK = tl.constexpr(16)


@triton.jit
def add(place, x, mask):
    """Add x to memory at `place`, atomically."""
    tl.atomic_add(place, x, mask=mask, sem="relaxed")


@triton.jit
def add_shared(place, x, mask, grads, who):
    """Add x to a sum of rows, to which all programs of a head add; `who` are the indices of the rows.

    In a fixed order (with `unit`) sums are integers, and NaN or inf marks the row as broken instead.
    """
    if grads.unit is None:
        add(place, x, mask)
    else:
        bad = (x != x) | (tl.abs(x) == float("inf"))
        # In fp64: gradients of 1e-36 need units beyond the range of fp32.
        unit = tl.load(grads.unit + who, mask=mask, other=0.0)
        count = tl.where(bad, 0.0, x).to(tl.float64) * unit
        count = count.to(tl.int64)
        add(place, count, mask)
        tl.atomic_max(grads.broken_rows + who, bad.to(tl.int32), mask=mask & bad, sem="relaxed")


@triton.jit
def lane_by_key(x, tile):
    """The tile x in a layout where a lane holds one key.

    After a matrix product Triton would keep the layout of the product. A gather of every entry from its
    own position changes nothing but the layout.
    """
    if tile.INTERPRET or tile.W > 1:
        return x
    else:
        place = tl.broadcast_to(tl.arange(0, tile.BN)[None, :], [tile.BM, tile.BN])
        return tl.gather(x, place, 1)


@triton.jit
def two_halves(tile):
    """A matrix (2 BN, 8) that sums two units side by side.

    Even rows have ones in the first 4 columns, odd rows in the last 4.
    """
    n, which = tl.arange(0, 8)[None, :] // 4, tl.arange(0, 2 * tile.BN)[:, None] % 2
    return tl.where(n == which, 1.0, 0.0).to(tile.DOT)


@triton.jit
def give_two_units(
    grads, head, h, first_row, first_column, t0, t1, g0, g1, v0, v1, halves, sizes, tile
):
    """Add the gradients of hidden units h and h + 1: sums of t times v to a and b, sums of g to v.

    g are (BN,), summed over queries already. The second unit may be one beyond the last. Addresses are
    split into the start of the tile, 64 bits and the same for all lanes, and an offset of 32 bits.
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
        # The units one below the other, times ones: the lane of a query adds each of its terms once.
        pair = tl.permute(tl.join(t0.to(tile.DOT), t1.to(tile.DOT)), (2, 0, 1))
        pair, ones = tl.reshape(pair, [2 * tile.BM, tile.BN]), tl.full([tile.BN, 1], 1.0, tile.DOT)
        sums = tl.dot(pair, ones, input_precision=tile.PRECISION, out_dtype=tile.WORK)
        at = tl.arange(0, 2 * tile.BM)[:, None]
        n, row = at // tile.BM * 4, at % tile.BM
    else:
        # The units interleaved along the keys: one product sums both.
        pair = tl.reshape(tl.join(t0.to(tile.DOT), t1.to(tile.DOT)), [tile.BM, 2 * tile.BN])
        sums = tl.dot(pair, halves, input_precision=tile.PRECISION, out_dtype=tile.WORK)
        n, row = tl.arange(0, 8)[None, :], tl.arange(0, tile.BM)[:, None]
    sums = sums * tl.where(n < 4, v0, v1)
    inside = (row < sizes.queries - first_row) & (n % 4 == 0) & (h + n // 4 < tile.REAL)
    place = grads.q + (unit * grads.q_step + first_row) + (n // 4 * grads.q_step + row)
    add_shared(place, sums, inside, grads, head * sizes.queries + first_row + row + n * 0)


@triton.jit
def fast_terms(q0, q1, k0, k1, ds, tile):
    """For two hidden units, ds r and ds (r - r^2) of each pair, where r = 1 / (1 + exp(2a) exp(2b)).

    tanh is 1 - 2r and its derivative 4 (r - r^2). In a head that is not loose r is always finite, so that
    hidden pairs, whose ds is 0, need no special care.
    """
    d0, d1 = q0 * k0 + 1.0, q1 * k1 + 1.0
    both = reciprocal(d0 * d1, tile)
    r0, r1 = both * d1, both * d0
    g0, g1 = ds * r0, ds * r1
    return g0, g1, g0 - g0 * r0, g1 - g1 * r1


@triton.jit
def fast_units(q, k, v, grads, head, first_row, first_column, rows, columns, ds, form, sizes, tile):
    """Add the gradients of a, b and v through the fast form of tanh."""
    whole, halves = tl.sum(ds, 0), two_halves(tile)
    v0, v1 = tl.load(v), tl.load(v + tl.minimum(1, tile.REAL - 1))
    for h in range(0, tile.REAL, 2):
        q0, k0 = q + h * form.q_step + rows, k + h * form.k_step + columns
        # Loaded one iteration ahead: nothing else hides the latency of these loads.
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
    """`fast_units` with sums as in `lanes.py`. The sums are padded, so that no mask is needed."""
    whole, q, k = tl.sum(ds, 0), q + rows, k + columns
    chosen, fixed = lanes.selections(), lanes.counting(grads, head, first_row, sizes)
    to_key, to_query, to_v = lanes.places(grads, head, first_row, first_column)
    # Loaded one iteration ahead, one number by each lane: nothing else hides the latency of these loads.
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
        # Addresses are advanced: computed from h they would take more instructions.
        to_key += 2 * grads.k_step
        to_query += 2 * grads.q_step
        to_v += 2 * grads.k_step


@triton.jit
def is_broken(ds):
    """Whether a tile holds NaN, or a number that may become infinite in bf16."""
    return tl.max(tl.max(tl.where(tl.abs(ds) < 1e37, 0, 1), 0), 0) > 0


@triton.jit
def broken_units(
    q, k, v, grads, head, first_row, first_column, rows, columns, ds, form, sizes, tile
):
    """`fast_units` for a tile with NaN or inf, which must not spread: each row is summed on its own."""
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
    """For one hidden unit, ds f' of each pair (BM, BN), and ds f summed over queries (BN,)."""
    x = tl.load(q + unit_of(h, form.q_step, rows, tile) + rows * form.q_row).to(tile.WORK)
    at = unit_of(h, form.k_step, columns, tile) + columns * form.k_row
    x += tl.load(k + at).to(tile.WORK)
    y = activated(x, form, tile)
    given, terms = ds * y, ds * steepness(x, y, form, tile)
    if tile.HIDES:
        # A hidden key may hold NaN, and 0 * NaN is NaN.
        given, terms = tl.where(seen, given, 0.0), tl.where(seen, terms, 0.0)
    return terms, tl.sum(given, 0)


@triton.jit
def plain_units(
    q, k, v, grads, head, first_row, first_column, rows, columns, ds, seen, form, sizes, tile
):
    """Add the gradients of a, b and v through any activation."""
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
    """Add the gradients of a, b and v for ds, the gradient of the raw scores of a tile."""
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
            # The caller's tensors have no padding: clamp to the last row and key.
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
    """Add the gradients of phi and psi for ds, CHUNK features at a time."""
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
    """<grad, value> of each pair; also adds the gradient of the values, with weights `used`.

    Some value dims at a time: all of them, with their addresses, would take registers that more warps
    need.
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
    """The gradient of the raw scores of a tile; also adds those of values, bias, rate, alpha and beta.

    Values are read again for each tile, and their gradient is added to memory at once: kept in
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
        # log p + entropy; for hidden pairs log p is -inf, and is replaced by 0.
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
    """Add all gradients of one tile."""
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


@triton.jit(do_not_specialize=["queries", "keys", "parts"])
def backward_kernel(
    form, pairs, groups, heads, queries, keys, value_dim, values, known, grads, skip, parts, tile,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Add all gradients to `grads`; one program for each block of keys of a head and part of the queries."""
    sizes = KernelSizes(groups, heads, queries, keys, value_dim)
    blocks, row_blocks = tl.cdiv(sizes.keys, tile.BN), tl.cdiv(sizes.queries, tile.BM)
    part, block = tl.program_id(0) % parts, tl.program_id(0) // parts
    z, first_column = block // blocks, block % blocks * tile.BN
    if is_other(z, form, sizes, skip, tile):
        return
    columns, share = column_index(first_column, tile), tl.cdiv(row_blocks, parts) * tile.BM
    for first_row in range(part * share, tl.minimum((part + 1) * share, sizes.queries), tile.BM):
        seen = seen_pairs(pairs, sizes, z, row_index(first_row, tile), columns)
        # Tiles without a visible pair are skipped; without a mask the test itself would cost time.
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
