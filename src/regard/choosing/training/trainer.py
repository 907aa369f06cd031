"""Trains one candidate from one seed at one learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import Score
from regard.choosing.training.chance import which_key
from regard.choosing.training.data import Batch, DataParts
from regard.choosing.training.intervals import row_record
from regard.choosing.training.metrics import Goal, Measure, extras_of
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
        scaled_target: standardised data has standardised float targets too; the metric gets them as they
            were. Not so for relevances, or with a loss of the user's own, which may need real units.
    """

    build: Callable[[Score], nn.Module]
    goal: Goal
    steps: int
    batch: int
    device: torch.device
    stop: Callable[[], bool] = lambda: False
    scaled_target: bool = False


class Training:
    """One training run, which `advance` continues up to a step."""

    def __init__(
        self, job: TrainingJob, make: Callable[[], Score], parts: DataParts, seed: int, rate: float
    ) -> None:
        self.job, self.parts = job, parts
        self.target_scale = parts.target_scale if job.scaled_target else None
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
        scale = self.target_scale
        target = target if scale is None else scale.into(target)
        loss = self.job.goal.loss(self.model(*inputs), target)
        if not isinstance(loss, Tensor) or loss.ndim != 0:
            raise ValueError(f"the loss must be a scalar tensor, got {describe(loss)}")
        loss.backward()
        self.optimiser.step()

    def quality(self, batches: list[Batch]) -> float:
        """The metric on held-out batches, computed over all of them together."""
        output, target = self.answers(batches)
        return quality_of(output, target, self.job.goal.metric)

    def answers(self, batches: list[Batch]) -> tuple[Tensor, Tensor]:
        """Outputs of the model on batches, in the scale of the targets, and the targets."""
        output, target = outputs_on(self.model, batches, self.job.device)
        scale = self.target_scale
        return (output if scale is None else scale.back(output)), target

    @torch.no_grad()
    def row_record(self, parts: DataParts) -> dict[str, Any] | None:
        """The quality on resampled test rows and further metrics, as plain JSON; None if it diverged."""
        output, target = self.answers(parts.test)
        goal = self.job.goal
        if quality_of(output, target, goal.metric) == DIVERGED:
            return None
        found = row_record(output, parts.test, goal.metric, parts.test_groups)
        extras = extras_of(goal.metric, output, target, which_key(self.job.build))
        return {**found, "extras": extras}


def built(job: TrainingJob, make: Callable[[], Score]) -> nn.Module:
    """A new model with a fresh score, on the job's device."""
    model = job.build(make())
    if not isinstance(model, nn.Module):
        raise TypeError(f"build_model must return an nn.Module, got {describe(model)}")
    return model.to(job.device)


@torch.no_grad()
def outputs_on(
    model: nn.Module, batches: list[Batch], device: torch.device
) -> tuple[Tensor, Tensor]:
    """The outputs of a model in evaluation mode, and the targets, over all batches."""
    training = model.training
    model.eval()
    outputs, targets = [], []
    for batch in batches:
        *inputs, target = (x.to(device) for x in batch)
        outputs.append(model(*inputs))
        targets.append(target)
    model.train(training)
    return torch.cat(outputs), torch.cat(targets)


@torch.no_grad()
def quality_of(output: Tensor, target: Tensor, metric: Measure) -> float:
    """The metric of outputs; `DIVERGED` if it is not finite."""
    # Some metrics hide NaN: `argmax` of a row of NaNs is 0, which may be the right class.
    if bool(output.isnan().any()):
        return DIVERGED
    found = float(metric(output, target))
    return found if math.isfinite(found) else DIVERGED


def evaluation_steps(steps: int, count: int) -> list[int]:
    """Steps at which to evaluate: evenly spread, including the last."""
    return sorted({max(round(steps * (i + 1) / count), 1) for i in range(count)})
