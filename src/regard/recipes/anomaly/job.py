"""What `AnomalyDetector` gives to the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.recipes.anomaly.net import WindowNet
from regard.recipes.anomaly.windows import rows_of, windows_of
from regard.recipes.training import Job

STEPS = 50  # of an epoch
KEYS = 512  # windows of the memory at a step
HELD = 0.1  # share of each series, at its end, whose windows decide when to stop, if no other series do
HELD_DRAWS = 8  # batches of a validation


class WindowBatch(NamedTuple):
    """Windows of one series: those that ask, those that are asked, and which of these each may see."""

    asking: Tensor
    memory: Tensor
    allowed: Tensor


class WindowJob(Job):
    """The training of a detector: every window is explained from windows that share no point with it.

    No label is needed. A window that is left out of its own explanation cannot be copied, so that the residual
    falls only where alike windows find one another.

    Args:
        model: what is trained.
        series: (T, C) each, standardised, for training.
        held: the series whose residual decides when to stop; None for the ends of the others.
        size: windows that ask in a batch.
        seed: of the drawing.
    """

    model: WindowNet  # type: ignore[bad-override] - narrower

    def __init__(
        self,
        model: WindowNet,
        series: list[Tensor],
        held: list[Tensor] | None,
        size: int,
        seed: int,
    ) -> None:
        self.model, self.size, self.seed = model, size, seed
        self.width = model.shape.window
        self.windows = [windows_of(one, self.width) for one in series]
        self.own = held is None
        self.held_windows = [windows_of(one, self.width) for one in series if held is None]
        if held is not None:
            self.held_windows = [windows_of(one, self.width) for one in held]
        self.share = (1 - HELD) if self.own else 1.0

    def steps_per_epoch(self) -> int:
        """The same for series of any length."""
        return STEPS

    def batches(self, epoch: int) -> Iterator[WindowBatch]:
        """Batches from one series after the other, drawn by seed and epoch."""
        draw = np.random.default_rng((self.seed, epoch))
        for step in range(STEPS):
            windows = self.windows[(epoch * STEPS + step) % len(self.windows)]
            yield self.drawn(windows, draw, 0.0, self.share)

    def drawn(
        self, windows: Tensor, draw: np.random.Generator, first: float, last: float
    ) -> WindowBatch:
        """Windows that ask, from this part of a series, and windows that are asked, from all of it."""
        count = len(windows)
        low, high = int(first * count), max(int(last * count), 1)
        asking = torch.from_numpy(draw.integers(min(low, high - 1), high, self.size))
        asked = torch.from_numpy(draw.integers(0, count, min(KEYS, count)))
        allowed = (asking[:, None] - asked).abs() >= self.width
        return WindowBatch(
            rows_of(windows, asking), rows_of(windows, asked), allowed.to(windows.device)
        )

    def loss(self, batch: WindowBatch) -> Tensor:
        """The mean squared residual; without a gradient where weights are equal, for which the loop gets one of 0."""
        loss = self.model(*batch).mean()
        return loss if loss.requires_grad else loss + 0 * self.model.score.key_weight.sum()

    def validate(self, model: nn.Module) -> float:
        """The mean squared residual of windows that do not ask in training, the same ones each time, negated."""
        draw = np.random.default_rng((self.seed, 2**31))
        first = self.share if self.own else 0.0
        found = [
            model(*self.drawn(windows, draw, first, 1.0)).mean()
            for _ in range(-(-HELD_DRAWS // len(self.held_windows)))
            for windows in self.held_windows
        ]
        return -float(torch.stack(found).mean())
