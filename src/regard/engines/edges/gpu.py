"""The GPU's side of the operators over edges: tile sizes, buffers and launches of Triton's kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.edges.graph import SortedSide
from regard.engines.edges.operators import sides
from regard.engines.gpu import device_current

# Whether tensors on the CPU go to Triton's interpreter and not to numba: a switch for tests.
INTERPRETS = False
KINDS = {"tanh": 0, "leaky_relu": 1, "inner": 2}
# Numbers in a tile of edges, forward and backward, and in the rows of one edge that a program takes. Larger
# tiles of the backward pass would not fit into registers.
TILE, TILE_BACKWARD, ROW = 1024, 512, 256
# Programs that share the gradient of v: fixed, so that the sum has the same bits on every GPU.
PROGRAMS = 2048


class EdgeSizes(NamedTuple):
    """The sizes of a call, as kernels take them."""

    targets: int
    sources: int
    heads: int
    width: int
    columns: int


class Ends(NamedTuple):
    """One side of the graph, as kernels take it; without pieces, tensors that are not read."""

    starts: Tensor
    other: Tensor
    node: Tensor
    begin: Tensor
    end: Tensor
    slot: Tensor
    large: Tensor
    first: Tensor
    count: Tensor


class ForwardOperands(NamedTuple):
    """Tensors of the forward pass; absent ones are given as the query and not read."""

    query: Tensor
    key: Tensor
    v: Tensor
    value: Tensor
    output: Tensor
    lse: Tensor


class ForwardParts(NamedTuple):
    """What pieces of divided nodes give to `edges_merge_kernel`, by slot."""

    output: Tensor
    peak: Tensor
    total: Tensor


class BackwardOperands(NamedTuple):
    """Tensors of the backward pass; absent ones are given as the query and not read."""

    query: Tensor
    key: Tensor
    v: Tensor
    value: Tensor
    output: Tensor
    lse: Tensor
    grad: Tensor
    mean: Tensor
    da: Tensor
    db: Tensor
    dv: Tensor
    dx: Tensor


class BackwardParts(NamedTuple):
    """What pieces of divided nodes give to `edges_add_kernel`, by slot."""

    key: Tensor
    value: Tensor


class Tiles(NamedTuple):
    """EdgeSizes of tiles, each a power of two, and the number of warps."""

    edges: int
    heads: int
    width: int
    columns: int
    warps: int

    def blocks(self, sizes: EdgeSizes) -> int:
        """Programs that share the heads of a node."""
        return -(-sizes.heads // self.heads)

    def named(self) -> dict[str, int]:
        """As arguments of a kernel."""
        return {
            "BE": self.edges,
            "HB": self.heads,
            "WP": self.width,
            "CP": self.columns,
            "num_warps": self.warps,
        }


@functools.cache
def kernels() -> ModuleType:
    """The module with the kernels, which imports Triton."""
    from regard.engines.edges import gpu_kernels

    return gpu_kernels


def power(n: int) -> int:
    """The power of two that is n or the next above."""
    return 1 << max(n - 1, 0).bit_length()


def sizes_of(query: Tensor, key: Tensor, value: Tensor) -> EdgeSizes:
    """The sizes of a call."""
    targets, heads, width = query.shape
    return EdgeSizes(targets, key.shape[0], heads, width, value.shape[2])


def tiles_of(sizes: EdgeSizes, numbers: int) -> Tiles:
    """The tiles for these sizes, of about so many numbers."""
    width, columns = power(sizes.width), power(sizes.columns)
    widest = max(width, columns)
    heads = max(min(power(sizes.heads), ROW // widest), 1)
    edges = max(min(numbers // (heads * widest), 32), 1)
    return Tiles(edges, heads, width, columns, 2 if edges * heads * widest > 256 else 1)


def ends_of(side: SortedSide) -> Ends:
    """The side as kernels take it."""
    starts, other = side.starts, side.other
    pieces = side.pieces
    return Ends(starts, other, *(pieces if pieces is not None else (starts,) * 7))


def programs(side: SortedSide) -> int:
    """Number of pieces, or of nodes of an undivided side."""
    return side.starts.shape[0] - 1 if side.pieces is None else side.pieces.node.shape[0]


def slots(side: SortedSide) -> int:
    """An upper bound on the number of slots."""
    return 1 if side.pieces is None else 2 * side.pieces.large.shape[0] + 1


def edges_forward(
    query: Tensor,
    key: Tensor,
    v: Tensor | None,
    value: Tensor | None,
    graph: Sequence[Tensor],
    kind: str,
    number: float,
) -> tuple[Tensor, Tensor]:
    """Output and LSE; see `operators`."""
    into, _ = sides(graph)
    x = key if value is None else value
    sizes = sizes_of(query, key, x)
    tiles, new = tiles_of(sizes, TILE), functools.partial(query.new_empty, dtype=torch.float32)
    output, lse = new(*query.shape[:2], sizes.columns), new(query.shape[:2])
    if output.numel() == 0:
        return output, lse
    given = ForwardOperands(query, key, query if v is None else v, x, output, lse)
    count, divided = slots(into), into.pieces is not None
    parts = ForwardParts(
        new(count, sizes.heads, sizes.columns), new(count, sizes.heads), new(count, sizes.heads)
    )
    with device_current(query.device):
        kernels().edges_forward_kernel[(programs(into), tiles.blocks(sizes))](
            given, ends_of(into), parts, sizes, number,
            KIND=KINDS[kind], SHARED=value is None, DIVIDED=divided, **tiles.named(),
        )  # fmt: skip
        if into.pieces is not None:
            kernels().edges_merge_kernel[(into.pieces.large.shape[0], tiles.blocks(sizes))](
                given, ends_of(into), parts, sizes,
                BS=tiles.edges, HB=tiles.heads, CP=tiles.columns, num_warps=tiles.warps,
            )  # fmt: skip
    return output, lse


def edges_backward(
    query: Tensor,
    key: Tensor,
    v: Tensor | None,
    value: Tensor | None,
    graph: Sequence[Tensor],
    kind: str,
    number: float,
    output: Tensor,
    lse: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, v and value; see `operators`."""
    into, out = sides(graph)
    x = key if value is None else value
    sizes = sizes_of(query, key, x)
    tiles, new = (
        tiles_of(sizes, TILE_BACKWARD),
        functools.partial(query.new_empty, dtype=torch.float32),
    )
    da, db, mean = new(query.shape), new(key.shape), new(lse.shape)
    dx = db if value is None else new(x.shape)
    shared = max(min(programs(into), PROGRAMS), 1)
    dv = new(0) if v is None else new(shared, *v.shape)
    given = BackwardOperands(
        query, key, query if v is None else v, x, output, lse, grad, mean, da, db, dv, dx
    )
    options = {"KIND": KINDS[kind], "SHARED": value is None, **tiles.named()}
    with device_current(query.device):
        if programs(into) and sizes.heads:
            launch_targets(given, into, sizes, number, shared, tiles.blocks(sizes), options)
        elif v is not None:
            dv.zero_()
        if programs(out) and sizes.heads:
            launch_sources(given, out, sizes, number, tiles.blocks(sizes), options)
    return da, db, dv if v is None else dv.sum(0), new(0) if value is None else dx


