"""`fit_and_evaluate`: one run of a comparison, the same for every recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.measuring.clock import worked
from regard.recipes.datasets import Dataset
from regard.recipes.estimator import Recipe
from regard.recipes.kit import Evaluated

if TYPE_CHECKING:
    import numpy as np


class ShareDone:
    """Training progress as one number: tells a function the share of steps that are done, 0 to 1."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self.report, self.steps, self.done = report, 1, 0

    def start(self, steps: int, done: int) -> None:
        """A training begins."""
        self.steps, self.done = max(steps, 1), done

    def step(self, loss: Callable[[], float]) -> None:
        """One more step is done. The loss is not read: reading it would make the device wait."""
        self.done += 1
        self.report(self.done / self.steps)

    def validated(self, epoch: int, quality: float, best: float) -> None:
        """A validation has nothing to report."""


def fit_and_evaluate(
    model: Recipe,
    data: Dataset,
    report: Callable[[float], None] = lambda share: None,
    checkpoint: Path | None = None,
    statistics: Callable[[Any, Any], np.ndarray] | None = None,
) -> Evaluated:
    """Train an estimator on a set, and evaluate it on the validation and test parts.

    `extra` has the number of epochs and the best one; recipes add their own. `statistics` takes the place of the
    estimator's, for a recipe that keeps the predictions of the test rows, too.
    """
    model.fit_dataset(data, progress=ShareDone(report), checkpoint=checkpoint)
    device = model.chosen_device()
    begun = worked(device)
    found = (statistics or model.statistics)(data.test.x, data.test.y)
    seconds = worked(device) - begun
    history = model.history_
    report(1.0)
    return Evaluated(
        model.score_part(data.validation),
        found,
        sum(one.numel() for one in model.model_.parameters()),
        history.seconds,
        seconds,
        {
            "epochs": len(history.losses),
            "best_epoch": history.best_epoch,
            "stopped": history.stopped,
        },
    )
