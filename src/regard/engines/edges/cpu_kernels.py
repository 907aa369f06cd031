"""numba's kernels over edges: each call works on a range of nodes, alone, and releases the GIL.

Several threads call them with ranges that do not depend on the number of threads, so that the bits of the
result do not either. `parallel=True` is never used: its OpenMP layer ends forked children, and its own work
queue does not allow two threads of the caller.

Everything is fp32. A block of edges of one node at a time goes through: logits, largest logit, exponentials,
sum. The sources of a block stay in the innermost cache between the logits and the sum.

Shape legend: E edges, S sources, T targets, H heads, W width of queries and keys, C width of values.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from regard.engines.native import kernel

TANH, LEAKY_RELU, INNER = 0, 1, 2
# Edges in a block: 32 rows of 8 heads of 16 are 16 KiB.
BLOCK = 32
# Rows are asked for this many edges before they are read: they lie anywhere in memory, and to wait for each
# took three quarters of the time (gradients of sources, 200k edges, 8 x 16: 51 ms without, 16 ms with).
AHEAD = 8


@intrinsic
def touch(context, array, row, offset):
    """Ask for the cache line of a row, `offset` bytes into it."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        step = cgutils.unpack_tuple(builder, view.strides)[0]
        row = (
            builder.sext(arguments[1], step.type) if arguments[1].type.width < 64 else arguments[1]
        )
        byte = ir.IntType(8).as_pointer()
        start = builder.bitcast(view.data, byte)
        place = builder.gep(start, [builder.add(builder.mul(row, step), arguments[2])])
        whole = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, whole, whole, whole])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [place, whole(0), whole(3), whole(1)])
        return context.get_dummy_value()

    return types.void(array, row, offset), generate


