"""`Stream`: live data, scored point by point."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from regard.recipes.anomaly.judging import fitted, softmax_sums
from regard.recipes.anomaly.windows import smoothing
from regard.recipes.estimator import RecipeError

if TYPE_CHECKING:
    from regard.recipes.anomaly.detector import AnomalyDetector


class Streamed(NamedTuple):
    """The answer to a point of live data.

    Attributes:
        score: the mean over the windows that end at the last points; NaN until the first window is full.
        alarm: whether it is above the detector's `stream_threshold_`.
    """

    score: float
    alarm: bool


class Stream:
    """Live data of one source.

    The window that ends at the newest point attends to the windows that the detector kept from its training. No
    later point is waited for. A missing value takes the channel's last one.

    Args:
        detector: a trained detector.
    """

    def __init__(self, detector: AnomalyDetector) -> None:
        detector.check_fitted()
        self.model, self.scale = detector.model_, detector.scale_
        self.threshold = detector.stream_threshold_
        self.points: deque[np.ndarray] = deque(maxlen=detector.window)
        self.recent: deque[float] = deque(maxlen=smoothing(detector.smooth, detector.length_))
        self.device, self.totals = detector.chosen_device(), None
        if detector.reading == "density":
            self.totals = softmax_sums(self.model, fitted(self.model))

    def add(self, point: Any) -> Streamed:
        """Score one more point: a number, or one for each channel.

        Raises:
            RecipeError: it has another number of channels than the training, is infinite, or is missing at the start.
        """
        self.points.append(self.checked(point))
        if len(self.points) < (self.points.maxlen or 0):
            return Streamed(math.nan, False)
        window = torch.from_numpy(np.stack(self.points).astype(np.float32)).reshape(1, -1)
        self.recent.append(self.judged(window.to(self.device)))
        score = math.fsum(self.recent) / len(self.recent)
        return Streamed(score, score > self.threshold)

    @torch.no_grad()
    def judged(self, window: torch.Tensor) -> float:
        """The score of one window."""
        if self.totals is None:
            return float(self.model(window, self.model.memory, None).mean())
        return -float(self.model.received(window, self.model.memory, self.totals, None))

    def checked(self, point: Any) -> np.ndarray:
        """The point (C,) in standardised units, its gaps filled."""
        mean, spread = self.scale
        try:
            found = np.asarray(point, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            raise RecipeError(f"a point must be of numbers, got {point!r}") from None
        if found.shape != mean.shape:
            raise RecipeError(
                f"a point must have {len(mean)} numbers, one for each channel, got {len(found)}"
            )
        if np.isinf(found).any():
            raise RecipeError(f"a point must be finite, or NaN where it is missing, got {point!r}")
        found = (found - mean) / spread
        gaps = np.isnan(found)
        if gaps.any():
            if not self.points:
                raise RecipeError(
                    "the first point of a stream must be whole: nothing fills its gaps"
                )
            found[gaps] = self.points[-1][gaps]
        return found
