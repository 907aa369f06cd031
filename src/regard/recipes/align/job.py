"""The training: neighbourhood component analysis on soft-DTW, validated by leaving one series out.

In a batch, each series asks all others which class it has: attention with the negative soft-DTW costs as its scores and
classes as values. The loss is the negative logarithm of the weight on series of its own class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from regard.recipes.align.data import in_turn
from regard.recipes.align.net import StepScore
from regard.recipes.align.warping import resampled, soft_costs
from regard.recipes.training import Job

TEMPERATURE = 0.1  # of the weights over series, in units of a typical cost of a step
HIDDEN = -1e9  # in the place of the score of a series with itself


class AlignJob(Job):
    """The training of a network of costs.

    Args:
        model: what is trained.
        inputs: (I, T) of every training series.
        y: their classes as numbers.
        sizes: series in a batch, and steps that they are resampled to.
        soft: gamma of soft-DTW, and the window.
        seed: of the order.
        judge: quality of the model; greater is better.
    """

    def __init__(
        self,
        model: StepScore,
        inputs: list[Tensor],
        y: Tensor,
        sizes: tuple[int, int],
        soft: tuple[float, float],
        seed: int,
        judge: Callable[[StepScore], float],
    ) -> None:
        self.model = self.network = model
        self.inputs, self.y, self.judge, self.seed = inputs, y, judge, seed
        self.size, steps = sizes
        self.gamma, self.window = soft
        self.steps = min(steps, max(one.shape[1] for one in inputs))

    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.inputs) // self.size)

    def batches(self, epoch: int) -> Iterator[np.ndarray]:
        """All series in batches of almost equal size, each with classes in their shares."""
        order = in_turn(self.y.cpu().numpy(), (self.seed, epoch))
        return iter(np.array_split(order, self.steps_per_epoch()))

    def loss(self, batch: np.ndarray) -> Tensor:
        """The negative logarithm of the weight on series of the same class, a mean over those that have one."""
        model = self.network
        features = torch.stack(
            [resampled(model(self.inputs[n][None])[0], self.steps) for n in batch]
        )
        rows, columns = np.triu_indices(len(batch), 1)
        costs = model.cost(features[rows], features[columns])
        means = soft_costs(costs, self.gamma, self.window) / self.steps
        scores = means.new_zeros(len(batch), len(batch)).index_put(
            (torch.as_tensor(rows), torch.as_tensor(columns)), -means
        )
        scores = (scores + scores.mT) * model.sharpness.exp() / TEMPERATURE
        y = self.y[torch.as_tensor(batch, device=self.y.device)]
        itself = torch.eye(len(batch), dtype=torch.bool, device=y.device)
        alike = (y[:, None] == y) & ~itself
        logs = scores.masked_fill(itself, HIDDEN).log_softmax(1)
        own = logs.masked_fill(~alike, HIDDEN).logsumexp(1)
        asked = alike.any(1)
        # A batch in which no class has two series teaches nothing; its gradient is 0.
        return -(own * asked).sum() / asked.sum().clamp(min=1)

    def validate(self, model: nn.Module) -> float:
        """Accuracy of the nearest of the other series, in percent."""
        assert isinstance(model, StepScore)
        return self.judge(model)
