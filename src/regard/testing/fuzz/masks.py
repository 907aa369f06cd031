"""Masks of a fuzzed call: drawn as plain data, built as `regard.Mask`, worked out from their definition.

A part is a tuple of its kind and options; the numbers in it (lengths, ids, booleans) are drawn when it is
built, so that a case can be shrunk without redrawing its kind.

Shape legend: `*` leading dims, Q query length, L key length.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from regard.mask import Mask

Part = tuple[Any, ...]
ALIGNMENTS = ("bottom_right", "top_left")


def draw_parts(rng: random.Random, ndim: int, only_keys: bool = False) -> tuple[Part, ...]:
    """One to three parts; `only_keys` for those that say the same to every query."""
    parts: list[Part] = []
    for _ in range(1 if rng.random() < 0.6 else rng.randint(2, 3)):
        kind = rng.choice(("lengths", "dense") if only_keys else KINDS)
        if kind == "causal":
            parts.append((kind, rng.choice(ALIGNMENTS)))
        elif kind == "window":
            left = rng.choice((None, 0, 1, 2, 5))
            right = rng.choice((0, 1, 3)) if left is None else rng.choice((None, 0, 1, 3))
            parts.append((kind, left, right, rng.choice(ALIGNMENTS)))
        elif kind == "lengths":
            both = "keys" if only_keys else rng.choice(("keys", "queries", "both", "both"))
            parts.append((kind, both, rng.random() < 0.5))
        elif kind == "segments":
            parts.append((kind, rng.random() < 0.5, rng.random() < 0.3))
        else:
            dims = 2 if ndim == 2 or rng.random() < 0.5 else ndim
            flags = tuple(rng.random() < 0.6 for _ in range(dims))
            if only_keys:
                flags = (*flags[:-2], False, flags[-1])
            parts.append((kind, flags, rng.choice((0.2, 0.6, 0.9))))
    return tuple(parts)


KINDS = ("causal", "causal", "window", "lengths", "lengths", "segments", "dense")


def build(
    parts: tuple[Part, ...],
    generator: torch.Generator,
    lead: tuple[int, ...],
    heads: int | None,
    queries: int,
    keys: int,
) -> tuple[Mask | None, Tensor]:
    """The mask, and who sees whom: booleans (*, H or 1, Q, L). `heads` None has no head dim in dense parts."""
    seen = torch.ones(*[1] * (len(lead) + 1), queries, keys, dtype=torch.bool)
    if not parts:
        return None, seen
    masks, bands = [], []
    stops: dict[str, Tensor] = {}
    aligned = any(p[0] in ("causal", "window") and p[-1] == "bottom_right" for p in parts)
    for part in parts:
        kind = part[0]
        if kind in ("causal", "window"):
            left, right = (None, 0) if kind == "causal" else part[1:3]
            bands.append((left, right, part[-1]))
            masks.append(
                Mask.causal(part[1]) if kind == "causal" else Mask.window(left, right, part[-1])
            )
        elif kind == "lengths":
            # A bottom-right band needs the query lengths beside those of the keys.
            whole = "both" if aligned and part[1] == "keys" and queries != 1 else part[1]
            given = {}
            for side, length in (("keys", keys), ("queries", queries)):
                if whole not in (side, "both"):
                    continue
                shape = lead if part[2] else tuple(1 for _ in lead)
                given[side] = torch.randint(0, length + 1, shape, generator=generator)
                stop = given[side][..., None, None, None]
                stops[side] = stop if side not in stops else torch.minimum(stops[side], stop)
            masks.append(Mask.lengths(**given))
        elif kind == "segments":
            made, allowed = _segments(part, generator, lead, queries, keys)
            masks.append(made)
            seen = seen & allowed
        else:
            made, allowed = _dense(part, generator, lead, heads, queries, keys)
            masks.append(made)
            seen = seen & allowed
    seen = seen & _within(stops, bands, queries, keys)
    mask = masks[0]
    for other in masks[1:]:
        mask = mask & other
    return mask, seen


def _within(stops: dict[str, Tensor], bands: list[tuple], queries: int, keys: int) -> Tensor:
    """What lengths and bands leave visible; a bottom-right band ends at the last real query and key."""
    i, j = torch.arange(queries).unsqueeze(-1), torch.arange(keys)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    key_stop, query_stop = stops.get("keys"), stops.get("queries")
    if key_stop is not None:
        seen = seen & (j < key_stop)
    if query_stop is not None:
        seen = seen & (i < query_stop)
    for left, right, alignment in bands:
        own: Tensor = i
        if alignment == "bottom_right":
            last_key = keys if key_stop is None else key_stop
            last_query = queries if query_stop is None else query_stop
            own = i + (last_key - last_query)
        if left is not None:
            seen = seen & (j >= own - left)
        if right is not None:
            seen = seen & (j <= own + right)
    return seen


def _segments(
    part: Part, generator: torch.Generator, lead: tuple[int, ...], queries: int, keys: int
) -> tuple[Mask, Tensor]:
    """Ids of the queries and of the keys; some are -1, which is padding."""
    _, own, padded = part
    low, shape = -1 if padded else 0, lead if own else tuple(1 for _ in lead)
    q = torch.randint(low, 3, (*shape, queries), generator=generator)
    if queries == keys and own:
        return Mask.segments(q), _same(q, q)
    k = torch.randint(low, 3, (*shape, keys), generator=generator)
    return Mask.segments(q, k), _same(q, k)


def _same(q: Tensor, k: Tensor) -> Tensor:
    q, k = q[..., None, :, None], k[..., None, None, :]
    return (q == k) & (q >= 0)


def _dense(
    part: Part,
    generator: torch.Generator,
    lead: tuple[int, ...],
    heads: int | None,
    queries: int,
    keys: int,
) -> tuple[Mask, Tensor]:
    """Booleans of a shape with sizes of 1 where they broadcast."""
    _, flags, share = part
    full = (queries, keys) if len(flags) == 2 else (*lead, *_head(heads), queries, keys)
    shape = tuple(n if wide else 1 for n, wide in zip(full, flags, strict=True))
    allowed = torch.rand(shape, generator=generator) < share
    wide = allowed if len(flags) == 2 or heads is not None else allowed.unsqueeze(-3)
    return Mask.dense(allowed), wide


def _head(heads: int | None) -> tuple[int, ...]:
    return () if heads is None else (heads,)
