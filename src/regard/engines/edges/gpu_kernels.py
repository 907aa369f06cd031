"""Triton's kernels over edges: a program for each piece of a node's edges, and for a few of its heads.

A program reads the rows of a few edges at a time, as tiles (edges, heads, width), and keeps what it sums in
registers. Nodes with very many edges are divided into pieces (see `graph.EdgePieces`), whose parts further
kernels add in the order of the pieces. Nothing is added with atomics, so that results have the same bits each
time.

The backward pass computes the logits again, once for the targets and once for the sources: to keep weights
and gradients of E x H logits would take longer to write and read than it takes to compute them.

Shape legend: BE edges, HB heads, WP width of queries and keys, CP width of values, each a power of two.
"""

from __future__ import annotations

import triton.language as tl

import triton

TANH, LEAKY_RELU, INNER = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def piece_at(p, side, DIVIDED: tl.constexpr):
    """Node, first edge, end and slot of a piece; of an undivided side node p and all of its edges."""
    if DIVIDED:
        node = tl.load(side.node + p)
        begin, end = tl.load(side.begin + p), tl.load(side.end + p)
        return node, begin, end, tl.load(side.slot + p)
    else:
        begin, end = tl.load(side.starts + p), tl.load(side.starts + p + 1)
        # In the dtype of the edges, whatever that of p.
        return begin * 0 + p, begin, end, begin * 0 - 1


@triton.jit
def rows(x, node, at, real, step):
    """The rows (HB, width) of a node, 0 where not `real`, in fp32."""
    return tl.load(x + node.to(tl.int64) * step + at, mask=real, other=0.0).to(tl.float32)


@triton.jit
def tile(x, nodes, seen, at, real, step):
    """The rows (BE, HB, width) of several nodes, 0 for edges that are not `seen`."""
    place = nodes.to(tl.int64)[:, None, None] * step + at[None]
    return tl.load(x + place, mask=seen[:, None, None] & real[None], other=0.0).to(tl.float32)


@triton.jit
def units_of(a, b, number, KIND: tl.constexpr):
    """The hidden units f(a + b), or the products of an inner score; tiles broadcast."""
    if KIND == INNER:
        return a * b * number
    x = a + b
    if KIND == TANH:
        return 1 - 2 / (1 + tl.exp(2 * x))
    return tl.where(x > 0, x, number * x)


@triton.jit
def slope_of(units, a, b, number, KIND: tl.constexpr):
    """The derivative f' of these hidden units."""
    if KIND == TANH:
        return 1 - units * units
    return tl.where(a + b > 0, 1.0, number)


@triton.jit
def logits_of(units, v, KIND: tl.constexpr):
    """The logits (BE, HB) of hidden units."""
    if KIND == INNER:
        return tl.sum(units, 2)
    else:
        return tl.sum(units * v[None], 2)


@triton.jit
def layout(sizes, HB: tl.constexpr, WP: tl.constexpr, CP: tl.constexpr):
    """Heads of this program, which of them are real, and places and masks of rows of width W and C."""
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    real, w, c = head < sizes.heads, tl.arange(0, WP), tl.arange(0, CP)
    at_w = head[:, None] * sizes.width + w[None]
    at_c = head[:, None] * sizes.columns + c[None]
    real_w = real[:, None] & (w < sizes.width)[None]
    real_c = real[:, None] & (c < sizes.columns)[None]
    return head, real, at_w, real_w, at_c, real_c


@triton.jit
def merged(peak, total, output, s, x):
    """Largest logit, sum and output of a softmax after some more logits s (BE, HB) with values x."""
    most = tl.maximum(peak, tl.max(s, 0))
    # Of -inf alone nothing is subtracted: -inf - -inf would be NaN.
    base = tl.where(most == float("-inf"), 0.0, most)
    shrink, p = tl.exp(peak - base), tl.exp(s - base[None])
    total = total * shrink + tl.sum(p, 0)
    return most, total, output * shrink[:, None] + tl.sum(p[:, :, None] * x, 0)


@triton.jit
def store_output(given, node, head, real, at_c, real_c, peak, total, output, sizes):
    """The output of a node, and its LSE: +inf where it sees nothing."""
    nothing = total == 0
    output = output / tl.where(nothing, 1.0, total)[:, None]
    step = sizes.heads * sizes.columns
    tl.store(given.output + node.to(tl.int64) * step + at_c, output, mask=real_c)
    lse = tl.where(nothing, float("inf"), peak + tl.log(tl.where(nothing, 1.0, total)))
    tl.store(given.lse + node.to(tl.int64) * sizes.heads + head, lse, mask=real)


