"""Passes beside softmax and its gradient: hard look-up, Jacobian, raw scores and their gradient."""

# ruff: noqa: E741 - L is the key length throughout; imports of many constants stay on few lines

from __future__ import annotations

import math

import numpy as np

from regard.engines.compiled.backward import give_to_units
from regard.engines.compiled.inputs import TILE_QUERIES
from regard.engines.compiled.numbers import INF, ZERO, exponential
from regard.engines.compiled.tiles import finish_tile, score_tile, span
from regard.engines.native import kernel


@kernel
def best_heads(x, heads, begin, end, hard, best):
    """The index of the best visible key of each hard query: -1 for none, -2 for NaN."""
    tile = np.zeros((TILE_QUERIES, x.width), np.float32)
    top = np.zeros(TILE_QUERIES, np.float32)
    for number in heads:
        place = x.places[number]
        for first in range(begin, end, TILE_QUERIES):
            rows = min(TILE_QUERIES, end - first)
            top[:] = -INF
            low, high = span(x, place, first, rows)
            for start in range(low, high, x.width):
                n = min(x.width, x.keys - start)
                score_tile(x, place, first, rows, start, n, tile)
                finish_tile(x, place, first, rows, start, n, tile)
                for q in range(rows):
                    if hard[number, first + q]:
                        for l in range(n):
                            logit = tile[q, l]
                            if logit != logit:
                                best[number, first + q], top[q] = -2, INF
                            elif logit > top[q]:
                                best[number, first + q], top[q] = start + l, logit


@kernel
def jacobian_heads(x, heads, begin, end, peak, tail, share, sums):
    """For each query the sums over all weights but the largest: of them, their squares and their cubes."""
    tile = np.zeros((TILE_QUERIES, x.width), np.float32)
    taken = np.zeros(TILE_QUERIES, np.bool_)
    for number in heads:
        place = x.places[number]
        for first in range(begin, end, TILE_QUERIES):
            rows = min(TILE_QUERIES, end - first)
            taken[:] = False
            low, high = span(x, place, first, rows)
            for start in range(low, high, x.width):
                n = min(x.width, x.keys - start)
                score_tile(x, place, first, rows, start, n, tile)
                finish_tile(x, place, first, rows, start, n, tile)
                for q in range(rows):
                    at = first + q
                    top = peak[number, at]
                    factor = np.float32(math.exp(-np.float64(tail[number, at]))) * share[number, at]
                    for l in range(n):
                        logit = tile[q, l]
                        if logit == -INF:
                            continue
                        if logit == top and not taken[q]:
                            taken[q] = True
                            continue
                        w = exponential(min(logit - top, ZERO)) * factor
                        sums[number, at, 0] += w
                        sums[number, at, 1] += w * w
                        sums[number, at, 2] += w * w * w


@kernel
def score_heads(x, heads, begin, end, scores):
    """Raw scores of the queries [begin, end)."""
    tile = np.zeros((TILE_QUERIES, x.width), np.float32)
    for number in heads:
        place = x.places[number]
        for first in range(begin, end, TILE_QUERIES):
            rows = min(TILE_QUERIES, end - first)
            for start in range(0, x.keys, x.width):
                n = min(x.width, x.keys - start)
                score_tile(x, place, first, rows, start, n, tile)
                for q in range(rows):
                    scores[number, first + q, start : start + n] = tile[q, :n]


@kernel
def score_backward_heads(x, heads, chunk, chunks, begin, end, grad, grad_a, grad_b, grad_v):
    """Gradients of a, b and v from those of raw scores; hidden pairs give none."""
    tile = np.zeros((TILE_QUERIES, x.width), np.float32)
    for number in heads:
        place, part = x.places[number], number * chunks + chunk
        for first in range(begin, end, TILE_QUERIES):
            rows = min(TILE_QUERIES, end - first)
            for start in range(0, x.keys, x.width):
                n = min(x.width, x.keys - start)
                tile[:rows, :n] = ZERO
                finish_tile(x, place, first, rows, start, n, tile)
                for q in range(rows):
                    for l in range(n):
                        seen = tile[q, l] != -INF
                        tile[q, l] = grad[number, first + q, start + l] if seen else ZERO
                give_to_units(
                    x,
                    place,
                    tile,
                    first,
                    rows,
                    start,
                    n,
                    grad_a[number],
                    grad_b[part],
                    grad_v[part],
                )
