"""What a call of `GraphAttention` gets, checked, and what its `attend` returns.

Shape legend: E edges, S source nodes, T target nodes, H heads, C width of values for each head.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from regard.engines.edges import SortedEdges
from regard.nn.graph.checks import check_edges, edge_features, node_pair
from regard.nn.graph.edges import EdgeList, is_read, listed, only_read


class Given(NamedTuple):
    """The checked arguments of a call.

    Args:
        x_source: (S, source dim).
        x_target: (T, target dim).
        edges: as given, sorted or not.
        edge_index: (2, E).
        feature: (E, edge dim), or None.
        loops: number of nodes that get a self-loop; None without self-loops.
    """

    x_source: Tensor
    x_target: Tensor
    edges: Tensor | SortedEdges
    edge_index: Tensor
    feature: Tensor | None
    loops: int | None

    def only_read(self) -> tuple[Tensor, Tensor]:
        """The features of sources and targets, with 0 for nodes that no edge reads.

        Such a node may be padding and hold NaN. With self-loops every node of a single set is read.
        """
        source, target = self.x_source, self.x_target
        one_set = source is target
        if one_set and self.loops is not None:
            return source, target
        read = [
            is_read(self.edges, row, x.shape[0], self.loops or 0)
            for row, x in enumerate((source, target))
        ]
        if one_set:
            source = only_read(source, *read)
            return source, source
        return only_read(source, read[0]), only_read(target, read[1])

    def listed(self, fill: str | float | Tensor) -> EdgeList:
        """The edges to attend over, with self-loops and their features."""
        return listed(self.edge_index, self.feature, self.loops, fill)


class GraphAttended(NamedTuple):
    """The output of `GraphAttention.attend`, with the weight of each edge.

    Row n of `weights` belongs to the edge `edge_index[:, n]`, which is edge `edge[n]` of those
    given. With `self_loops`, self-loops that were given are missing, and the added one of each node
    is at the end, with -1 in `edge`.

    Args:
        output: (T, H * C), or (T, C) if heads are averaged.
        edge_index: (2, E), sources and targets of the edges that were attended over.
        edge: (E,) column of each edge in the edge_index given, -1 for an added self-loop.
        weights: (E, H), before dropout; they sum to 1 over the edges of a target.
    """

    output: Tensor
    edge_index: Tensor
    edge: Tensor
    weights: Tensor


def checked(
    x: Tensor | tuple[Tensor, Tensor],
    edge_index: Tensor | SortedEdges,
    edge_attr: Tensor | None,
    dims: tuple[int, int],
    edge_dim: int | None,
    weight: Tensor,
    self_loops: bool,
) -> Given:
    """The arguments of a call, or an error; `weight` has the dtype and the device of the layer."""
    x_source, x_target = node_pair(x, dims, weight)
    check_edges(edge_index, x_source, x_target, self_loops)
    plain = edge_index.edge_index if isinstance(edge_index, SortedEdges) else edge_index
    feature = edge_features(edge_attr, plain.shape[1], edge_dim, weight)
    loops = min(x_source.shape[0], x_target.shape[0]) if self_loops else None
    return Given(x_source, x_target, edge_index, plain, feature, loops)
