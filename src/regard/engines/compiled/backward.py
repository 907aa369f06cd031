"""Backward pass: every tile is computed again, and its gradient given to both sides, v and the values.

The gradients of keys, v and values of a chunk of queries go to a part of their own; parts are added in order
afterwards, so that the bits do not depend on which thread ran first.
"""

# ruff: noqa: E741, I001 - L is the key length throughout; imports of many constants stay on few lines

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from regard.engines.compiled.inputs import (
    A, B, BIAS, BY_EXPONENTIALS, BY_TANH, RATE, TILE_QUERIES, V, VALUE,
)  # fmt: skip
from regard.engines.compiled.numbers import (
    HALF,
    INF,
    ONE,
    TWO,
    ZERO,
    exponential,
    is_kept,
    row_hashes,
    tanh,
)
from regard.engines.compiled.products import add_product, add_seen_gradients
from regard.engines.compiled.tiles import CUT, finish_tile, row_of, score_tile, span
from regard.engines.native import kernel

FOUR = np.float32(4)


class RowInputs(NamedTuple):
    """What the backward is given for each query; arrays without rows were not asked for."""

    grad: np.ndarray  # (heads, Q, value dim)
    output: np.ndarray
    peak: np.ndarray  # (heads, Q)
    tail: np.ndarray  # fp64
    grad_tail: np.ndarray  # fp64
    entropy: np.ndarray
    grad_entropy: np.ndarray


class Gradients(NamedTuple):
    """Where the gradients go; those with parts are added up afterwards."""

    a: np.ndarray  # (heads, Q, E)
    b: np.ndarray  # (parts, E, L)
    v: np.ndarray  # fp64 (parts, E): a sum over all pairs, of numbers that nearly cancel
    value: np.ndarray  # (parts, D, L)
    rate: np.ndarray  # (heads, Q), or empty
    bias: np.ndarray  # (slices of the bias, chunks or 1, Q or 1, L or 1), or empty


@kernel(inline=True)
def units_by_exponentials(e, b, v, slope, rows, start, n, grad_e, grad_b, grad_v):
    """Give score gradients to both sides and v: with h = 1 / (1 + e b) - 1/2, tanh is -2h, its slope 1 - 4h^2.

    Two queries at a time, so that the gradient of the keys is loaded and stored half as often. An odd row is
    paired with the next one of the tile, whose slope is 0.
    """
    for u in range(len(v)):
        keys, out = b[u, start : start + n], grad_b[u, start : start + n]
        for q in range(0, rows, 2):
            other = min(q + 1, rows - 1)
            e0, e1, s0, s1 = e[q, u], e[other, u], slope[q], slope[q + 1]
            g0 = g1 = total = ZERO
            for l in range(n):
                x0, x1 = e0 * keys[l], e1 * keys[l]
                h0 = ONE / (ONE + (CUT if x0 > CUT else x0)) - HALF
                h1 = ONE / (ONE + (CUT if x1 > CUT else x1)) - HALF
                w0, w1 = s0[l] * h0, s1[l] * h1
                d0, d1 = s0[l] - FOUR * (w0 * h0), s1[l] - FOUR * (w1 * h1)
                g0 += d0
                g1 += d1
                total += w0 + w1
                out[l] += v[u] * (d0 + d1)
            grad_e[q, u] += v[u] * g0
            if other > q:
                grad_e[other, u] += v[u] * g1
            grad_v[u] -= np.float64(TWO * total)


@kernel(inline=True)
def units_by_value(x, a, b, v, slope, rows, start, n, grad_a, grad_b, grad_v):
    """The same for tanh of large sides and for LeakyReLU, from a + b itself."""
    for u in range(len(v)):
        keys, out = b[u, start : start + n], grad_b[u, start : start + n]
        for q in range(rows):
            own, s, total, of_v = a[q, u], slope[q], ZERO, ZERO
            if x.kind == BY_TANH:
                for l in range(n):
                    y = tanh(own + keys[l])
                    of_v += s[l] * y
                    g = s[l] * (ONE - y * y)
                    total += g
                    out[l] += v[u] * g
            else:
                for l in range(n):
                    y = own + keys[l]
                    g = s[l] if y > ZERO else s[l] * x.parameter
                    of_v += g * y
                    total += g
                    out[l] += v[u] * g
            grad_a[q, u] += v[u] * total
            grad_v[u] += np.float64(of_v)


