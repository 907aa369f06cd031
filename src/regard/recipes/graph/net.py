"""`NodeNet`: layers over the edges of a graph, with ELU and dropout between them.

Shape legend: N nodes, E edges, F features, H heads, C width for each head.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, TransformerConv
from torch_geometric.utils import trim_to_layer

from regard import Score
from regard.describe import describe
from regard.nn import GraphAttention
from regard.recipes.equal import MEAN, EqualWeights
from regard.recipes.estimator import RecipeError, own_score
from regard.recipes.graph.loading import NodeBatch

Layer = Literal["regard", "pyg", "gcn", "mlp"]
LAYERS: tuple[Layer, ...] = get_args(Layer)
# The layers of PyTorch Geometric by the name that their score has here.
PYG = {"gat": GATConv, "gatv2": GATv2Conv, "scaled_dot": TransformerConv}


@dataclass(frozen=True)
class NetShape:
    """The sizes and options of a `NodeNet`; the names are those of `NodeClassifier`."""

    in_dim: int
    classes: int
    edge_dim: int | None
    score: str | Score | None
    layer: Layer
    width: int
    heads: int
    out_heads: int
    layers: int
    dropout: float
    residual: bool
    self_loops: bool
    readout: bool


class NodeNet(nn.Module):
    """From a part of a graph to logits of the classes for its wanted nodes.

    Args:
        shape: the sizes.
    """

    def __init__(self, shape: NetShape) -> None:
        super().__init__()
        self.shape = shape
        hidden = shape.width * shape.heads
        dims = [shape.in_dim] + [hidden] * (shape.layers - 1)
        self.layers = nn.ModuleList()
        for number, dim in enumerate(dims):
            last = number == shape.layers - 1 and not shape.readout
            self.layers.append(make_layer(shape, dim, last))
        self.readout = nn.Linear(hidden, shape.classes) if shape.readout else None

    def forward(self, batch: NodeBatch) -> Tensor:
        """Logits of the classes for the wanted nodes, (wanted, classes)."""
        return self.run(batch, None)[0][batch.wanted]

    def attend(self, batch: NodeBatch, layer: int) -> tuple[Tensor, Tensor]:
        """The edges (2, E) that a layer attends over, and their weights (E, H).

        With `self_loops` there is one from each node to itself.
        """
        found = self.run(batch, layer)[1]
        if found is None:
            raise RecipeError(f"layer={self.shape.layer!r} has no attention weights")
        return found

    def run(
        self, batch: NodeBatch, wanted: int | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Logits (N, classes) of the nodes that the last layer works on, and edges and weights of layer `wanted`."""
        edges, feature, weights = batch.edges, batch.feature, None
        state = batch.x.dropped(self.shape.dropout, self.training)
        for number, layer in enumerate(self.layers):
            if batch.hops is not None:
                state, edges, feature = trim_to_layer(number, *batch.hops, state, edges, feature)
            if number:
                state = F.dropout(F.elu(state), self.shape.dropout, self.training)
            if number == wanted:
                weights = weights_of(layer, state, edges, feature)
            with nullcontext() if number else batch.x.multiplied(state):
                state = apply_layer(layer, state, edges, feature)
        if self.readout is not None:
            state = self.readout(F.dropout(F.elu(state), self.shape.dropout, self.training))
        return state, weights


def make_layer(shape: NetShape, dim: int, last: bool) -> nn.Module:
    """One layer: heads side by side, or, for the last one, averaged to the logits."""
    heads, out = (shape.out_heads, shape.classes) if last else (shape.heads, shape.width)
    if shape.layer == "mlp":
        return nn.Linear(dim, out if last else out * heads)
    if shape.layer == "gcn":
        return GCNConv(dim, out if last else out * heads)
    common: dict[str, Any] = {
        "heads": heads, "concat": not last, "dropout": shape.dropout, "edge_dim": shape.edge_dim,
    }  # fmt: skip
    if shape.layer == "pyg":
        return make_pyg(shape, dim, out, common)
    options: dict[str, Any] = {"self_loops": shape.self_loops, "residual": shape.residual}
    if shape.score == MEAN:
        # Queries, keys and edge features would have no effect on equal weights: one projection, that of the values.
        common["edge_dim"] = None
        return GraphAttention(
            dim,
            out,
            score=EqualWeights(),
            share_weights=True,
            share_value=True,
            **options,
            **common,
        )
    score = own_score(shape.score)
    # A score that is given has a width of its own, which need not be that of the values.
    share = False if isinstance(score, Score) else None
    return GraphAttention(dim, out, score=score, share_value=share, **options, **common)


def make_pyg(shape: NetShape, dim: int, out: int, common: dict[str, Any]) -> nn.Module:
    """The layer of PyTorch Geometric that has this score."""
    kind = PYG.get(shape.score) if isinstance(shape.score, str) else None
    if kind is None:
        raise RecipeError(
            f"layer='pyg' has the scores {', '.join(map(repr, PYG))}, got score={describe(shape.score)}; "
            "layer='regard' has all scores"
        )
    if kind is TransformerConv:
        if shape.self_loops:
            raise RecipeError(
                "TransformerConv adds no self-loops: give self_loops=False, and residual=True so that a node "
                "sees itself"
            )
        return kind(dim, out, root_weight=shape.residual, **common)
    return kind(dim, out, add_self_loops=shape.self_loops, residual=shape.residual, **common)


def apply_layer(layer: nn.Module, x: Tensor, edges: Tensor, feature: Tensor | None) -> Tensor:
    """The output of a layer; those without weights of their own for edges take no edge features."""
    if isinstance(layer, nn.Linear):
        return layer(x)
    if isinstance(layer, GCNConv):
        return layer(x, edges)
    return layer(x, edges, feature if layer.edge_dim is not None else None)


def weights_of(
    layer: nn.Module, x: Tensor, edges: Tensor, feature: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Edges and weights of a layer of attention; None for others."""
    if isinstance(layer, GraphAttention):
        found = layer.attend(x, edges, feature if layer.edge_dim is not None else None)
        return found.edge_index, found.weights
    if isinstance(layer, tuple(PYG.values())):
        return layer(x, edges, feature, return_attention_weights=True)[1]
    return None


def penalty(model: nn.Module, decay: float) -> Tensor | float:
    """The L2 penalty of all weights.

    Its gradient is that of the weight decay of Adam in the papers of GCN and GAT. AdamW's own decay is multiplied
    by the learning rate: at .02 it would be 50 times weaker.
    """
    if not decay:
        return 0.0
    return 0.5 * decay * torch.stack([one.square().sum() for one in model.parameters()]).sum()
