"""Windows of a series, and from scores of windows to scores of points.

Shape legend: T points, C channels, W points of a window, M = T - W + 1 windows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

STEPS = 16  # windows are judged every W / 16 points; scores between are interpolated


def standardised(values: np.ndarray, scale: tuple[np.ndarray, np.ndarray]) -> Tensor:
    """The series (T, C) with mean and deviation of each channel taken out, in float32."""
    mean, spread = scale
    return torch.from_numpy(((values - mean) / spread).astype(np.float32))


def scale_of(series: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each channel over all points; the deviation of a constant channel is 1."""
    values = np.concatenate(series)
    spread = values.std(0)
    # A constant's deviation is rounding alone, some 1e-16 of it, and not a scale.
    return values.mean(0), np.where(spread > 1e-12 * np.abs(values).max(0), spread, 1.0)


def windows_of(values: Tensor, width: int) -> Tensor:
    """All windows (M, W, C) of a series (T, C), as a view: copied, they would take W times the memory of the series."""
    return values.unfold(0, width, 1).transpose(1, 2)


def rows_of(windows: Tensor, index: Tensor | slice) -> Tensor:
    """Some of the windows, each as one row: (B, W * C)."""
    return windows[index].flatten(1)


def judged(count: int, width: int) -> np.ndarray:
    """Which of so many windows are judged: one every `width / STEPS` points, and the last."""
    found = np.arange(0, count, max(width // STEPS, 1))
    return found if found[-1] == count - 1 else np.append(found, count - 1)


def to_points(
    scores: np.ndarray, width: int, smooth: int = 1, trailing: bool = False
) -> np.ndarray:
    """Scores (T,) of points from those of all windows (M,).

    A point has the mean over the windows that hold it, which is then averaged over `smooth` points around it.
    Trailing scores are those of live data: the mean over the windows that end at the last `smooth` points.

    Args:
        scores: of all windows, by their first point.
        width: of a window.
        smooth: points of the moving mean.
        trailing: look at no point after the one that is scored; points before the first window get its score.
    """
    if trailing:
        return np.concatenate([np.full(width - 1, scores[0]), moving_mean(scores, smooth - 1, 0)])
    # The windows that hold point t begin at t - W + 1 to t; at both ends there are fewer.
    padded = np.concatenate([scores, np.full(width - 1, np.nan)])
    return moving_mean(moving_mean(padded, width - 1, 0), smooth // 2, (smooth - 1) // 2)


def moving_mean(values: np.ndarray, left: int, right: int) -> np.ndarray:
    """The mean over `left` entries before to `right` after each one, of those that exist and are numbers."""
    there = ~np.isnan(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(there, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(there)])
    places = np.arange(len(values))
    first, last = np.maximum(places - left, 0), np.minimum(places + right + 1, len(values))
    return (sums[last] - sums[first]) / np.maximum(counts[last] - counts[first], 1)


def smoothing(smooth: float, length: int) -> int:
    """The points of the moving mean: `smooth` itself, or that share of the length where it is below 1."""
    return max(round(smooth * length) if smooth < 1 else int(smooth), 1)
