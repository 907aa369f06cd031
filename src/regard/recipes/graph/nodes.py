"""`Nodes`: some nodes of a graph, the rows that the graph recipe is trained on and asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from regard.describe import describe
from regard.recipes.columns import one_kind
from regard.recipes.estimator import RecipeError

UNLABELLED = -1  # the label that sets of graphs give to nodes whose class is not known


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes of a graph: row n is node `index[n]`.

    Attributes:
        graph: `x` (nodes, features), dense or sparse; `edge_index` (2, edges), sources in row 0 and targets in
            row 1; `edge_attr` (edges, edge features) if there are any.
        index: numbers of nodes in the graph; None for all.
    """

    graph: Data
    index: Any = None

    def __post_init__(self) -> None:
        check_graph(self.graph)
        count = self.graph.x.shape[0]  # type: ignore[missing-attribute] # may be None by its type, checked before
        given = np.arange(count) if self.index is None else self.index
        index = given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
        if index.size == 0:
            index = index.astype(np.int64)  # an empty list becomes floats
        if index.dtype == bool:
            raise RecipeError(
                "index must be numbers of nodes, got a mask: use mask.nonzero()[:, 0]"
            )
        if index.ndim != 1 or index.dtype.kind not in "iu":
            raise RecipeError(
                f"index must be the whole numbers of nodes in one dimension, got {index.dtype} and shape {index.shape}"
            )
        if index.size and (index.min() < 0 or index.max() >= count):
            raise RecipeError(
                f"index holds {index.min()} to {index.max()}, but the graph has {count} nodes: indices run from 0 "
                f"to {count - 1}"
            )
        object.__setattr__(self, "index", torch.from_numpy(index.astype(np.int64)))

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: Any) -> Nodes:
        """The nodes of these rows, in the same graph."""
        return Nodes(self.graph, self.index[torch.as_tensor(np.asarray(rows), dtype=torch.long)])


def check_graph(graph: Data) -> None:
    """Refuse what is not a graph with features.

    Raises:
        RecipeError: says what is missing or does not fit together.
    """
    if not isinstance(graph, Data):
        raise RecipeError(f"graph must be a torch_geometric.data.Data, got {describe(graph)}")
    x, edges, feature = graph.x, graph.edge_index, graph.edge_attr
    if not isinstance(x, Tensor) or x.ndim != 2:
        raise RecipeError(
            f"graph.x must be the features of the nodes, (nodes, features), got {describe(x)}; for a graph "
            "without features use the rows of the identity, torch.eye(nodes)"
        )
    if x.shape[0] == 0:
        raise RecipeError("the graph has no nodes")
    if not isinstance(edges, Tensor) or edges.ndim != 2 or edges.shape[0] != 2:
        raise RecipeError(f"graph.edge_index must be (2, edges), got {describe(edges)}")
    if edges.dtype != torch.int64:
        raise RecipeError(f"graph.edge_index must be int64, got {edges.dtype}; use .long()")
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= x.shape[0]):
        raise RecipeError(
            f"graph.edge_index holds {int(edges.min())} to {int(edges.max())}, but the graph has "
            f"{x.shape[0]} nodes"
        )
    row_each = isinstance(feature, Tensor) and feature.shape[:1] == edges.shape[1:]
    if feature is not None and not (row_each and feature.ndim <= 2):
        raise RecipeError(
            f"graph.edge_attr must have a row for each of {edges.shape[1]} edges, got "
            f"{describe(feature)}"
        )
    for name, one in (("x", x), ("edge_attr", feature)):
        if one is not None and one.is_complex():
            raise RecipeError(f"graph.{name} must be real numbers, got {one.dtype}")


def checked_nodes(x: Any) -> Nodes:
    """X if it is `Nodes`, all nodes of it if it is a graph."""
    if isinstance(x, Data):
        return Nodes(x)
    if not isinstance(x, Nodes):
        raise RecipeError(
            f"x must be Nodes(graph, index) or a graph for all of its nodes, got {describe(x)}"
        )
    return x


def checked_labels(x: Nodes, y: Any, name: str = "y") -> np.ndarray:
    """The labels as an array with one for each node, none of them unknown."""
    labels = one_kind(y, name)
    if labels.shape != (len(x),):
        raise RecipeError(
            f"{name} must be one label for each of {len(x)} nodes, got shape {labels.shape}"
        )
    if len(x) and labels.dtype.kind not in "iubU":
        raise RecipeError(f"{name} must be whole numbers or words, got {labels.dtype}")
    unknown = int((labels == UNLABELLED).sum()) if labels.dtype.kind == "i" else 0
    if unknown:
        raise RecipeError(
            f"{name} is {UNLABELLED}, which means unlabelled, for {unknown} of {len(x)} nodes: leave them out "
            "of index; they stay in the graph"
        )
    return labels


def check_finite(name: str, feature: Tensor) -> None:
    """Refuse what is not finite in float32, in which networks read the features of nodes or edges, dense or sparse."""
    dense = feature.layout == torch.strided
    values = feature if dense else feature.to_sparse_coo().coalesce().values()
    bad = int((~values.float().isfinite()).sum())
    if bad:
        raise RecipeError(
            f"graph.{name} holds NaN, infinity or numbers beyond float32 in {bad} places: put numbers there, or rescale it"
        )


def edge_features(graph: Data) -> Tensor | None:
    """The features of the edges as (edges, width) in float32; None if there are none."""
    feature = graph.edge_attr
    if feature is None:
        return None
    return (feature.unsqueeze(-1) if feature.ndim == 1 else feature).float()
