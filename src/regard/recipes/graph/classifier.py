"""`NodeClassifier`: the class of the nodes of a graph, by attention over its edges."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from regard import Score
from regard.arguments import check_given_sizes, check_sizes, check_whole
from regard.recipes.estimator import Recipe, RecipeError, building, checked_validation
from regard.recipes.graph.features import NodeFeatures
from regard.recipes.graph.job import GraphJob
from regard.recipes.graph.loading import GraphSource, NodeBatch
from regard.recipes.graph.net import LAYERS, Layer, NetShape, NodeNet
from regard.recipes.graph.nodes import (
    Nodes,
    check_finite,
    checked_labels,
    checked_nodes,
    edge_features,
)
from regard.recipes.metrics import ACCURACY
from regard.recipes.training import TrainingPlan, TrainingProgress, train


class EdgeWeights(NamedTuple):
    """Edges to some nodes and how much of each node's sum comes over them.

    Attributes:
        edges: (2, E) sources and targets, by their numbers in the graph; one to itself where there are self-loops.
        weights: (E, H), which sum to 1 over the edges to a node.
    """

    edges: np.ndarray
    weights: np.ndarray


class NodeClassifier(Recipe):
    """A classifier of nodes: layers of attention over the edges, as in the GAT paper.

    ```python
    model = NodeClassifier("gatv2").fit(Nodes(graph, known), labels)
    model.predict(Nodes(graph, others))
    model.predict(Nodes(grown_graph, new_nodes))
    ```

    Args:
        score: "gatv2", "gat", "scaled_dot", "additive", "cosine" or any other score, see
            `regard.nn.GraphAttention`; "mean" for equal weights, the control.
        width: of each head.
        heads: of all layers but the last.
        out_heads: of the last layer, which are averaged. None is 1 for a name, and `heads` for a `Score` object, which
            is built for a number of heads.
        layers: a node sees others up to so many edges away.
        dropout: of features, of what is between layers, and of attention weights.
        residual: add a projection of the node itself in each layer.
        self_loops: every node attends to itself too.
        readout: end with a linear layer in place of averaging heads.
        rate: learning rate. That of the paper, .005, is no better on validation nodes of four graphs and takes
            about twice the epochs.
        weight_decay: of an L2 penalty on all weights, as in the paper.
        epochs: at most.
        patience: the most validations in a row without a better one: the next such ends training; None for never.
        batch_nodes: nodes in a mini-batch; None trains on the whole graph at once.
        neighbours: the most neighbours that a node of a training batch sees in each layer; None for all.
        edge_dim: width of `edge_attr`; None takes what the graph of `fit` has, 0 leaves edge features out.
        layer: "regard", or for comparisons "pyg" for PyTorch Geometric's layer of the same score, "gcn" for its
            GCNConv and "mlp" for linear layers that see no edges.
        seed: of weights, dropout and batches.
        device: where to train; None for the GPU if there is one.

    Attributes:
        classes_: the labels, sorted.
        accuracies_: the accuracy, 0 to 1, of each validation of `fit`, by the quality in `history_`.
    """

    name = "graph"
    metric = ACCURACY

    def __init__(
        self,
        score: str | Score | None = "gatv2",
        *,
        width: int = 8,
        heads: int = 8,
        out_heads: int | None = None,
        layers: int = 2,
        dropout: float = 0.6,
        residual: bool = False,
        self_loops: bool = True,
        readout: bool = False,
        rate: float = 2e-2,
        weight_decay: float = 5e-4,
        epochs: int = 1000,
        patience: int | None = 100,
        batch_nodes: int | None = None,
        neighbours: int | None = None,
        edge_dim: int | None = None,
        layer: Layer = "regard",
        seed: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        self.score, self.width, self.heads, self.out_heads = score, width, heads, out_heads  # type: ignore[bad-override-mutable-attribute] # the base class keeps it as chosen_score
        self.layers, self.dropout, self.residual, self.self_loops = (
            layers, dropout, residual, self_loops,
        )  # fmt: skip
        self.readout, self.rate, self.weight_decay = readout, rate, weight_decay
        self.epochs, self.patience, self.batch_nodes = epochs, patience, batch_nodes
        self.neighbours, self.edge_dim, self.layer = neighbours, edge_dim, layer
        self.seed, self.device = seed, device

    def fit(
        self,
        x: Nodes,
        y: Any = None,
        *,
        validation: tuple[Nodes, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: TrainingProgress | None = None,
    ) -> Self:
        """Train on the labels of some nodes; features of all nodes of the graph are seen, other labels never.

        Args:
            x: the nodes whose labels are known, in their graph.
            y: a label for each; whole numbers or words. -1, unlabelled, is refused.
            validation: other nodes and their labels, in this graph or another; None keeps a tenth apart.
            checkpoint: a file, written every few seconds, from which training goes on.
            progress: is told about steps and validations.
        """
        self.check_arguments()
        x = checked_nodes(x)
        labels = checked_labels(x, y)
        if validation is None:
            x, labels, validation = self.held_apart(x, labels)
        held_x, held_y = checked_validation(validation)
        held = checked_nodes(held_x)
        held_labels = checked_labels(held, held_y, "the y of validation")
        if not len(x) or not len(held):
            name = "validation" if len(x) else "x"
            raise RecipeError(f"{name} has no nodes: give nodes whose labels are known")
        if (labels.dtype.kind == "U") != (held_labels.dtype.kind == "U"):
            raise RecipeError(
                f"y and the y of validation must both be numbers or both words, got {labels.dtype} and "
                f"{held_labels.dtype}"
            )
        self.classes_ = np.unique(np.concatenate([labels, held_labels]))
        feature = edge_features(x.graph)
        edge_dim = self.edge_dim
        if edge_dim is None:
            edge_dim = 0 if feature is None else feature.shape[1]
        self.restore(
            {
                "features": x.graph.x.shape[1],  # type: ignore[missing-attribute] # may be None by its type, checked before
                "edge_features": edge_dim,
                "classes": self.classes_.tolist(),
            }
        )
        self.accuracies_: dict[float, float] = {}
        job = GraphJob(self, (x, labels), (held, held_labels))
        plan = TrainingPlan(
            epochs=self.epochs, rate=self.rate, schedule="constant", betas=(0.9, 0.999),
            clip=None, patience=self.patience,
        )  # fmt: skip
        self.history_ = train(
            job,
            plan,
            seed=self.seed,
            device=self.chosen_device(),
            checkpoint=checkpoint,
            progress=progress,
            identity=lambda: self.identity(x, labels, held, held_labels),
        )
        return self

    def held_apart(
        self, x: Nodes, labels: np.ndarray
    ) -> tuple[Nodes, np.ndarray, tuple[Nodes, np.ndarray]]:
        """A tenth of the nodes for validation, and the others for training."""
        if len(x) < 2:
            raise RecipeError("one node cannot be split into training and validation: give more")
        order = np.random.default_rng(self.seed).permutation(len(x))
        count = max(1, len(x) // 10)
        apart, kept = np.sort(order[:count]), np.sort(order[count:])
        return x.take(kept), labels[kept], (x.take(apart), labels[apart])

    def predict(self, x: Nodes) -> np.ndarray:
        """The class of each node; also of nodes or graphs that `fit` has not seen."""
        return self.classes_of(self.logits(x).argmax(-1))

    def predict_proba(self, x: Nodes) -> np.ndarray:
        """The probability of each class, in the order of `classes_`, for each node."""
        return self.logits(x).softmax(-1).numpy()

    def attend(self, x: Nodes, layer: int = 0) -> EdgeWeights:
        """The edges that point to these nodes, with the weights of a layer, counted from 0."""
        self.check_fitted()
        x = checked_nodes(x)
        if not 0 <= layer < self.layers:
            raise RecipeError(f"layer must be 0 to {self.layers - 1}, got {layer}")
        whole = self.source(x.graph).whole(x.index)
        self.model_.eval()
        with torch.no_grad():
            edges, weights = self.model_.attend(whole, layer)  # type: ignore[not-callable] # a method of the network
        chosen = torch.isin(edges[1], whole.wanted)
        return EdgeWeights(edges[:, chosen].cpu().numpy(), weights[chosen].cpu().numpy())

    def statistics(self, x: Nodes, y: Any) -> np.ndarray:
        """Right (1) or wrong (0) for each node."""
        self.check_fitted()
        labels = checked_labels(checked_nodes(x), y)
        if len(labels) and (labels.dtype.kind == "U") != (self.classes_.dtype.kind == "U"):
            raise RecipeError(
                f"y has labels such as {labels[:1].tolist()}, but the classes of the model are such as "
                f"{self.classes_[:1].tolist()}: give words for words, and numbers for numbers"
            )
        return (self.predict(x) == labels).astype(float)[:, None]

    def criterion(self, quality: float) -> tuple[str, str]:
        """The accuracy of the validation that had this quality; a dash for one before the training was resumed."""
        accuracy = self.accuracies_.get(quality)
        return self.metric.title.en, "-" if accuracy is None else self.metric.show(100 * accuracy)

    def estimator_kind(self) -> str:
        """A classifier."""
        return "classifier"

    def learned(self) -> dict[str, Any]:
        """The classes, and the widths of the features."""
        return {
            "features": self.shape_.in_dim,
            "edge_features": self.shape_.edge_dim or 0,
            "classes": self.classes_.tolist(),
        }

    def restore(self, learned: dict[str, Any]) -> None:
        """Set classes and widths, and build the model."""
        self.check_arguments()
        self.classes_ = np.asarray(learned["classes"])
        out_heads = self.out_heads
        if out_heads is None:
            out_heads = self.heads if isinstance(self.chosen_score, Score) else 1
        self.shape_ = NetShape(
            learned["features"], len(self.classes_), learned["edge_features"] or None, self.chosen_score,
            self.layer, self.width, self.heads, out_heads, self.layers, self.dropout,
            self.residual, self.self_loops, self.readout,
        )  # fmt: skip
        torch.manual_seed(self.seed)
        with building():
            self.model_ = NodeNet(self.shape_)
        self.model_.to(self.chosen_device())

    def check_arguments(self) -> None:
        """Refuse arguments out of range; the layers check their own."""
        self.check_training()
        if self.layer not in LAYERS:
            raise RecipeError(f"layer must be one of {', '.join(LAYERS)}, got {self.layer!r}")
        with building():
            check_given_sizes(width=self.width, heads=self.heads, layers=self.layers)
            check_sizes(
                out_heads=self.out_heads, batch_nodes=self.batch_nodes, neighbours=self.neighbours
            )
            if self.edge_dim is not None:
                check_whole(edge_dim=self.edge_dim)
        if self.neighbours is not None and self.batch_nodes is None:
            raise RecipeError("neighbours= limits what a mini-batch sees: give batch_nodes= too")
        if self.layer == "gcn" and self.batch_nodes is not None:
            raise RecipeError(
                "layer='gcn' divides by the degrees of all neighbours, which mini-batches do not know: leave "
                "batch_nodes= out"
            )

    def classes_of(self, numbers: Tensor) -> np.ndarray:
        """The labels that belong to numbers of classes."""
        return self.classes_[numbers.cpu().numpy()]

    def logits(self, x: Nodes) -> Tensor:
        """Logits (nodes, classes) on the CPU."""
        self.check_fitted()
        x = checked_nodes(x)
        found = torch.empty(len(x), len(self.classes_))
        self.model_.eval()
        with torch.no_grad():
            for batch in self.parts(self.source(x.graph), x.index):
                found[batch.rows] = self.model_(batch).float().cpu()
        if not found.isfinite().all():
            raise RecipeError(
                "the model gives no finite answer: the features of the graph are too large, or its training diverged"
            )
        return found

    def parts(self, source: GraphSource, index: Tensor) -> Iterator[NodeBatch]:
        """The nodes in one batch or in mini-batches, each with all that its predictions depend on."""
        # GCN divides by degrees, and those of nodes at the border of a part would be too small.
        if self.layer == "gcn":
            return iter([source.whole(index)])
        return source.batches(index, self.batch_nodes, [-1] * self.layers)

    def source(self, graph: Data) -> GraphSource:
        """The graph on the device, if its features have the widths that the model was trained for."""
        device, shape, x = self.chosen_device(), self.shape_, graph.x
        assert x is not None  # `Nodes` has checked the graph
        if x.shape[1] != shape.in_dim:
            raise RecipeError(
                f"the graph has {x.shape[1]} features for each node, but the model was trained with {shape.in_dim}"
            )
        check_finite("x", x)
        features = NodeFeatures.of(x, device)
        if shape.edge_dim is None:
            return GraphSource(graph, features)
        feature = edge_features(graph)
        if feature is None or feature.shape[1] != shape.edge_dim:
            given = "no" if feature is None else feature.shape[1]
            raise RecipeError(
                f"the graph has {given} features for each edge (edge_attr), but the model was built for "
                f"{shape.edge_dim}"
            )
        check_finite("edge_attr", feature)
        return GraphSource(graph, features, feature.to(device))
