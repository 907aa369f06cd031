"""Trains one candidate from one seed at one learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard import Score
from regard.choosing.training.data import Batch, DataParts
from regard.choosing.training.metrics import Goal, Measure
from regard.describe import describe

# The quality of a training that diverged: worse than any metric, but finite, since some storages cannot
# hold infinities.
DIVERGED = -1e30


class Stopped(Exception):
    """The time limit was reached."""


@dataclass(frozen=True)
class TrainingJob:
    """How to train: the settings that all candidates share.

    Attributes:
        build: builds the model from a score.
        goal: the loss and the metric.
        steps: steps of Adam, during which the rate falls to 0 along a cosine.
        batch: rows per step.
        device: where to train.
        stop: whether to stop, because the time limit was reached.
    """

    build: Callable[[Score], nn.Module]
    goal: Goal
    steps: int
    batch: int
    device: torch.device
    stop: Callable[[], bool] = lambda: False


class Training:
    """One training run, which `advance` continues up to a step."""

    def __init__(
        self, job: TrainingJob, make: Callable[[], Score], parts: DataParts, seed: int, rate: float
    ) -> None:
        self.job, self.parts = job, parts
        torch.manual_seed(seed)
        self.model = built(job, make)
        weights = [p for p in self.model.parameters() if p.requires_grad]
        if not weights:
            raise ValueError("build_model gave a model without parameters: nothing can be trained")
        # Fused: one kernel for all weights. Models are small, so most of a step is call overhead.
        fused = job.device.type in ("cpu", "cuda")
        self.optimiser = torch.optim.Adam(weights, lr=rate, fused=fused)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimiser, job.steps)
        self.batches: Iterator[Batch] = parts.train.draw(job.batch, seed)
        self.step = 0

    def advance(self, until: int) -> None:
        """Train up to a step.

        Raises:
            Stopped: the time limit was reached.
        """
        self.model.train()
        while self.step < until:
            if self.job.stop():
                raise Stopped
            self.once(next(self.batches))
            self.schedule.step()
            self.step += 1

    def once(self, batch: Batch) -> None:
        """Do one step of training on a batch."""
        *inputs, target = (x.to(self.job.device) for x in batch)
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.job.goal.loss(self.model(*inputs), target)
        if not isinstance(loss, Tensor) or loss.ndim != 0:
            raise ValueError(f"the loss must be a scalar tensor, got {describe(loss)}")
        loss.backward()
        self.optimiser.step()

    def quality(self, batches: list[Batch]) -> float:
        """The metric on held-out batches, computed over all of them together."""
        return measured(self.model, batches, self.job.goal.metric, self.job.device)


def built(job: TrainingJob, make: Callable[[], Score]) -> nn.Module:
    """A new model with a fresh score, on the job's device."""
    model = job.build(make())
    if not isinstance(model, nn.Module):
        raise TypeError(f"build_model must return an nn.Module, got {describe(model)}")
    return model.to(job.device)


@torch.no_grad()
def measured(
    model: nn.Module, batches: list[Batch], metric: Measure, device: torch.device
) -> float:
    """The metric of a model in evaluation mode; `DIVERGED` if it is not finite."""
    training = model.training
    model.eval()
    outputs, targets = [], []
    for batch in batches:
        *inputs, target = (x.to(device) for x in batch)
        outputs.append(model(*inputs))
        targets.append(target)
    model.train(training)
    output = torch.cat(outputs)
    # Some metrics hide NaN: `argmax` of a row of NaNs is 0, which may be the right class.
    if bool(output.isnan().any()):
        return DIVERGED
    found = float(metric(output, torch.cat(targets)))
    return found if math.isfinite(found) else DIVERGED


def marks(steps: int, count: int) -> list[int]:
    """Steps at which to evaluate: evenly spread, including the last."""
    return sorted({max(round(steps * (i + 1) / count), 1) for i in range(count)})
