"""How the work is cut into tiles, and how broadcast tensors are cut with it.

Every tensor here has 5 dims, (B, K, G, rows, columns): B leading dims made one, K groups of heads,
G query heads in each group. A size of 1 broadcasts, also in gradients, which are summed into it:
grouped heads and shared biases cost no copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

# Floats in one tile, 8 MiB. Smaller tiles pay more for their Python than the nearer cache gives
# back, larger ones leave the cache: additive, 8 heads, length 1024, hidden 16, forward on two cores
# takes 302, 180, 124, 94, 77, 78 and 115 ms at 2**17 to 2**23.
TILE_ELEMENTS = 2**21
WHOLE = slice(None)


class Shape(NamedTuple):
    """Sizes of one problem: B, K, G, queries Q, keys L, and floats for each pair."""

    batch: int
    groups: int
    heads: int
    queries: int
    keys: int
    depth: int


class Tile(NamedTuple):
    """One block of pairs: slices of B, K, G, queries and keys; `number` is unique in the call."""

    b: slice
    k: slice
    g: slice
    q: slice
    l: slice  # noqa: E741 - L is the key length throughout
    number: int = 0


def tile_sizes(shape: Shape) -> tuple[int, int, int, int, int]:
    """How many of B, K, G, Q and L go into one tile."""
    pairs = max(TILE_ELEMENTS // max(shape.depth, 1), 1)
    keys = 16
    while keys * keys < pairs and keys < shape.keys:
        keys *= 2
    keys = max(min(keys, shape.keys), 1)
    queries = max(min(pairs // keys, shape.queries), 1)
    left = max(pairs // (keys * queries), 1)
    heads = max(min(left, shape.heads), 1)
    groups = max(min(left // heads, shape.groups), 1) if heads == shape.heads else 1
    whole = heads == shape.heads and groups == shape.groups
    batch = max(min(left // (heads * groups), shape.batch), 1) if whole else 1
    return batch, groups, heads, queries, keys


def row_tiles(shape: Shape) -> Iterator[Tile]:
    """Blocks of queries, each with all its keys."""
    batch, groups, heads, queries, keys = tile_sizes(shape)
    number, columns = 0, max(-(-shape.keys // keys), 1)
    for b in range(0, shape.batch, batch):
        for k in range(0, shape.groups, groups):
            for g in range(0, shape.heads, heads):
                for q in range(0, shape.queries, queries):
                    yield Tile(
                        slice(b, b + batch),
                        slice(k, k + groups),
                        slice(g, g + heads),
                        slice(q, q + queries),
                        slice(0, shape.keys),
                        number,
                    )
                    number += columns


def key_tiles(row: Tile, shape: Shape, first: int, last: int) -> Iterator[Tile]:
    """The blocks of keys of `row` that reach into [first, last)."""
    step = tile_sizes(shape)[-1]
    for start in range(max(first, 0) // step * step, min(last, shape.keys), step):
        stop = min(start + step, shape.keys)
        yield row._replace(l=slice(start, stop), number=row.number + start // step)


def cut(x: Tensor, tile: Tile, rows: slice, columns: slice = WHOLE) -> Tensor:
    """The part of `x` that belongs to the tile; dims of size 1 stay whole."""
    wanted = (tile.b, tile.k, tile.g, rows, columns)
    return x[tuple(WHOLE if n == 1 else s for n, s in zip(x.shape, wanted, strict=True))]


def add_cut(total: Tensor, part: Tensor, tile: Tile, rows: slice, columns: slice = WHOLE) -> None:
    """Add `part` to its place in `total`, summed over the dims that broadcast there."""
    place = cut(total, tile, rows, columns)
    place += part.sum_to_size(place.shape)
