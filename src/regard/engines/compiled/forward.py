"""Forward pass over blocks of queries, by online softmax over tiles of keys."""

# ruff: noqa: E741 - L is the key length throughout; imports of many constants stay on few lines

from __future__ import annotations

import math

import numpy as np

from regard.engines.compiled.inputs import TILE_QUERIES, VALUE
from regard.engines.compiled.numbers import INF, ONE, ZERO, exponential, is_kept, row_hashes
from regard.engines.compiled.products import add_seen_values, add_weighted_values
from regard.engines.compiled.tiles import finish_tile, peak_of, score_tile, span
from regard.engines.native import kernel


@kernel(inline=True)
def exponentials(logits, base, out):
    """Write exp(logit - base), 0 where hidden, and return the sum."""
    total = ZERO
    for l in range(len(logits)):
        e = ZERO if logits[l] == -INF else exponential(logits[l] - base)
        out[l] = e
        total += e
    return total


@kernel(inline=True)
def sum_without_first(logits, exps, peak):
    """The sum of exponentials without that of the first logit that equals `peak`."""
    at = -1
    for l in range(len(logits)):
        if logits[l] == peak:
            at = l
            break
    left = exps[at]
    exps[at] = ZERO
    total = ZERO
    for l in range(len(exps)):
        total += exps[l]
    exps[at] = left
    return total


@kernel(inline=True)
def moment_of(logits, exps, base):
    """The sum of (logit - base) exp(logit - base)."""
    total = ZERO
    for l in range(len(logits)):
        total += ZERO if logits[l] == -INF else (logits[l] - base) * exps[l]
    return total


@kernel(inline=True)
def drop(x, row, start, exps):
    """Apply dropout to a row of a tile; `row` numbers the rows of a call."""
    first, second = row_hashes(x.seed, row)
    for l in range(len(exps)):
        exps[l] = exps[l] * x.scale if is_kept(first, second, start + l, x.threshold) else ZERO


@kernel(inline=True)
def soften(x, number, logits, weights, sums, state, entropy, start):
    """One row of one tile of the online softmax; `state` is (top, total, rest, moment) of the row.

    `rest` is the sum without the largest term, which is exactly 1: a saturated row keeps the digits of the
    others. The moment is taken about the largest logit, and shifts when that rises.
    """
    top, peak = state[0], peak_of(logits)
    raised = peak if peak > top or top == -INF else top
    base = ZERO if raised == -INF else raised
    shrink = ZERO if top == -INF else exponential(top - base)
    total = exponentials(logits, base, weights)
    if entropy:
        state[2] *= shrink
        if peak > top:
            state[2] += sum_without_first(logits, weights, peak) + shrink
        else:
            state[2] += total
        lift = ZERO if top == -INF else top - base
        state[3] = shrink * (state[3] + lift * state[1]) + moment_of(logits, weights, base)
    state[1] = state[1] * shrink + total
    # NaN anywhere in the row is in the sum of the exponentials, but maybe not in the maximum.
    state[0] = raised if total == total else total
    if x.threshold > 0:
        drop(x, number, start, weights)
    if shrink != ONE:
        for d in range(len(sums)):
            sums[d] *= shrink


@kernel(inline=True)
def forward_rows(
    x, number, begin, end, entropy, out, tail, spread, top, tile, weights, sums, state
):
    """The same of one head, with buffers for a tile and for its rows."""
    place, value = x.places[number], x.value[x.places[number, VALUE]]
    for first in range(begin, end, TILE_QUERIES):
        rows = min(TILE_QUERIES, end - first)
        sums[:], state[:], state[:, 0] = ZERO, ZERO, -INF
        low, high = span(x, place, first, rows)
        for start in range(low, high, x.width):
            n = min(x.width, x.keys - start)
            score_tile(x, place, first, rows, start, n, tile)
            finish_tile(x, place, first, rows, start, n, tile)
            for q in range(rows):
                row = number * x.queries + first + q
                soften(x, row, tile[q, :n], weights[q, :n], sums[q], state[q], entropy, start)
            if x.careful:
                add_seen_values(weights, tile, value, start, n, rows, sums)
            else:
                add_weighted_values(weights, value, start, n, rows, sums)
        for q in range(rows):
            total = ONE if state[q, 1] == ZERO else state[q, 1]
            for d in range(out.shape[2]):
                out[number, first + q, d] = sums[q, d] / total
            rest = np.float64(state[q, 2])
            tail[number, first + q] = math.log1p(rest) if entropy else math.log(np.float64(total))
            spread[number, first + q] = tail[number, first + q] - state[q, 3] / total
            top[number, first + q] = state[q, 0]


@kernel
def forward_heads(x, heads, begin, end, entropy, out, tail, spread, top):
    """Output, tail, entropy and largest logit of the queries [begin, end) of some heads."""
    tile = np.zeros((TILE_QUERIES, x.width), np.float32)
    weights = np.zeros((TILE_QUERIES, x.width), np.float32)
    sums = np.zeros((TILE_QUERIES, x.value.shape[1]), np.float32)
    state = np.zeros((TILE_QUERIES, 4), np.float32)
    for number in heads:
        forward_rows(
            x, number, begin, end, entropy, out, tail, spread, top, tile, weights, sums, state
        )
