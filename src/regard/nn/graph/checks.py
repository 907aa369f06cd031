"""Checks of the arguments of `GraphAttention`, one error each."""

from __future__ import annotations

from torch import Tensor

from regard.arguments import autocast_enabled
from regard.describe import describe
from regard.engines.edges.graph import SortedEdges, check_edge_index
from regard.nn.graph.edges import FILLS
from regard.nn.graph.lazy import LAZY


def dims_pair(in_dim: int | tuple[int, int]) -> tuple[int, int]:
    """(source dim, target dim), or an error."""
    pair = (in_dim, in_dim) if isinstance(in_dim, int) else in_dim
    whole = isinstance(pair, (tuple, list)) and len(pair) == 2
    if not whole or not all(type(n) is int and (n > 0 or n == LAZY) for n in pair):
        raise ValueError(
            "in_dim must be an integer of 1 or more, -1 for the width of the first input, or a pair "
            f"(source dim, target dim) of them, got {describe(in_dim)}"
        )
    return pair[0], pair[1]


def check_fill(fill: str | float | Tensor, edge_dim: int | None) -> None:
    """Refuse what cannot be the feature of an added self-loop."""
    if isinstance(fill, str):
        if fill not in FILLS:
            raise ValueError(
                f"fill must be {', '.join(map(repr, FILLS))}, a number or a tensor, got {fill!r}"
            )
    elif isinstance(fill, Tensor):
        if edge_dim is not None and tuple(fill.shape) not in [(), (1,), (edge_dim,)]:
            raise ValueError(
                f"fill must be a number or a tensor of shape ({edge_dim},), one entry for each "
                f"edge feature, got {describe(fill)}"
            )
    elif isinstance(fill, bool) or not isinstance(fill, (int, float)):
        raise TypeError(
            f"fill must be one of {', '.join(map(repr, FILLS))}, a number or a tensor, got "
            f"{describe(fill)}"
        )


def node_pair(
    x: Tensor | tuple[Tensor, Tensor], dims: tuple[int, int], weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The features of source and target nodes, checked; a single tensor is both."""
    if isinstance(x, Tensor):
        if dims[0] != dims[1]:
            raise TypeError(
                f"x must be a pair (x_source, x_target): the layer was built for source dim "
                f"{dims[0]} and target dim {dims[1]}, got {describe(x)}"
            )
        _check_features(x, "x", "nodes", dims[0], weight)
        return x, x
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise TypeError(f"x must be a tensor or a pair (x_source, x_target), got {describe(x)}")
    for name, side, dim in (("x_source", x[0], dims[0]), ("x_target", x[1], dims[1])):
        _check_features(side, name, "nodes", dim, weight)
    return x[0], x[1]


def check_edges(
    edge_index: Tensor | SortedEdges, x_source: Tensor, x_target: Tensor, self_loops: bool
) -> None:
    """Refuse edges that do not connect the nodes given, and those sorted for other nodes or another layer."""
    sizes = (x_source.shape[0], x_target.shape[0])
    if not isinstance(edge_index, SortedEdges):
        check_edge_index(edge_index, *sizes, x_source.device)
        return
    edges = edge_index
    if edges.device != x_source.device:
        raise ValueError(
            f"the SortedEdges are on {edges.device} but x is on {x_source.device}; use edges.to(x.device)"
        )
    if (edges.sources, edges.targets) != sizes:
        raise ValueError(
            f"the SortedEdges are for {edges.sources} sources and {edges.targets} targets, but x has "
            f"{sizes[0]} and {sizes[1]} nodes"
        )
    if edges.self_loops != self_loops:
        raise ValueError(
            f"the SortedEdges have self_loops={edges.self_loops}, but the layer has self_loops="
            f"{self_loops}; make them by SortedEdges.of(edge_index, nodes, self_loops={self_loops})"
        )


def edge_features(
    edge_attr: Tensor | None, edges: int, edge_dim: int | None, weight: Tensor
) -> Tensor | None:
    """The edge features as (edges, edge_dim), checked; None if the layer takes none."""
    if edge_attr is None:
        if edge_dim is not None:
            raise ValueError(
                f"edge_attr is missing: the layer was built with edge_dim={edge_dim} and needs "
                f"edge features of shape ({edges}, {edge_dim})"
            )
        return None
    if edge_dim is None:
        raise ValueError(
            f"edge_attr was given, {describe(edge_attr)}, but the layer was built without "
            "edge_dim and would not use it; build it with edge_dim="
        )
    if isinstance(edge_attr, Tensor) and edge_attr.ndim == 1:
        edge_attr = edge_attr.unsqueeze(-1)
    _check_features(edge_attr, "edge_attr", "edges", edge_dim, weight)
    if edge_attr.shape[0] != edges:
        raise ValueError(
            f"edge_attr is for {edge_attr.shape[0]} edges, shape {tuple(edge_attr.shape)}, but "
            f"edge_index has {edges} edges"
        )
    return edge_attr


def _check_features(x: Tensor, name: str, things: str, dim: int, weight: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor ({things}, {dim}), got {describe(x)}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {x.dtype}; use {name}.float()")
    if x.ndim != 2 or x.shape[1] != dim:
        batched = "; join a batch of graphs into one graph" if x.ndim == 3 else ""
        raise ValueError(f"{name} must be ({things}, {dim}), got shape {tuple(x.shape)}{batched}")
    if x.device != weight.device:
        raise ValueError(f"{name} is on {x.device} but the layer is on {weight.device}")
    if x.dtype != weight.dtype and not autocast_enabled(x):
        raise TypeError(
            f"{name} is {x.dtype} but the layer is {weight.dtype}; cast one, or use torch.autocast"
        )
