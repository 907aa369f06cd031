"""The masks and options of the contract's cases.

Masks are described by their parts. So the oracle can compute which keys a query sees from the
definition, without `regard.Mask`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.testing.cases import CaseSizes
from regard.testing.oracle import Band, MaskParts


def _ids(starts: tuple[int, ...], length: int) -> list[int]:
    """Segment ids 0, 1, ... that change at the given positions."""
    return [sum(position >= start for start in starts) for position in range(length)]


def _segments(s: CaseSizes, padded: bool = False) -> tuple[list[list[int]], list[list[int]]]:
    """Ids of queries and keys, different for each sequence; padding is -1 at the end."""
    queries = [_ids((s.queries // 2 - b % 2,), s.queries) for b in range(s.batch)]
    keys = [_ids((s.keys // 3 + b, s.keys - 1), s.keys) for b in range(s.batch)]
    if padded:
        queries, keys = ([[*row[:-1], -1] for row in side] for side in (queries, keys))
    return queries, keys


def _coins(s: CaseSizes, *shape: int, share: float = 0.6) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(repr((s, shape, share)).encode()))
    return torch.rand(shape, generator=generator) < share


def _ragged(length: int, batch: int, least: int = 1) -> list[int]:
    """A length for each sequence: `least` for the first, all of it for the others."""
    return [min(least + b * length, length) for b in range(batch)]


def _empty_rows(s: CaseSizes) -> Tensor:
    allowed = _coins(s, s.batch, s.heads, s.queries, s.keys)
    allowed[0, 0] = False
    allowed[:, :, -1] = False
    return allowed


def _late(s: CaseSizes) -> Tensor:
    """The last keys alone, so that an online softmax begins with blocks that are hidden altogether."""
    return (torch.arange(s.keys) >= s.keys - 1 - s.keys // 16).expand(s.queries, s.keys)


CAUSAL: Band = (None, 0, "bottom_right")
TOP_LEFT: Band = (None, 0, "top_left")
MASKS: dict[str, Callable[[CaseSizes], MaskParts | None]] = {
    "none": lambda s: None,
    "causal": lambda s: MaskParts(bands=[CAUSAL]),
    "causal top left": lambda s: MaskParts(bands=[TOP_LEFT]),
    "lengths": lambda s: MaskParts(_ragged(s.keys, s.batch), _ragged(s.queries, s.batch)),
    "lengths from 0": lambda s: MaskParts(
        _ragged(s.keys, s.batch, 0), _ragged(s.queries, s.batch, 0)
    ),
    "key lengths": lambda s: MaskParts(_ragged(s.keys, s.batch, s.keys // 2)),
    "key lengths from 0": lambda s: MaskParts(_ragged(s.keys, s.batch, 0)),
    "window": lambda s: MaskParts(bands=[(2, 1, "bottom_right")]),
    "window top left": lambda s: MaskParts(bands=[(1, None, "top_left")]),
    "segments": lambda s: MaskParts(segments=[_segments(s)]),
    "segments padded": lambda s: MaskParts(segments=[_segments(s, padded=True)]),
    "dense": lambda s: MaskParts(dense=[_coins(s, s.queries, s.keys)]),
    "dense heads": lambda s: MaskParts(dense=[_coins(s, s.batch, s.heads, s.queries, s.keys)]),
    "dense keys": lambda s: MaskParts(dense=[_coins(s, s.batch, 1, 1, s.keys)]),
    "dense empty rows": lambda s: MaskParts(dense=[_empty_rows(s)]),
    "first blocks hidden": lambda s: MaskParts(dense=[_late(s)]),
    "everything hidden": lambda s: MaskParts(dense=[torch.zeros(1, s.keys, dtype=torch.bool)]),
    "causal & lengths": lambda s: MaskParts(
        _ragged(s.keys, s.batch, s.keys // 2), _ragged(s.queries, s.batch), bands=[CAUSAL]
    ),
    "causal top left & key lengths": lambda s: MaskParts(
        _ragged(s.keys, s.batch, 2), bands=[TOP_LEFT]
    ),
    "causal & window & dense": lambda s: MaskParts(
        bands=[CAUSAL, (3, None, "bottom_right")], dense=[_coins(s, 1, s.heads, 1, s.keys)]
    ),
    "segments & causal": lambda s: MaskParts(bands=[CAUSAL], segments=[_segments(s)]),
    "segments & segments & lengths": lambda s: MaskParts(
        _ragged(s.keys, s.batch, s.keys // 2),
        segments=[_segments(s), _segments(s, padded=True)],
    ),
    "dense & dense & key lengths": lambda s: MaskParts(
        _ragged(s.keys, s.batch, s.keys // 2),
        dense=[_coins(s, s.queries, s.keys, share=0.8), _coins(s, 1, s.heads, 1, s.keys)],
    ),
}


Draw = Callable[..., Tensor]


def _warm(draw: Draw, *shape: int) -> Tensor:
    """Temperatures from 0.5 to 1.5."""
    return 1 + 0.5 * torch.tanh(draw(*shape))


def _some_zero(draw: Draw, *shape: int) -> Tensor:
    return torch.where(draw(*shape) > 0.3, 0.0, _warm(draw, *shape))


def _hiding(s: CaseSizes, draw: Draw) -> Tensor:
    """A bias that hides some keys, and every key from one query."""
    bias = draw(s.batch, s.heads, s.queries, s.keys)
    bias = bias.masked_fill(bias > 1, -torch.inf)
    bias[0, 0, 0] = -torch.inf
    return bias


def _everything(s: CaseSizes, draw: Draw, hard: bool = True) -> dict[str, Any]:
    temperature = _some_zero if hard else _warm
    return {
        "temperature": temperature(draw, s.batch, s.heads, s.queries, 1),
        "softcap": 2.0,
        "bias": _hiding(s, draw),
        "sink": draw(s.heads),
    }


# Tensors are drawn in fp64, rounded to the dtype of the case, and learned.
OPTIONS: dict[str, Callable[[CaseSizes, Draw], dict[str, Any]]] = {
    "plain": lambda s, draw: {},
    "temperature": lambda s, draw: {"temperature": 0.6},
    "temperature for each head": lambda s, draw: {"temperature": _warm(draw, s.heads)},
    "temperature for each query": lambda s, draw: {
        "temperature": _warm(draw, s.batch, s.heads, s.queries, 1)
    },
    "temperature 0 for some queries": lambda s, draw: {
        "temperature": _some_zero(draw, s.batch, s.heads, s.queries, 1)
    },
    "temperature 0 for some heads": lambda s, draw: {"temperature": _some_zero(draw, s.heads)},
    "temperature 0": lambda s, draw: {"temperature": 0.0},
    "softcap": lambda s, draw: {"softcap": 1.5},
    "sink": lambda s, draw: {"sink": draw(s.heads)},
    "one sink": lambda s, draw: {"sink": 2 + draw(1)},
    "bias": lambda s, draw: {"bias": draw(s.batch, s.heads, s.queries, s.keys)},
    "bias hides": lambda s, draw: {"bias": _hiding(s, draw)},
    "bias for each pair": lambda s, draw: {"bias": draw(s.queries, s.keys)},
    "bias for each key": lambda s, draw: {"bias": draw(s.batch, 1, 1, s.keys)},
    "bias for each query": lambda s, draw: {"bias": draw(1, s.heads, s.queries, 1)},
    "temperature 0, bias, softcap": lambda s, draw: {
        "temperature": 0.0,
        "softcap": 1.0,
        "bias": _hiding(s, draw),
    },
    "everything soft": lambda s, draw: _everything(s, draw, hard=False),
    "everything": _everything,
}
