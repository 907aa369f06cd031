"""`SortedEdges`: the edges of a graph in the two orders that kernels walk through them.

Shape legend: E edges (with added self-loops), S sources, T targets, N nodes of one side.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.arguments import readable
from regard.describe import describe
from regard.engines.native import absent
from regard.observed import is_plain, is_transformed

# A node with more edges is worked on by several programs of a GPU, this many edges each.
PIECE = 1024
# From this many edges on, counting is faster than torch.sort on a CPU. Both give the same order.
MANY = 2**12


class EdgePieces(NamedTuple):
    """How the edges of one side are divided among the programs of a GPU.

    A node has one piece, or as many as it has `PIECE` edges. The results of a node with several are put
    into slots and added up afterwards in the order of the slots. The lists are as long as they can become
    for this number of nodes and edges, so that the host never waits for their true length.

    Args:
        node: (P,) node of each piece; N for pieces that are not used.
        begin: (P,) first edge of each piece.
        end: (P,) the edge behind its last.
        slot: (P,) where the piece puts its result; -1 for a node with one piece, which needs no slot.
        large: (M,) nodes with several pieces; N behind the last of them.
        first: (M,) first slot of each of these.
        count: (M,) how many slots it has.
    """

    node: Tensor
    begin: Tensor
    end: Tensor
    slot: Tensor
    large: Tensor
    first: Tensor
    count: Tensor


class SortedSide(NamedTuple):
    """The edges in the order of the nodes at one end.

    Args:
        starts: (N + 1,) where the edges of each node begin; the last entry is the number of edges that
            count. Edges behind it are hidden.
        other: (E,) the node at the other end of each edge.
        edge: (E,) by target: the column of the edge in the edge_index given, from its width on for added
            self-loops. By source: the place of the edge in the order by target.
        pieces: see `EdgePieces`; None on a CPU and for graphs of at most `PIECE` edges.
    """

    starts: Tensor
    other: Tensor
    edge: Tensor
    pieces: EdgePieces | None = None


@dataclass(frozen=True, eq=False)
class SortedEdges:
    """The edges of a graph, sorted once, for any number of calls of `GraphAttention`.

    `GraphAttention` takes it in place of `edge_index`. It holds the edges by target, which the forward
    pass walks through, and by source, which the gradients of sources need. Without it each call sorts.

    ```python
    layer = regard.nn.GraphAttention(8, 16, heads=2)
    edges = regard.SortedEdges.of(torch.tensor([[0, 1, 2], [1, 2, 3]]), 4, self_loops=True)
    output = layer(torch.randn(4, 8), edges)
    ```

    Attributes:
        edge_index: (2, edges) as given.
        sources: number of source nodes.
        targets: number of target nodes.
        self_loops: whether self-loops that were given are hidden and one is added for each node.
        into: the edges by target.
        out: the edges by source.
    """

    edge_index: Tensor
    sources: int
    targets: int
    self_loops: bool
    into: SortedSide
    out: SortedSide

    @classmethod
    def of(
        cls, edge_index: Tensor, nodes: int | tuple[int, int], *, self_loops: bool = False
    ) -> SortedEdges:
        """Sort the edges; on a GPU the host does not wait for the result.

        Args:
            edge_index: (2, edges) int64, sources in row 0 and targets in row 1.
            nodes: number of nodes, or (sources, targets) of a graph with two sets of nodes.
            self_loops: as the layer has it. True removes self-loops that were given and adds one to each
                node; between two sets of nodes, those of the same index are taken to be the same.
        """
        sources, targets = (nodes, nodes) if isinstance(nodes, int) else nodes
        for name, count in (("sources", sources), ("targets", targets)):
            if type(count) is not int or count < 0:
                raise ValueError(
                    "nodes must be the number of nodes, or a pair (sources, targets) of numbers, got "
                    f"{describe(count)} for {name}"
                )
        check_edge_index(edge_index, sources, targets)
        return sorted_edges(edge_index, sources, targets, self_loops)

    def __repr__(self) -> str:
        """The sizes."""
        return (
            f"SortedEdges({self.edge_index.shape[1]} edges, {self.sources} sources, "
            f"{self.targets} targets, self_loops={self.self_loops}, device={self.device})"
        )

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.edge_index.device

    @property
    def edges(self) -> int:
        """E: the edges given, and added self-loops."""
        return self.into.other.shape[0]

    def ends(self) -> Tensor:
        """(E,) the target of each edge in the order by target; the number of targets if it is hidden."""
        place = torch.arange(self.edges, dtype=self.into.starts.dtype, device=self.device)
        return torch.searchsorted(self.into.starts[1:], place, right=True)

    def to(self, device: torch.device | str) -> SortedEdges:
        """The same edges on a device; they are sorted again where its kernels divide them otherwise."""
        device = torch.device(device)
        if device.type == self.device.type:
            moved = {
                x.name: _moved(getattr(self, x.name), device)
                for x in fields(self)
                if x.name in ("edge_index", "into", "out")
            }
            return replace(self, **moved)
        edge_index = self.edge_index.to(device)
        return sorted_edges(edge_index, self.sources, self.targets, self.self_loops)


def _moved(x: object, device: torch.device) -> object:
    """A tensor, or a named tuple of tensors, on a device."""
    if isinstance(x, Tensor):
        return x.to(device)
    return None if x is None else type(x)(*(_moved(y, device) for y in x))  # type: ignore[call-arg]


def check_edge_index(
    edge_index: Tensor, sources: int, targets: int, device: torch.device | None = None
) -> None:
    """Refuse edges that do not connect the nodes given.

    The range of the indices is checked only on the CPU. On a GPU the host would have to wait for the
    answer, and a compiled graph would break; there PyTorch's own gathers fail with an assertion.
    """
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"edge_index must be a tensor (2, edges), got {describe(edge_index)}")
    if edge_index.layout != torch.strided:
        raise TypeError(
            f"edge_index must be a dense tensor (2, edges), got {edge_index.layout}; of a sparse "
            "adjacency with a row for each target it is adjacency.coalesce().indices().flip(0)"
        )
    if edge_index.dtype != torch.int64:
        raise TypeError(f"edge_index must be int64, got {edge_index.dtype}; use edge_index.long()")
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        flipped = edge_index.ndim == 2 and edge_index.shape[1] == 2
        raise ValueError(
            "edge_index must be (2, edges), sources in row 0 and targets in row 1, got shape "
            f"{tuple(edge_index.shape)}" + ("; use edge_index.t()" if flipped else "")
        )
    if device is not None and edge_index.device != device:
        raise ValueError(f"edge_index is on {edge_index.device} but x is on {device}")
    if not readable(edge_index):
        return
    for row, side, count in ((0, "source", sources), (1, "target", targets)):
        low, high = (int(n) for n in edge_index[row].aminmax())
        if low < 0 or high >= count:
            raise ValueError(
                f"edge_index[{row}] holds {low if low < 0 else high}, but there are {count} "
                f"{side} nodes: indices run from 0 to the number of nodes less 1"
            )


def sorted_edges(edge_index: Tensor, sources: int, targets: int, self_loops: bool) -> SortedEdges:
    """The edges in both orders, unchecked.

    Sorts are stable, so that the edges of a node keep their order, and the sums over them too.
    """
    loops = min(sources, targets) if self_loops else 0
    # Half as many bytes, where they suffice, are half the traffic of every kernel. Kernels count a block
    # beyond the last edge.
    largest = max(sources, targets, edge_index.shape[1] + loops)
    kind = torch.int32 if largest < 2**31 - 2**16 else torch.int64
    sizes = (edge_index, sources, targets, loops, self_loops, kind)
    into, out = sort_by_counting(*sizes) if may_count(edge_index) else sort_by_torch(*sizes)
    if edge_index.device.type == "cuda":
        into, out = divided(into), divided(out)
    return SortedEdges(edge_index, sources, targets, self_loops, into, out)


def may_count(edge_index: Tensor) -> bool:
    """Whether numba sorts these edges: many on the CPU, which nothing traces."""
    if edge_index.device.type != "cpu" or edge_index.shape[1] < MANY:
        return False
    return is_plain(edge_index) and not is_transformed() and not absent()


def sort_by_counting(*sizes: Any) -> tuple[SortedSide, SortedSide]:
    """What `sort_by_torch` returns, by numba."""
    from regard.engines.edges import cpu

    return cpu.sort_edges(*sizes)


def sort_by_torch(
    edge_index: Tensor, sources: int, targets: int, loops: int, hide: bool, kind: torch.dtype
) -> tuple[SortedSide, SortedSide]:
    """The edges by target and by source; with `hide`, self-loops that were given come last."""
    source, target = (x.to(kind) for x in edge_index)
    key = target
    if hide:
        # Edges that are not wanted are sorted behind the last node: to take them out would make a shape
        # depend on data.
        key = torch.where(source == target, targets, key)
        own = torch.arange(loops, dtype=kind, device=source.device)
        key, source, target = (torch.cat([x, own]) for x in (key, source, target))
    key, order = torch.sort(key, stable=True)
    into = SortedSide(starts_of(key, targets), source.index_select(0, order), order.to(kind))
    by_source = torch.where(key == targets, sources, into.other) if hide else into.other
    by_source, again = torch.sort(by_source, stable=True)
    ends = target.index_select(0, order).index_select(0, again)
    return into, SortedSide(starts_of(by_source, sources), ends, again.to(kind))


def starts_of(key: Tensor, nodes: int) -> Tensor:
    """Where the edges of each node begin, (nodes + 1,), from the nodes of sorted edges."""
    numbers = torch.arange(nodes + 1, dtype=key.dtype, device=key.device)
    return torch.searchsorted(key, numbers, out_int32=key.dtype == torch.int32)


def divided(side: SortedSide, most: int = PIECE) -> SortedSide:
    """The side with its edges divided into pieces of at most `most` edges; see `EdgePieces`."""
    nodes, edges = side.starts.shape[0] - 1, side.other.shape[0]
    if edges <= most or nodes == 0:
        return side
    kind, device = side.starts.dtype, side.starts.device
    begin, degree = side.starts[:-1], side.starts.diff()
    count = ((degree + most - 1) // most).clamp(min=1)
    is_large = count > 1
    end = count.cumsum(0, dtype=kind)
    slots = torch.where(is_large, count, 0)
    first_slot = slots.cumsum(0, dtype=kind) - slots
    number = torch.arange(nodes + edges // most, dtype=kind, device=device)
    int32 = kind == torch.int32
    node = torch.searchsorted(end, number, right=True, out_int32=int32)
    known = node.clamp(max=nodes - 1)
    part = number - (end - count).index_select(0, known)
    at_slot = torch.where(is_large, first_slot, -1).index_select(0, known)
    slot = torch.where(at_slot < 0, -1, at_slot + part)
    wanted = torch.arange(1, edges // most + 1, dtype=kind, device=device)
    large = torch.searchsorted(is_large.cumsum(0, dtype=kind), wanted, out_int32=int32)
    at = large.clamp(max=nodes - 1)
    start = begin.index_select(0, known) + part * most
    stop = torch.minimum(start + most, side.starts.index_select(0, known + 1))
    return side._replace(
        pieces=EdgePieces(
            node,
            start,
            stop,
            slot,
            large,
            first_slot.index_select(0, at),
            count.index_select(0, at),
        )
    )
