"""What every synthetic task has in common: its protocol, its losses, and the seeds it draws with.

B examples in a batch, n classes.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

# Data is drawn with seeds from here on: with those of the parameters, which start at 0, the first
# model would begin as the very numbers of its first examples.
DATA_SEEDS = 5 * 10**8
# Added to the seed of what a task draws once for its world, as random maps. Data and parameters
# have smaller seeds, and would otherwise come from the very same numbers.
WORLD_SEEDS = 10**9


class SyntheticTask(Protocol):
    """Something to learn: what goes in, what should come out, how good an answer is."""

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """`count` examples: the inputs of the model, and last the target."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """What training lowers: one number."""

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """What is reported, one number, more is better: an accuracy, or R^2."""


class ClassificationTask:
    """Loss and quality of tasks whose answer is one of several: logits (B, n), target (B,)."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy."""
        return nn.functional.cross_entropy(output, target)

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """Share of right answers."""
        return (output.argmax(-1) == target).double().mean()


class RegressionTask:
    """Loss and quality of tasks whose answer is a vector or a number."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return (output - target).square().mean()

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """R^2: the share of the variance that is explained."""
        left = (output - target).double().square().mean()
        return 1 - left / (target - target.mean(0)).double().square().mean()