def launch_targets(
    given: BackwardOperands,
    side: SortedSide,
    sizes: EdgeSizes,
    number: float,
    shared: int,
    blocks: int,
    options: dict[str, int],
) -> None:
    """Fill in the gradients of the queries and of v."""
    divided = side.pieces is not None
    part = given.da.new_empty(slots(side), sizes.heads, sizes.width)
    kernels().edges_backward_targets_kernel[(shared, blocks)](
        given, ends_of(side), BackwardParts(part, part), sizes, number, programs(side), shared,
        DIVIDED=divided, **options,
    )  # fmt: skip
    if divided:
        add_parts(part, given.da, side)


def launch_sources(
    given: BackwardOperands,
    side: SortedSide,
    sizes: EdgeSizes,
    number: float,
    blocks: int,
    options: dict[str, int],
) -> None:
    """Fill in the gradients of keys and values."""
    divided, count = side.pieces is not None, slots(side)
    parts = BackwardParts(
        given.db.new_empty(count, sizes.heads, sizes.width),
        given.db.new_empty(count, sizes.heads, 0 if options["SHARED"] else sizes.columns),
    )
    kernels().edges_backward_sources_kernel[(programs(side), blocks)](
        given, ends_of(side), parts, sizes, number, DIVIDED=divided, **options
    )
    if divided:
        add_parts(parts.key, given.db, side)
        if not options["SHARED"]:
            add_parts(parts.value, given.dx, side)


def add_parts(part: Tensor, result: Tensor, side: SortedSide) -> None:
    """Put the sums of their parts where the gradients of divided nodes belong."""
    assert side.pieces is not None
    numbers = part[0].numel()
    block = min(power(numbers), 256)
    grid = (side.pieces.large.shape[0], -(-numbers // block))
    kernels().edges_add_kernel[grid](
        part,
        result,
        ends_of(side),
        result.shape[0],
        numbers,
        BS=1024 // block,
        BX=block,
        num_warps=2,
    )
