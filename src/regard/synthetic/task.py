"""What synthetic tasks share: the protocol, losses and qualities, and the ranges of their seeds.

B examples in a batch, n classes.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

# Seeds of data start here. Seeds of parameters start at 0: with the same seed for both, a model's initial
# parameters would be the same random numbers as its first examples.
DATA_SEEDS = 5 * 10**8
# Seeds of what a task draws once for all examples, such as its random maps, start here: above those of
# data and parameters, for the same reason.
WORLD_SEEDS = 10**9


class SyntheticTask(Protocol):
    """Something to learn: a source of examples, a loss to train with, and a quality to report."""

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """`count` examples: the model's inputs, followed by the target."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The scalar that training minimises."""

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """The scalar that is reported, an accuracy or R^2; higher is better."""


class ClassificationTask:
    """Loss and quality of tasks whose answer is one of n classes: logits (B, n), target (B,)."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy."""
        return nn.functional.cross_entropy(output, target)

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """Accuracy: the fraction of right answers."""
        return (output.argmax(-1) == target).double().mean()


class RegressionTask:
    """Loss and quality of tasks whose answer is a vector or a number."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return (output - target).square().mean()

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """R^2: the fraction of the target's variance that the output explains."""
        left = (output - target).double().square().mean()
        return 1 - left / (target - target.mean(0)).double().square().mean()
