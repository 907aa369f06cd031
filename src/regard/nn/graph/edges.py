"""The edges of a graph as a layer lists them: added self-loops and their features, nodes that are read.

Scores, softmax and sums over the edges are in `engines/edges`. No shape depends on the contents of a
tensor, so that everything compiles with a dynamic number of edges and the host never waits for a GPU.

Shape legend: E edges, N nodes, D width.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.edges.graph import SortedEdges
from regard.engines.edges.plain import sum_at
from regard.precision import working_dtype

# Reductions of a node's edge features to the feature of its added self-loop, by PyG's names.
FILLS = ("mean", "add", "min", "max", "mul")


class EdgeList(NamedTuple):
    """The edges that a layer attends over.

    Args:
        source: (E,) source node of each edge.
        target: (E,) target node of each edge.
        feature: (E, edge dim), or None.
        hidden: (E,), True for edges that are ignored, or None if there are none. Self-loops that were
            given are hidden and not removed, because removing them would make a shape depend on data.
    """

    source: Tensor
    target: Tensor
    feature: Tensor | None = None
    hidden: Tensor | None = None


def with_self_loops(
    edge_index: Tensor, feature: Tensor | None, nodes: int, fill: str | float | Tensor
) -> EdgeList:
    """Hide the self-loops given and append one for each of the first `nodes` nodes.

    The feature of an appended loop is `fill`, or the reduction of that name over the other edges
    that point to the node; for a node without other edges it is 0, for "mul" 1.
    """
    source, target = edge_index[0], edge_index[1]
    given = source == target
    loops = torch.arange(nodes, device=source.device)
    hidden = torch.cat([given, torch.zeros_like(loops, dtype=torch.bool)])
    if feature is not None:
        # The feature of a hidden edge must not be read: NaN in it would reach the gradients.
        feature = torch.where(given.unsqueeze(-1), 0, feature)
        if isinstance(fill, str):
            filled = _reduced(feature, torch.where(given, -1, target), nodes, fill)
        elif isinstance(fill, Tensor):
            filled = fill.to(feature.dtype).expand(nodes, feature.shape[-1])
        else:
            filled = feature.new_full((nodes, feature.shape[-1]), fill)
        feature = torch.cat([feature, filled])
    return EdgeList(torch.cat([source, loops]), torch.cat([target, loops]), feature, hidden)


def _reduced(feature: Tensor, target: Tensor, nodes: int, fill: str) -> Tensor:
    """Reduce (E, D) to (nodes, D); edges whose target is not among the nodes are left out."""
    work = feature.to(working_dtype(feature.dtype))
    # Edges that are left out go to an extra row, which is cut off at the end: no shape depends on
    # how many they are.
    row = torch.where((target < 0) | (target >= nodes), nodes, target)
    if fill in ("mean", "add"):
        # index_add has a deterministic mode on a GPU, the sum of scatter_reduce has none.
        total = sum_at(work, row, nodes + 1)
        if fill == "mean":
            total = total / sum_at(torch.ones_like(work[:, :1]), row, nodes + 1).clamp(min=1)
        return total[:nodes].to(feature.dtype)
    start = work.new_full((nodes + 1, work.shape[-1]), 1.0 if fill == "mul" else 0.0)
    row = row.unsqueeze(-1).expand_as(work)
    how = {"min": "amin", "max": "amax", "mul": "prod"}[fill]
    reduced = start.scatter_reduce(0, row, work, how, include_self=False)
    return reduced[:nodes].to(feature.dtype)


def listed(
    edge_index: Tensor, feature: Tensor | None, nodes: int | None, fill: str | float | Tensor
) -> EdgeList:
    """The edges given, with self-loops replaced where `nodes` says how many nodes have one."""
    if nodes is None:
        return EdgeList(edge_index[0], edge_index[1], feature)
    return with_self_loops(edge_index, feature, nodes, fill)


def is_read(edges: SortedEdges | Tensor, row: int, nodes: int, loops: int) -> Tensor:
    """Which nodes an edge reads at one end, (nodes,): sources in row 0, targets in row 1.

    The first `loops` nodes have a self-loop.
    """
    if isinstance(edges, SortedEdges):
        return (edges.out, edges.into)[row].starts.diff() > 0
    number = torch.arange(nodes, device=edges.device)
    return (number < loops).index_fill(0, edges[row], True)


def only_read(x: Tensor, *read: Tensor) -> Tensor:
    """X (N, D) with rows of 0 for nodes that no edge reads; `read` are masks (N,) from `is_read`.

    What padding holds, NaN included, then stays out of the gradient of the projections, where
    0 * NaN would be NaN. Sparse features are returned as they are: padding would have no entries.
    """
    if x.layout != torch.strided:
        return x
    return torch.where(functools.reduce(torch.logical_or, read).unsqueeze(-1), x, 0)
