"""Detectors without attention: Sub-PCA, the matrix profile, and the distance from the median.

Each gives scores to the windows of a series from this series alone, as a detector with `memory="own"` does; what is
made of these scores, by the moving means of `windows.py`, is the same for all.

Shape legend: T points, C channels, W points of a window, M = T - W + 1 windows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from regard.measuring.clock import worked
from regard.recipes.anomaly.measures import AVERAGE_PRECISION, measured
from regard.recipes.anomaly.windows import scale_of, smoothing, standardised, to_points, windows_of
from regard.recipes.datasets import Dataset, Part
from regard.recipes.kit import Evaluated

WindowScores = Callable[..., np.ndarray]
KEPT_VARIANCE = (
    1e-9  # components with a smaller share are rounding: dividing by it would make noise of it
)


def sub_pca(values: np.ndarray, window: int, removed: int) -> np.ndarray:
    """Principal components of the windows (Aggarwal, 2017): how far a window is from the bulk of them.

    Args:
        values: (T, C).
        window: W.
        removed: leading components whose part is taken out of a window before its squared length is its score; 0
            for the Mahalanobis distance over all of them, which is the Sub-PCA of TSB-AD up to a root.
    """
    windows = (
        windows_of(standardised(values, scale_of([values])), window).flatten(1).double().numpy()
    )
    spread = windows.std(0)
    windows = (windows - windows.mean(0)) / np.where(spread > 0, spread, 1.0)
    if not windows.any():
        return np.zeros(len(windows))
    found = PCA().fit(windows)
    parts, variance = found.transform(windows), found.explained_variance_
    if removed:
        return (parts[:, removed:] ** 2).sum(1)
    kept = variance > KEPT_VARIANCE * variance.sum()
    return (parts[:, kept] ** 2 / variance[kept]).sum(1)


def matrix_profile(values: np.ndarray, window: int, normalize: bool) -> np.ndarray:
    """The distance of each window to the nearest one of its series, by stumpy; the mean over channels."""
    import stumpy

    stump: Any = stumpy.stump  # a module and a function have this name

    columns = standardised(values, scale_of([values])).double().numpy().T
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A large number of values in `P`")  # of constant series
        each = [
            stump(np.ascontiguousarray(one), window, normalize=normalize)[:, 0] for one in columns
        ]
    return np.nan_to_num(np.mean(np.array(each, dtype=np.float64), axis=0), posinf=0.0)


def median_distance(values: np.ndarray, window: int) -> np.ndarray:
    """The distance of each point from the median of its series: a detector that knows nothing of time."""
    ready = standardised(values, scale_of([values])).double().numpy()
    return np.abs(ready - np.median(ready, axis=0)).mean(1)


class OnceScored:
    """Scores of windows, made once for each series and setting, with the seconds that it took.

    Args:
        method: from a series and a setting to scores of windows.
    """

    def __init__(self, method: WindowScores) -> None:
        self.method = method
        # The series is kept beside its scores, so that no other can get its id.
        self.known: dict[Any, tuple[np.ndarray, np.ndarray, float]] = {}

    def __call__(self, values: np.ndarray, own: Mapping[str, Any]) -> tuple[np.ndarray, float]:
        """Scores of the windows of a series, and the seconds that they took when they were made."""
        key = id(values), tuple(sorted(own.items()))
        if key not in self.known:
            begun = worked()
            scores = self.method(values, **own)
            self.known[key] = values, scores, worked() - begun
        _, scores, seconds = self.known[key]
        return scores, seconds


def run_baseline(
    data: Dataset,
    method: OnceScored,
    setting: Mapping[str, Any],
    seed: int,
    report: Callable[[float], None],
) -> Evaluated:
    """Score the series of a set and judge the scores.

    There is no training: each series is scored by itself. Times are those of all series of the test part.
    """
    own = {k: v for k, v in setting.items() if k != "smooth"}
    parts: list[Part] = [data.validation, data.test]
    total, done, found, seconds = sum(map(len, parts)), 0, [], 0.0
    for part in parts:
        rows, seconds = [], 0.0
        for values, labels in zip(part.x, part.y, strict=True):
            scores, taken = method(values, own)
            begun = worked()
            smooth = smoothing(setting["smooth"], len(values))
            points = to_points(scores, len(values) - len(scores) + 1, smooth)
            rows.append(measured(labels, points))
            seconds, done = seconds + taken + worked() - begun, done + 1
            report(done / total)
        found.append(np.array(rows))
    validation = AVERAGE_PRECISION.value(found[0])
    return Evaluated(validation, found[1], 0, 0.0, seconds, vus(found[1]))


def vus(statistics: np.ndarray) -> dict[str, float]:
    """VUS-PR as a further number of a run."""
    return {"VUS-PR": float(statistics[:, 1].mean())}