@triton.jit
def edges_forward_kernel(
    given, side, parts, sizes, number,
    KIND: tl.constexpr, SHARED: tl.constexpr, DIVIDED: tl.constexpr,
    BE: tl.constexpr, HB: tl.constexpr, WP: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """Output and LSE of a target, or the part of one of its pieces."""
    node, begin, end, slot = piece_at(tl.program_id(0), side, DIVIDED)
    head, real, at_w, real_w, at_c, real_c = layout(sizes, HB, WP, CP)
    step_w, step_c = sizes.heads * sizes.width, sizes.heads * sizes.columns
    if node < sizes.targets:
        a = rows(given.query, node, at_w, real_w, step_w)
        v = rows(given.v, node * 0, at_w, real_w, 0) if KIND != INNER else a
        peak = tl.full([HB], float("-inf"), tl.float32)
        total, output = tl.zeros([HB], tl.float32), tl.zeros([HB, CP], tl.float32)
        for first in range(begin, end, BE):
            edge = first + tl.arange(0, BE)
            seen = edge < end
            source = tl.load(side.other + edge, mask=seen, other=0)
            b = tile(given.key, source, seen, at_w, real_w, step_w)
            x = b if SHARED else tile(given.value, source, seen, at_c, real_c, step_c)
            s = logits_of(units_of(a[None], b, number, KIND), v, KIND)
            s = tl.where(seen[:, None], s, float("-inf"))
            peak, total, output = merged(peak, total, output, s, x)
        if slot < 0:
            store_output(given, node, head, real, at_c, real_c, peak, total, output, sizes)
        else:
            place = slot.to(tl.int64)
            tl.store(parts.output + place * step_c + at_c, output, mask=real_c)
            tl.store(parts.peak + place * sizes.heads + head, peak, mask=real)
            tl.store(parts.total + place * sizes.heads + head, total, mask=real)


@triton.jit
def edges_merge_kernel(
    given, side, parts, sizes, BS: tl.constexpr, HB: tl.constexpr, CP: tl.constexpr
):
    """Output and LSE of a target with several pieces."""
    node = tl.load(side.large + tl.program_id(0))
    head, real, _, _, at_c, real_c = layout(sizes, HB, 1, CP)
    if node < sizes.targets:
        first, count = (
            tl.load(side.first + tl.program_id(0)),
            tl.load(side.count + tl.program_id(0)),
        )
        peak = tl.full([HB], float("-inf"), tl.float32)
        total, output = tl.zeros([HB], tl.float32), tl.zeros([HB, CP], tl.float32)
        for start in range(first, first + count, BS):
            slot = start + tl.arange(0, BS)
            seen = slot < first + count
            mask, place = (
                seen[:, None] & real[None],
                slot.to(tl.int64)[:, None] * sizes.heads + head[None],
            )
            tops = tl.load(parts.peak + place, mask=mask, other=float("-inf"))
            sums = tl.load(parts.total + place, mask=mask, other=0.0)
            x = tile(parts.output, slot, seen, at_c, real_c, sizes.heads * sizes.columns)
            most = tl.maximum(peak, tl.max(tops, 0))
            base = tl.where(most == float("-inf"), 0.0, most)
            shrink, p = tl.exp(peak - base), tl.exp(tops - base[None])
            total = total * shrink + tl.sum(p * sums, 0)
            output = output * shrink[:, None] + tl.sum(p[:, :, None] * x, 0)
            peak = most
        store_output(given, node, head, real, at_c, real_c, peak, total, output, sizes)


@triton.jit
def edges_backward_targets_kernel(
    given, side, parts, sizes, number, pieces, programs,
    KIND: tl.constexpr, SHARED: tl.constexpr, DIVIDED: tl.constexpr,
    BE: tl.constexpr, HB: tl.constexpr, WP: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """The gradients of the queries of every `programs`-th piece, and what these add to that of v."""
    head, real, at_w, real_w, at_c, real_c = layout(sizes, HB, WP, CP)
    step_w, step_c = sizes.heads * sizes.width, sizes.heads * sizes.columns
    dv = tl.zeros([HB, WP], tl.float32)
    for p in range(tl.program_id(0), pieces, programs):
        node, begin, end, slot = piece_at(p, side, DIVIDED)
        if node < sizes.targets:
            a = rows(given.query, node, at_w, real_w, step_w)
            v = rows(given.v, node * 0, at_w, real_w, 0) if KIND != INNER else a
            grad = rows(given.grad, node, at_c, real_c, step_c)
            mean = tl.sum(grad * rows(given.output, node, at_c, real_c, step_c), 1)
            at_head = node.to(tl.int64) * sizes.heads + head
            lse = tl.load(given.lse + at_head, mask=real, other=float("inf"))
            # All pieces of a node write the same number.
            tl.store(given.mean + at_head, mean, mask=real)
            da = tl.zeros([HB, WP], tl.float32)
            for first in range(begin, end, BE):
                edge = first + tl.arange(0, BE)
                seen = edge < end
                source = tl.load(side.other + edge, mask=seen, other=0)
                b = tile(given.key, source, seen, at_w, real_w, step_w)
                x = b if SHARED else tile(given.value, source, seen, at_c, real_c, step_c)
                units = units_of(a[None], b, number, KIND)
                s = logits_of(units, v, KIND)
                share = tl.where(seen[:, None], tl.exp(s - lse[None]), 0.0)
                slope = share * (tl.sum(grad[None] * x, 2) - mean[None])
                if KIND == INNER:
                    da += tl.sum(slope[:, :, None] * b, 0)
                else:
                    by_unit = slope[:, :, None] * slope_of(units, a[None], b, number, KIND)
                    da += tl.sum(by_unit, 0)
                    dv += tl.sum(slope[:, :, None] * units, 0)
            da = da * number if KIND == INNER else da * v
            if slot < 0:
                tl.store(given.da + node.to(tl.int64) * step_w + at_w, da, mask=real_w)
            else:
                tl.store(parts.key + slot.to(tl.int64) * step_w + at_w, da, mask=real_w)
    if KIND != INNER:
        tl.store(given.dv + tl.program_id(0).to(tl.int64) * step_w + at_w, dv, mask=real_w)


@triton.jit
def edges_backward_sources_kernel(
    given, side, parts, sizes, number,
    KIND: tl.constexpr, SHARED: tl.constexpr, DIVIDED: tl.constexpr,
    BE: tl.constexpr, HB: tl.constexpr, WP: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """The gradients of the key and the value of a source, or the part of one of its pieces."""
    node, begin, end, slot = piece_at(tl.program_id(0), side, DIVIDED)
    head, real, at_w, real_w, at_c, real_c = layout(sizes, HB, WP, CP)
    step_w, step_c = sizes.heads * sizes.width, sizes.heads * sizes.columns
    if node < sizes.sources:
        b = rows(given.key, node, at_w, real_w, step_w)
        v = rows(given.v, node * 0, at_w, real_w, 0) if KIND != INNER else b
        x = b if SHARED else rows(given.value, node, at_c, real_c, step_c)
        db, dx = tl.zeros([HB, WP], tl.float32), tl.zeros([HB, CP], tl.float32)
        for first in range(begin, end, BE):
            edge = first + tl.arange(0, BE)
            seen = edge < end
            target = tl.load(side.other + edge, mask=seen, other=0)
            a = tile(given.query, target, seen, at_w, real_w, step_w)
            grad = tile(given.grad, target, seen, at_c, real_c, step_c)
            place = target.to(tl.int64)[:, None] * sizes.heads + head[None]
            mask = seen[:, None] & real[None]
            lse = tl.load(given.lse + place, mask=mask, other=float("inf"))
            mean = tl.load(given.mean + place, mask=mask, other=0.0)
            units = units_of(a, b[None], number, KIND)
            share = tl.where(mask, tl.exp(logits_of(units, v, KIND) - lse), 0.0)
            slope = share * (tl.sum(grad * x[None], 2) - mean)
            if KIND == INNER:
                db += tl.sum(slope[:, :, None] * a, 0)
            else:
                by_unit = slope[:, :, None] * slope_of(units, a, b[None], number, KIND)
                db += tl.sum(by_unit, 0)
            dx += tl.sum(share[:, :, None] * grad, 0)
        db = db * number if KIND == INNER else db * v
        if SHARED:
            db += dx
        if slot < 0:
            tl.store(given.db + node.to(tl.int64) * step_w + at_w, db, mask=real_w)
            if not SHARED:
                tl.store(given.dx + node.to(tl.int64) * step_c + at_c, dx, mask=real_c)
        else:
            tl.store(parts.key + slot.to(tl.int64) * step_w + at_w, db, mask=real_w)
            if not SHARED:
                tl.store(parts.value + slot.to(tl.int64) * step_c + at_c, dx, mask=real_c)


@triton.jit
def edges_add_kernel(part, result, side, nodes, numbers, BS: tl.constexpr, BX: tl.constexpr):
    """The sum of the parts (numbers,) of a node with several pieces."""
    node = tl.load(side.large + tl.program_id(0))
    if node < nodes:
        first, count = (
            tl.load(side.first + tl.program_id(0)),
            tl.load(side.count + tl.program_id(0)),
        )
        at = tl.program_id(1) * BX + tl.arange(0, BX)
        total = tl.zeros([BX], tl.float32)
        for start in range(first, first + count, BS):
            slot = start + tl.arange(0, BS)
            mask = (slot < first + count)[:, None] & (at < numbers)[None]
            place = slot.to(tl.int64)[:, None] * numbers + at[None]
            total += tl.sum(tl.load(part + place, mask=mask, other=0.0), 0)
        tl.store(result + node.to(tl.int64) * numbers + at, total, mask=at < numbers)