@kernel(inline=True)
def units_of_seen(x, a, b, v, slope, rows, start, n, grad_a, grad_b, grad_v):
    """The same pair by pair, without those of slope 0: a hidden side may hold NaN."""
    for q in range(rows):
        for l in range(n):
            s = slope[q, l]
            if s != ZERO:
                for u in range(len(v)):
                    y = a[q, u] + b[u, start + l]
                    if x.kind == BY_TANH:
                        y = tanh(y)
                        g = s * (ONE - y * y)
                        grad_v[u] += np.float64(s * y)
                    else:
                        g = s if y > ZERO else s * x.parameter
                        grad_v[u] += np.float64(g * y)
                    grad_a[q, u] += v[u] * g
                    grad_b[u, start + l] += v[u] * g


@kernel(inline=True)
def give_to_units(x, place, slope, first, rows, start, n, grad_a, grad_b, grad_v):
    """Give the gradient of a tile's raw scores to a, b and v."""
    a, b, v = x.a[place[A]][first : first + rows], x.b[place[B]], x.v[place[V]]
    own = grad_a[first : first + rows]
    if x.kind == BY_EXPONENTIALS:
        if rows < TILE_QUERIES:
            slope[rows, :n] = ZERO
        units_by_exponentials(a, b, v, slope, rows, start, n, own, grad_b, grad_v)
    elif x.careful:
        units_of_seen(x, a, b, v, slope, rows, start, n, own, grad_b, grad_v)
    else:
        units_by_value(x, a, b, v, slope, rows, start, n, own, grad_b, grad_v)


@kernel(inline=True)
def weigh(x, logits, base, factor, number, start, weights, slope, shift):
    """Weights of a row, with dropout in `weights`; in `slope` the gradient of its logits but for entropy."""
    first, second = row_hashes(x.seed, number)
    for l in range(len(logits)):
        w = ZERO if logits[l] == -INF else exponential(logits[l] - base) * factor
        if x.threshold > 0:
            keep = x.scale if is_kept(first, second, start + l, x.threshold) else ZERO
            weights[l] = w * keep
            slope[l] = w * (slope[l] * keep + shift)
        else:
            weights[l] = w
            slope[l] = w * (slope[l] + shift)
        slope[l] = ZERO if logits[l] == -INF else slope[l]


@kernel(inline=True)
def add_entropy_slope(logits, base, tail, entropy, grad, slope):
    """Add the gradient that a row's logits get from its entropy: -p (log p + entropy)."""
    for l in range(len(logits)):
        log_weight = (logits[l] - base) - tail
        w = ZERO if logits[l] == -INF else exponential(min(log_weight, ZERO))
        slope[l] -= ZERO if w == ZERO else grad * w * (log_weight + entropy)


@kernel(inline=True)
def to_raw_scores(x, place, number, first, q, raw, slope, grads):
    """From the gradient of a row's capped logits to that of its raw scores; adds the gradient of its rate."""
    at = first + q
    rate = row_of(x.rate, place[RATE], at) if len(x.rate) else ONE
    total = ZERO
    for l in range(len(slope)):
        if slope[l] != ZERO:  # a hidden score may be NaN
            if x.softcap > ZERO:
                y = tanh(raw[l] * rate / x.softcap)
                slope[l] *= ONE - y * y
            total += slope[l] * raw[l]
            slope[l] *= rate
    if len(grads.rate):
        grads.rate[number, at] += total


@kernel(inline=True)
def add_bias_gradient(place, chunk, at, start, slope, out):
    """Add the gradient of a row's logits to that of the bias, summed where it broadcasts."""
    own = out[place[BIAS], chunk if out.shape[1] > 1 else 0, at if out.shape[2] > 1 else 0]
    if len(own) > 1:
        for l in range(len(slope)):
            own[start + l] += slope[l]
    else:
        total = ZERO
        for l in range(len(slope)):
            total += slope[l]
        own[0] += total