@kernel(fastmath=frozenset({"contract"}), inline=True)
def exp(x):
    """`e^x` in fp32 to 2 units in the last place, in operations that a loop over it runs 8 at a time.

    0 below -87, where fp32 ends, and inf above 88; NaN stays NaN. Compiled without reassociation, which would
    take the rounding to a whole power of 2 apart.
    """
    y = min(max(x, np.float32(-87.3)), np.float32(88.7))
    # Adding 1.5 * 2^23 leaves the nearest whole number in the low bits.
    shifted = y * np.float32(1.44269504) + np.float32(12582912.0)
    power = np.float32(shifted).view(np.int32) - np.int32(0x4B400000)
    n = np.float32(power)
    r = (y - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    # Two factors: 2^128 alone is beyond fp32.
    half = power >> np.int32(1)
    low = np.int32((half + np.int32(127)) << np.int32(23)).view(np.float32)
    high = np.int32((power - half + np.int32(127)) << np.int32(23)).view(np.float32)
    result = p * low * high
    result = np.float32(0.0) if x < np.float32(-87.3) else result
    result = np.float32(np.inf) if x > np.float32(88.7) else result
    return result if x == x else x  # NaN is not equal to itself


@kernel(fastmath=frozenset({"contract"}), inline=True)
def tanh(x):
    """`tanh(x)` in fp32 to about 1e-7."""
    e = exp(np.float32(-2.0) * abs(x))
    t = (np.float32(1.0) - e) / (np.float32(1.0) + e)
    return t if x > np.float32(0.0) else -t


@kernel(inline=True)
def ask(array, row):
    """Start loading a row of an array, which will be read soon."""
    for offset in range(0, array.shape[1] * array.shape[2] * 4, 64):
        touch(array, row, offset)


@kernel(inline=True)
def logits(kind, number, first, count, last, source, a, b, v, value, shared, units, found):
    """The logits (count, H) of edges `first` and on, of the node with query a (H, W).

    `units` (BLOCK, H, W) keeps the tanh, which the backward pass needs again.
    """
    heads, width = a.shape
    for t in range(count):
        j, later = source[first + t], source[min(first + t + AHEAD, last)]
        ask(b, later)
        if not shared:
            ask(value, later)
        if kind == TANH:
            for h in range(heads):
                total = np.float32(0.0)
                for w in range(width):
                    y = tanh(a[h, w] + b[j, h, w])
                    units[t, h, w] = y
                    total += v[h, w] * y
                found[t, h] = total
        elif kind == LEAKY_RELU:
            if width == 1:
                for h in range(heads):
                    x = a[h, 0] + b[j, h, 0]
                    found[t, h] = v[h, 0] * (x if x > np.float32(0.0) else number * x)
            else:
                for h in range(heads):
                    total = np.float32(0.0)
                    for w in range(width):
                        x = a[h, w] + b[j, h, w]
                        total += v[h, w] * (x if x > np.float32(0.0) else number * x)
                    found[t, h] = total
        else:
            for h in range(heads):
                total = np.float32(0.0)
                for w in range(width):
                    total += a[h, w] * b[j, h, w]
                found[t, h] = total * number


@kernel
def forward(kind, number, low, high, starts, source, a, b, v, value, shared, output, lse):
    """Output and LSE of the targets from `low` to `high`."""
    heads, width, columns = a.shape[1], a.shape[2], value.shape[2]
    units = np.empty((BLOCK if kind == TANH else 1, heads, width), np.float32)
    s = np.empty((BLOCK, heads), np.float32)
    peak, base = np.empty(heads, np.float32), np.empty(heads, np.float32)
    total, part = np.empty(heads, np.float32), np.empty((heads, columns), np.float32)
    last = starts[high] - 1
    for i in range(low, high):
        peak[:] = np.float32(-np.inf)
        total[:] = np.float32(0.0)
        out = output[i]
        out[:] = np.float32(0.0)
        for first in range(starts[i], starts[i + 1], BLOCK):
            count = min(BLOCK, starts[i + 1] - first)
            logits(kind, number, first, count, last, source, a[i], b, v, value, shared, units, s)
            for h in range(heads):
                most = peak[h]
                for t in range(count):
                    most = s[t, h] if s[t, h] > most else most
                # Of -inf alone nothing is subtracted: -inf - -inf would be NaN.
                base[h] = most if most > np.float32(-np.inf) else np.float32(0.0)
                if most > peak[h] and first > starts[i]:
                    shrink = exp(peak[h] - base[h])
                    total[h] *= shrink
                    for c in range(columns):
                        out[h, c] *= shrink
                peak[h] = most
            for t in range(count):
                for h in range(heads):
                    s[t, h] = exp(s[t, h] - base[h])
            # Each block is summed by itself: one sum over all edges of a large node would lose digits.
            mine = out if first == starts[i] else part
            mine[:] = np.float32(0.0)
            for t in range(count):
                j = source[first + t]
                for h in range(heads):
                    p = s[t, h]
                    for c in range(columns):
                        mine[h, c] += p * value[j, h, c]
            for h in range(heads):
                fresh = np.float32(0.0)
                for t in range(count):
                    fresh += s[t, h]
                total[h] += fresh
            if first > starts[i]:
                for h in range(heads):
                    for c in range(columns):
                        out[h, c] += part[h, c]
        for h in range(heads):
            if total[h] == np.float32(0.0):
                lse[i, h] = np.float32(np.inf)
            else:
                lse[i, h] = peak[h] + np.float32(np.log(total[h]))
                inverse = np.float32(1.0) / total[h]
                for c in range(columns):
                    out[h, c] *= inverse


@kernel(inline=True)
def add(part, whole, factor):
    """Add `factor * part` to `whole` (H, width)."""
    for h in range(part.shape[0]):
        for w in range(part.shape[1]):
            whole[h, w] += factor[h, w] * part[h, w]


@kernel
def backward_targets(
    kind, number, low, high, starts, source, a, b, v, factor, value, shared, output, lse, grad,
    share, slope, da, dv,
):  # fmt: skip
    """Gradients of the queries from `low` to `high`, and what these nodes add to that of v.

    `share` and `slope` (E, H) keep the weight of each edge and the gradient of its logit for
    `backward_sources`. `factor` (H, W) multiplies the gradients: v, or the number of an inner score.
    """
    heads, width, columns = a.shape[1], a.shape[2], value.shape[2]
    units = np.empty((BLOCK if kind == TANH else 1, heads, width), np.float32)
    s = np.empty((BLOCK, heads), np.float32)
    mean, one = np.empty(heads, np.float32), np.ones((heads, width), np.float32)
    query, vector = np.empty((heads, width), np.float32), np.empty((heads, width), np.float32)
    last = starts[high] - 1
    for i in range(low, high):
        if starts[i + 1] > starts[i]:
            for h in range(heads):
                part = np.float32(0.0)
                for c in range(columns):
                    part += grad[i, h, c] * output[i, h, c]
                mean[h] = part
        da[i, :, :] = np.float32(0.0)
        for first in range(starts[i], starts[i + 1], BLOCK):
            count = min(BLOCK, starts[i + 1] - first)
            logits(kind, number, first, count, last, source, a[i], b, v, value, shared, units, s)
            query[:] = np.float32(0.0)
            vector[:] = np.float32(0.0)
            for t in range(count):
                j = source[first + t]
                for h in range(heads):
                    part = np.float32(0.0)
                    for c in range(columns):
                        part += grad[i, h, c] * value[j, h, c]
                    slope[first + t, h] = part
                for h in range(heads):
                    p = exp(s[t, h] - lse[i, h])
                    share[first + t, h] = p
                    slope[first + t, h] = p * (slope[first + t, h] - mean[h])
                for h in range(heads):
                    g = slope[first + t, h]
                    if kind == TANH:
                        for w in range(width):
                            y = units[t, h, w]
                            query[h, w] += g * (np.float32(1.0) - y * y)
                            vector[h, w] += g * y
                    elif kind == LEAKY_RELU:
                        for w in range(width):
                            x = a[i, h, w] + b[j, h, w]
                            r = g if x > np.float32(0.0) else g * number
                            query[h, w] += r
                            vector[h, w] += r * x
                    else:
                        for w in range(width):
                            query[h, w] += g * b[j, h, w]
            add(query, da[i], factor)
            if kind != INNER:
                add(vector, dv, one)


@kernel
def backward_sources(
    kind, number, low, high, starts, target, edge, a, b, factor, grad, share, slope, db, dvalue, shared
):  # fmt: skip
    """Gradients of the keys and values from `low` to `high`; `shared` if the value is the key."""
    heads, width, columns = b.shape[1], b.shape[2], grad.shape[2]
    one = np.ones((heads, columns), np.float32)
    key, values = np.empty((heads, width), np.float32), np.empty((heads, columns), np.float32)
    last = starts[high] - 1
    for j in range(low, high):
        db[j, :, :] = np.float32(0.0)
        if not shared:
            dvalue[j, :, :] = np.float32(0.0)
        for first in range(starts[j], starts[j + 1], BLOCK):
            key[:] = np.float32(0.0)
            values[:] = np.float32(0.0)
            for f in range(first, min(first + BLOCK, starts[j + 1])):
                i, e = target[f], edge[f]
                n = min(f + AHEAD, last)
                ask(a, target[n])
                ask(grad, target[n])
                touch(share, edge[n], 0)
                touch(slope, edge[n], 0)
                for h in range(heads):
                    g, p = slope[e, h], share[e, h]
                    if kind == TANH:
                        for w in range(width):
                            y = tanh(a[i, h, w] + b[j, h, w])
                            key[h, w] += g * (np.float32(1.0) - y * y)
                    elif kind == LEAKY_RELU:
                        for w in range(width):
                            x = a[i, h, w] + b[j, h, w]
                            key[h, w] += g if x > np.float32(0.0) else g * number
                    else:
                        for w in range(width):
                            key[h, w] += g * a[i, h, w]
                    for c in range(columns):
                        values[h, c] += p * grad[i, h, c]
            add(key, db[j], factor)
            add(values, db[j] if shared else dvalue[j], one)


@kernel(inline=True)
def begin(count, starts):
    """Turn counts of keys, one place further on, into where each key begins; `starts` is a copy."""
    for n in range(1, count.shape[0]):
        count[n] += count[n - 1]
    for n in range(starts.shape[0]):
        starts[n] = count[n]


@kernel
def sort_edges(
    edge_index, loops, hide, into_starts, into_other, into_edge, out_starts, out_other, out_edge
):
    """Sort edges by target and by source, by counting; `hide` puts self-loops that are given last."""
    targets, sources = into_starts.shape[0] - 1, out_starts.shape[0] - 1
    given, ends = edge_index.shape[1], np.empty_like(into_edge)
    count = np.zeros(targets + 2, into_starts.dtype)
    for e in range(given):
        hidden = hide and edge_index[0, e] == edge_index[1, e]
        count[(targets if hidden else edge_index[1, e]) + 1] += 1
    for n in range(loops):
        count[n + 1] += 1
    begin(count, into_starts)
    for e in range(given + loops):
        source = edge_index[0, e] if e < given else e - given
        target = edge_index[1, e] if e < given else e - given
        key = targets if hide and e < given and source == target else target
        place = count[key]
        count[key] += 1
        into_other[place] = source
        into_edge[place] = e
        ends[place] = key
    count = np.zeros(sources + 2, into_starts.dtype)
    for p in range(given + loops):
        count[(sources if ends[p] == targets else into_other[p]) + 1] += 1
    begin(count, out_starts)
    for p in range(given + loops):
        key = sources if ends[p] == targets else into_other[p]
        place = count[key]
        count[key] += 1
        # A hidden edge is a self-loop.
        out_other[place] = into_other[p] if ends[p] == targets else ends[p]
        out_edge[place] = p
