"""How a call is cut into tiles, and how tensors that broadcast are cut with it.

Every tensor here has 5 dims, (B, K, G, rows, columns): B flattened leading dims, K groups of heads,
G query heads in each group. A size of 1 broadcasts, and its gradient is summed into size 1, so that
grouped heads and shared biases cost no copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

# Floats in one tile, 8 MiB. With smaller tiles the Python between them takes more time than a nearer
# cache saves; larger ones leave the cache. The forward of additive with 8 heads, length 1024 and hidden
# 16 on two cores takes 302, 180, 124, 94, 77, 78 and 115 ms at 2**17 to 2**23.
TILE_ELEMENTS = 2**21
WHOLE_DIM = slice(None)


class TiledShape(NamedTuple):
    """The sizes of a call to cut: B, K, G, queries Q, keys L, and `depth`, floats for each pair."""

    batch: int
    groups: int
    heads: int
    queries: int
    keys: int
    depth: int


class Tile(NamedTuple):
    """One block of pairs: slices of B, K, G, queries and keys. `number` is unique in a call."""

    b: slice
    k: slice
    g: slice
    q: slice
    l: slice  # noqa: E741 - L is the key length throughout
    number: int = 0


def tile_sizes(shape: TiledShape) -> tuple[int, int, int, int, int]:
    """The size of a tile along B, K, G, Q and L."""
    pairs = max(TILE_ELEMENTS // max(shape.depth, 1), 1)
    # About square, as far as the lengths allow: loads grow with the sides, work with their product.
    keys = 16
    while keys * keys < pairs and keys < shape.keys:
        keys *= 2
    keys = max(min(keys, shape.keys), 1)
    queries = max(min(pairs // keys, shape.queries), 1)
    # What is left of the tile takes further heads, then groups, then batch entries.
    left = max(pairs // (keys * queries), 1)
    heads = max(min(left, shape.heads), 1)
    groups = max(min(left // heads, shape.groups), 1) if heads == shape.heads else 1
    whole = heads == shape.heads and groups == shape.groups
    batch = max(min(left // (heads * groups), shape.batch), 1) if whole else 1
    return batch, groups, heads, queries, keys


def row_tiles(shape: TiledShape) -> Iterator[Tile]:
    """Blocks of queries, each with all of its keys."""
    batch, groups, heads, queries, keys = tile_sizes(shape)
    # Numbers of row tiles leave room for the key tiles in them, see `key_tiles`.
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


def key_tiles(row: Tile, shape: TiledShape, first: int, last: int) -> Iterator[Tile]:
    """The tiles of `row` whose keys overlap [first, last)."""
    step = tile_sizes(shape)[-1]
    for start in range(max(first, 0) // step * step, min(last, shape.keys), step):
        stop = min(start + step, shape.keys)
        yield row._replace(l=slice(start, stop), number=row.number + start // step)


def cut(x: Tensor, tile: Tile, rows: slice, columns: slice = WHOLE_DIM) -> Tensor:
    """The part of `x` that belongs to the tile; dims of size 1 are kept."""
    wanted = (tile.b, tile.k, tile.g, rows, columns)
    return x[tuple(WHOLE_DIM if n == 1 else s for n, s in zip(x.shape, wanted, strict=True))]


def add_cut(
    total: Tensor, part: Tensor, tile: Tile, rows: slice, columns: slice = WHOLE_DIM
) -> None:
    """Add `part` to the tile's part of `total`, summed over the dims that broadcast there."""
    place = cut(total, tile, rows, columns)
    place += part.sum_to_size(place.shape)
