"""What is chosen before training, by leaving one training series out: the window, and the share of slopes.

It is what the UCR archive does for its DTW with a chosen window, and takes the same accuracy: that of the nearest of
the other series.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from regard.measuring.clock import worked
from regard.recipes.align.net import TAPS, inputs_of, scale_of, selection
from regard.recipes.align.warping import nearest_left_out, point_distances
from regard.recipes.fingerprint import fingerprint_of

# Shares of the length. Half of the archive's best windows are at most 0.03.
WINDOWS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 1.0)
SLOPES = (0.0, 0.5, 1.0)  # shares of slopes in the cost that training starts from


class ChosenStart(NamedTuple):
    """Where training starts: the window, the share of slopes, and the seconds that choosing them took."""

    window: float
    slope: float
    seconds: float


STARTS: dict[tuple[str, str], ChosenStart] = {}


def left_out_accuracy(distances: np.ndarray, y: np.ndarray) -> float:
    """The share of series whose nearest other one has their class, in percent."""
    return 100 * float((y[nearest_left_out(distances)] == y).mean())


def points_at(x: list[np.ndarray], slope: float) -> list[np.ndarray]:
    """Points (T, E) whose squared distances are the cost that training starts from.

    Features that are the same at all steps, or 0, take time and change nothing.
    """
    scale, weights = scale_of(x), selection(len(x[0]), slope).double().numpy()[:-1, :, TAPS // 2]
    weights = weights[weights.any(1)]
    return [(weights @ inputs_of(one, scale)).T for one in x]


def chosen_start(
    x: list[np.ndarray], y: np.ndarray, window: float | None, slope: float | None
) -> ChosenStart:
    """Window and share of slopes: those that are given, and for None the best, the smaller of equal ones.

    First the window, with values alone; then the share of slopes with that window. Scores share the choice, which is
    made by squared distances, and a process makes it once for each set.
    """
    key = fingerprint_of(x, y), f"{window} {slope}"
    if key not in STARTS:
        begun = worked()
        if window is None:
            window = best({one: (points_at(x, slope or 0.0), one) for one in WINDOWS}, y)
        if slope is None:
            slope = best({one: (points_at(x, one), window) for one in SLOPES}, y)
        STARTS[key] = ChosenStart(float(window), float(slope), worked() - begun)
    return STARTS[key]


def best(tried: dict[float, tuple[list[np.ndarray], float]], y: np.ndarray) -> float:
    """The number whose points and window have the best accuracy."""
    found = {
        name: left_out_accuracy(point_distances(points, None, window), y)
        for name, (points, window) in tried.items()
    }
    return max(found, key=found.__getitem__)  # the first of equal ones
