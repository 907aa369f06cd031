"""Average precision and VUS-PR of the scores of one series, both without point adjustment.

Point adjustment counts an anomaly as found whole where any of its points is; random scores then look good. Neither
measure here has it.
"""

from __future__ import annotations

import numpy as np
from sklearn.metrics import average_precision_score

from regard.recipes.anomaly.series import UNJUDGED
from regard.recipes.estimator import RecipeError
from regard.recipes.metrics import Metric
from regard.text import Text

LARGEST_BUFFER = 100  # points; of VUS, as in the package of its authors
THRESHOLDS = 250  # likewise


def mean_precision(statistics: np.ndarray) -> float:
    """The mean of the first statistic, the average precision of a series."""
    return float(statistics[:, 0].mean())


AVERAGE_PRECISION = Metric(
    "average_precision",
    Text("average precision", "平均精确率"),
    mean_precision,
    digits=3,
    bounds=(0.0, 1.0),
)


def judged_points(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores of the points that are judged.

    Raises:
        RecipeError: there is no anomaly among them, or nothing else, so that no measure is defined.
    """
    kept = labels != UNJUDGED
    found = labels[kept]
    if found.size == 0 or found.min() == found.max():
        what = "no anomaly" if not found.any() else "nothing but anomalies"
        raise RecipeError(
            f"a series has {what} among its {found.size} judged points: leave it out of x and y"
        )
    return found, scores[kept]


def measured(labels: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
    """Average precision (scikit-learn's) and VUS-PR of the scores of one series."""
    labels, scores = judged_points(labels, scores)
    return float(average_precision_score(labels, scores)), vus_pr(labels, scores)


def vus_pr(labels: np.ndarray, scores: np.ndarray, largest: int = LARGEST_BUFFER) -> float:
    """Volume under the surface of range-based precision and recall (Paparrizos et al., 2022).

    It is aeon's `range_pr_vus_score`, from cumulative sums in place of a loop over thresholds, which takes 50 times
    as long: the mean over buffers of the area under precision and recall, where labels fade out over each buffer.
    """
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    levels = ordered[np.linspace(0, len(scores) - 1, THRESHOLDS, dtype=np.int64)]
    # How many points are at or above each threshold: ties count whole.
    counts = np.searchsorted(-ordered, -levels, side="right")
    areas = []
    for buffer in range(largest + 1):
        soft = faded(labels, buffer)
        true = np.cumsum(soft[order])[counts - 1]
        total = (labels.sum() + soft.sum()) / 2
        peaks = np.sort([scores[a:b].max() for a, b in zip(*ranges(soft), strict=True)])
        seen = (len(peaks) - np.searchsorted(peaks, levels, side="left")) / len(peaks)
        recall = np.concatenate([[0.0], np.minimum(true / total, 1) * seen])
        precision = np.concatenate([[1.0], true / counts])
        areas.append(float(np.sum(np.diff(recall) * (precision[1:] + precision[:-1]) / 2)))
    return float(np.mean(areas))


def ranges(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First points of the anomalies, and the points after their last."""
    edges = np.diff(np.concatenate([[0], labels > 0, [0]]).astype(np.int64))
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)


def faded(labels: np.ndarray, buffer: int) -> np.ndarray:
    """Labels that fall off by a root over half a buffer on both sides of every anomaly."""
    found, half = labels.astype(np.float64), buffer // 2
    if buffer <= 1:
        return found
    for first, after in zip(*ranges(labels), strict=True):
        right = np.arange(after - 1, min(after - 1 + half, len(labels)))
        found[right] += np.sqrt(1 - (right - after + 1) / buffer)
        left = np.arange(max(first - half, 0), first)
        found[left] += np.sqrt(1 - (first - left) / buffer)
    return np.clip(found, 0, 1)