@kernel(inline=True)
def load_rows(rows_in, number, first, rows, grad, turned, shift):
    """Incoming gradients of a block of queries, padded with zeros, and what its row adds to each slope."""
    grad[:], turned[:] = ZERO, ZERO
    for q in range(rows):
        at = first + q
        shift[q] = ZERO
        # A query that sees nothing has a gradient of 0, whatever comes in.
        if rows_in.peak[number, at] == -INF:
            continue
        total = ZERO
        for d in range(rows_in.grad.shape[2]):
            g = rows_in.grad[number, at, d]
            grad[q, d] = turned[d, q] = g
            total -= g * rows_in.output[number, at, d]
        if len(rows_in.grad_tail):
            total += np.float32(rows_in.grad_tail[number, at])
        shift[q] = total


@kernel(inline=True)
def slopes_of_tile(
    x, r, place, number, chunk, first, q, start, logits, raw, weights, slope, shift, grads
):
    """One row of a tile: its weights, and the gradient of its raw scores in `slope`."""
    at = first + q
    peak, tail = r.peak[number, at], r.tail[number, at]
    base = ZERO if peak == -INF else peak
    factor = np.float32(math.exp(-tail))
    weigh(x, logits, base, factor, number * x.queries + at, start, weights, slope, shift)
    if len(r.grad_entropy) and peak != -INF:
        spread, grad = r.entropy[number, at], r.grad_entropy[number, at]
        add_entropy_slope(logits, base, np.float32(tail), spread, grad, slope)
    if len(grads.bias):
        add_bias_gradient(place, chunk, at, start, slope, grads.bias)
    if x.softcap > ZERO or len(x.rate):
        to_raw_scores(x, place, number, first, q, raw, slope, grads)


@kernel(inline=True)
def backward_block(x, r, grads, number, chunk, part, first, rows, buffers):
    """Gradients of one block of queries of a head, whose tiles are computed again."""
    tile, raw, weights, slope, grad, turned, shift = buffers
    place, value = x.places[number], x.value[x.places[number, VALUE]]
    padded = rows + -rows % 8  # products take 8 rows at a time
    load_rows(r, number, first, rows, grad, turned, shift)
    low, high = span(x, place, first, rows)
    for start in range(low, high, x.width):
        n = min(x.width, x.keys - start)
        score_tile(x, place, first, rows, start, n, tile)
        if x.softcap > ZERO or len(x.rate) > 0:
            raw[:rows, :n] = tile[:rows, :n]
        finish_tile(x, place, first, rows, start, n, tile)
        slope[:rows, :n] = ZERO
        add_product(grad, value, start, slope, 0, rows, value.shape[0], n)
        for q in range(rows):
            slopes_of_tile(
                x, r, place, number, chunk, first, q, start,
                tile[q, :n], raw[q, :n], weights[q, :n], slope[q, :n], shift[q], grads,
            )  # fmt: skip
        weights[rows:padded] = ZERO
        of_value = grads.value[part]
        if x.careful:
            add_seen_gradients(weights, tile, grad, start, n, rows, of_value)
        else:
            add_product(turned, weights, 0, of_value, start, value.shape[0], padded, n)
        give_to_units(
            x, place, slope, first, rows, start, n, grads.a[number], grads.b[part], grads.v[part]
        )


@kernel
def backward_heads(x, r, grads, heads, chunk, chunks, begin, end):
    """Gradients of the queries [begin, end), which are chunk `chunk` of `chunks`, of some heads."""
    shape = (TILE_QUERIES, x.width)
    buffers = (
        np.zeros(shape, np.float32), np.zeros(shape, np.float32),
        np.zeros(shape, np.float32), np.zeros(shape, np.float32),
        np.zeros((TILE_QUERIES, x.value.shape[1]), np.float32),
        np.zeros((x.value.shape[1], TILE_QUERIES), np.float32),
        np.zeros(TILE_QUERIES, np.float32),
    )  # fmt: skip
    for number in heads:
        part = number * chunks + chunk
        for first in range(begin, end, TILE_QUERIES):
            rows = min(TILE_QUERIES, end - first)
            backward_block(x, r, grads, number, chunk, part, first, rows, buffers)
