"""`GraphJob`: batches, loss and validation of a `NodeClassifier`, as the training loop takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.recipes.graph.loading import NodeBatch
from regard.recipes.graph.net import penalty
from regard.recipes.graph.nodes import Nodes
from regard.recipes.training import Job

if TYPE_CHECKING:
    from regard.recipes.graph.classifier import NodeClassifier


class GraphJob(Job):
    """Trains on some nodes and validates on others, of one graph or of two.

    Args:
        recipe: a classifier whose model is built.
        train_part: nodes and their labels.
        held_part: nodes for validation and their labels.
    """

    def __init__(
        self,
        recipe: NodeClassifier,
        train_part: tuple[Nodes, np.ndarray],
        held_part: tuple[Nodes, np.ndarray],
    ) -> None:
        self.recipe, self.model = recipe, recipe.model_
        self.nodes, self.target = train_part[0].index, self.numbers(train_part[1])
        self.held_nodes, self.held_target = held_part[0].index, self.numbers(held_part[1])
        self.source = self.held_source = recipe.source(train_part[0].graph)
        if held_part[0].graph is not train_part[0].graph:
            self.held_source = recipe.source(held_part[0].graph)
        whole = recipe.batch_nodes is None
        # Without mini-batches the same parts of the graph serve every epoch.
        self.train_parts = list(recipe.parts(self.source, self.nodes)) if whole else None
        self.held_parts = list(recipe.parts(self.held_source, self.held_nodes)) if whole else None

    def numbers(self, labels: np.ndarray) -> Tensor:
        """The labels as numbers of classes, on the device."""
        found = np.searchsorted(self.recipe.classes_, labels)
        return torch.from_numpy(found).to(self.recipe.chosen_device())

    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        size = self.recipe.batch_nodes
        return 1 if size is None else -(-len(self.nodes) // size)

    def batches(self, epoch: int) -> Iterable[NodeBatch]:
        """All nodes at once, or mini-batches whose order and neighbours follow from seed and epoch."""
        if self.train_parts is not None:
            return self.train_parts
        recipe = self.recipe
        limits = [recipe.neighbours or -1] * recipe.layers
        seed = recipe.seed * 1_000_003 + epoch
        return self.source.batches(self.nodes, recipe.batch_nodes, limits, seed)

    def loss(self, batch: NodeBatch) -> Tensor:
        """Cross-entropy of the nodes asked for, and the penalty of large weights."""
        target = self.target[batch.rows.to(self.target.device)]
        entropy = F.cross_entropy(self.model(batch), target)
        return entropy + penalty(self.model, self.recipe.weight_decay)

    def validate(self, model: nn.Module) -> float:
        """Accuracy, from 0 to 1, less the cross-entropy.

        The GAT paper stops where neither of the two gets better. Accuracy alone has many equals among 500 nodes,
        and its first best comes by chance long before the model has settled.
        """
        right, loss = 0, 0.0
        for batch in self.held_parts or self.recipe.parts(self.held_source, self.held_nodes):
            logits, target = model(batch), self.held_target[batch.rows.to(self.held_target.device)]
            right += int((logits.argmax(-1) == target).sum())
            loss += float(F.cross_entropy(logits, target, reduction="sum"))
        quality = (right - loss) / len(self.held_target)
        self.recipe.accuracies_[quality] = right / len(self.held_target)  # what progress tells
        return quality
