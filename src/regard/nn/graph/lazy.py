"""Widths of -1, which the first call decides, as in PyTorch Geometric."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from regard.describe import describe

if TYPE_CHECKING:
    from regard.nn.graph.layer import GraphAttention

LAZY = -1


def linear(dim: int, rows: int, bias: bool) -> nn.Linear:
    """A linear layer of inputs of width `dim`; for -1 a lazy one of torch."""
    return nn.LazyLinear(rows, bias) if dim == LAZY else nn.Linear(dim, rows, bias)


def is_lazy(layer: GraphAttention) -> bool:
    """Whether a width of the layer is not known yet."""
    return LAZY in (layer.source_dim, layer.target_dim, layer.edge_dim)


def settle(layer: GraphAttention, x: object, edge_attr: Tensor | None) -> None:
    """Take the widths that are not known from the first inputs, and draw the projections of them.

    Weights that were loaded before decide by themselves.
    """
    pair = (x, x) if isinstance(x, Tensor) else x
    whole = isinstance(pair, (tuple, list)) and len(pair) == 2
    if not whole or not all(isinstance(side, Tensor) and side.ndim == 2 for side in pair):
        raise TypeError(
            "x must be a tensor (nodes, width) or a pair (x_source, x_target) of them: this call "
            f"decides the widths of -1, got {describe(x)}"
        )
    dims: dict[str, int | None] = {
        "source_dim": pair[0].shape[1],
        "target_dim": pair[1].shape[1],
        "edge_dim": None,
    }
    if isinstance(edge_attr, Tensor):
        dims["edge_dim"] = 1 if edge_attr.ndim == 1 else edge_attr.shape[-1]
    sides = {
        "source_dim": (layer.key, layer.value),
        "target_dim": (layer.query, layer.residual),
        "edge_dim": (layer.edge,),
    }
    found = {}
    for name, linears in sides.items():
        if getattr(layer, name) != LAZY or (seen := dims[name]) is None:
            continue
        loaded = [
            part.weight
            for part in linears
            if part is not None and not is_uninitialized(part.weight)
        ]
        found[name] = loaded[0].shape[1] if loaded else seen
    layer.check_options(**found)  # before anything is changed
    for name, dim in found.items():
        setattr(layer, name, dim)
        for part in sides[name]:
            if part is not None and is_uninitialized(part.weight):
                part.initialize_parameters(torch.empty(0, dim))  # type: ignore[missing-attribute]
                layer.draw(part)


def is_uninitialized(x: Tensor) -> bool:
    """Whether a parameter waits for its shape."""
    return isinstance(x, UninitializedParameter)
