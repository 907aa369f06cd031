"""One tile of logits: raw scores, then temperature, soft cap, bias and mask.

A hidden pair has the logit -inf from here on. A visible one of -inf has weight 0 just the same.

Shape legend: a tile is [TILE_QUERIES, width], of which `rows` x `n` are used; `q` and `l` count in it,
`first` and `start` say where it lies. `place` is a row of `TileInputs.places`.
"""

# ruff: noqa: E741, I001 - L is the key length throughout; imports of many constants stay on few lines

from __future__ import annotations

import numpy as np

from regard.engines.compiled.inputs import (
    A, B, BIAS, BY_EXPONENTIALS, BY_TANH, DENSE, OTHER, OWN, RATE, START, STOP, V,
)  # fmt: skip
from regard.engines.compiled.numbers import INF, ONE, TWO, ZERO, bits_of, float_of, tanh
from regard.engines.native import kernel

# e^2(a + b) is cut here, where tanh has long been 1 in fp32: the product of four such sums is below the
# largest fp32 number, so that four units can share one division.
CUT = np.float32(2e9)
# Units whose keys (32 KiB) stay in a core's first cache while all queries of a tile read them.
UNITS = 16


@kernel(inline=True)
def four_by_exponentials(e, b, v, u, start, n, out):
    """Add four units by exponentials: v (1 - 2 / (1 + e b)) each, all four with one division."""
    e0, e1, e2, e3 = e[u], e[u + 1], e[u + 2], e[u + 3]
    v0, v1, v2, v3 = -TWO * v[u], -TWO * v[u + 1], -TWO * v[u + 2], -TWO * v[u + 3]
    # Added to each group of four and not once at the end: the sum of all v would round away digits.
    constant = (v[u] + v[u + 1]) + (v[u + 2] + v[u + 3])
    b0, b1 = b[u, start : start + n], b[u + 1, start : start + n]
    b2, b3 = b[u + 2, start : start + n], b[u + 3, start : start + n]
    for l in range(n):
        x0, x1, x2, x3 = e0 * b0[l], e1 * b1[l], e2 * b2[l], e3 * b3[l]
        x0 = ONE + (CUT if x0 > CUT else x0)
        x1 = ONE + (CUT if x1 > CUT else x1)
        x2 = ONE + (CUT if x2 > CUT else x2)
        x3 = ONE + (CUT if x3 > CUT else x3)
        left, right = x0 * x1, x2 * x3
        top = (v0 * x1 + v1 * x0) * right + (v2 * x3 + v3 * x2) * left
        out[l] += top / (left * right) + constant


@kernel(inline=True)
def one_by_exponentials(e, b, v, out):
    """Add one unit by exponentials."""
    for l in range(len(out)):
        x = e * b[l]
        out[l] += v - TWO * v / (ONE + (CUT if x > CUT else x))


@kernel(inline=True)
def one_by_tanh(a, b, v, out):
    """Add one unit by tanh, for sides whose exponentials would leave the range of fp32."""
    for l in range(len(out)):
        out[l] += v * tanh(a + b[l])


@kernel(inline=True)
def one_by_slope(a, b, v, slope, out):
    """Add one unit of LeakyReLU."""
    for l in range(len(out)):
        x = a + b[l]
        out[l] += v * (x if x > ZERO else slope * x)


@kernel(inline=True)
def score_tile(x, place, first, rows, start, n, tile):
    """Raw scores of a tile."""
    a, b, v = x.a[place[A]], x.b[place[B]], x.v[place[V]]
    units = len(v)
    for q in range(rows):
        for l in range(n):
            tile[q, l] = ZERO
    for block in range(0, units, UNITS):
        end = min(block + UNITS, units)
        for q in range(rows):
            own, out = a[first + q], tile[q, :n]
            u = block
            if x.kind == BY_EXPONENTIALS:
                while u + 4 <= end:
                    four_by_exponentials(own, b, v, u, start, n, out)
                    u += 4
            while u < end:
                keys = b[u, start : start + n]
                if x.kind == BY_EXPONENTIALS:
                    one_by_exponentials(own[u], keys, v[u], out)
                elif x.kind == BY_TANH:
                    one_by_tanh(own[u], keys, v[u], out)
                else:
                    one_by_slope(own[u], keys, v[u], x.parameter, out)
                u += 1


@kernel(inline=True)
def row_of(array, place, q):
    """The number of a query in (N, Q or 1)."""
    return array[place, q if array.shape[1] > 1 else 0]


@kernel(inline=True)
def span(x, place, first, rows):
    """The first key and the end of the keys that any query of a block may see."""
    begin, end = x.keys, 0
    for q in range(first, first + rows):
        begin = min(begin, max(row_of(x.start, place[START], q), 0) if len(x.start) else 0)
        end = max(end, min(row_of(x.stop, place[STOP], q), x.keys) if len(x.stop) else x.keys)
    return begin // x.width * x.width, end


@kernel(inline=True)
def hide(x, place, at, start, out):
    """Set the logits of the keys that query `at` does not see to -inf."""
    n = len(out)
    if len(x.start):
        for l in range(min(max(row_of(x.start, place[START], at) - start, 0), n)):
            out[l] = -INF
    if len(x.stop):
        for l in range(min(max(row_of(x.stop, place[STOP], at) - start, 0), n), n):
            out[l] = -INF
    if len(x.own):
        segment, others = row_of(x.own, place[OWN], at), x.other[place[OTHER]]
        for l in range(n):
            other = others[start + l if len(others) > 1 else 0]
            if segment < 0 or segment != other:
                out[l] = -INF
    if len(x.dense):
        seen = x.dense[place[DENSE], at if x.dense.shape[1] > 1 else 0]
        for l in range(n):
            if not seen[start + l if len(seen) > 1 else 0]:
                out[l] = -INF


@kernel(inline=True)
def finish_tile(x, place, first, rows, start, n, tile):
    """Final logits from raw scores: temperature, soft cap, bias, mask."""
    for q in range(rows):
        at, out = first + q, tile[q, :n]
        if len(x.rate):
            rate = row_of(x.rate, place[RATE], at)
            for l in range(n):
                out[l] *= rate
        if x.softcap > ZERO:
            for l in range(n):
                out[l] = x.softcap * tanh(out[l] / x.softcap)
        if len(x.bias):
            bias = x.bias[place[BIAS], at if x.bias.shape[1] > 1 else 0]
            for l in range(n):
                more = bias[start + l if len(bias) > 1 else 0]
                out[l] = -INF if more == -INF else out[l] + more
        hide(x, place, at, start, out)


@kernel(inline=True)
def peak_of(row):
    """The largest number of a row; NaN is returned or left out, and shows in the sum of exponentials.

    Compared as integers in the same order: LLVM makes no vectors of a maximum that may meet NaN.
    """
    peak = np.int32(-(2**31))
    for l in range(len(row)):
        bits = bits_of(row[l])
        ordered = np.int32(bits ^ np.int32(np.int32(bits >> 31) & np.int32(0x7FFFFFFF)))
        peak = ordered if ordered > peak else peak
    back = np.int32(peak ^ np.int32(np.int32(peak >> 31) & np.int32(0x7FFFFFFF)))
    return float_of(back) if len(row) else -INF
