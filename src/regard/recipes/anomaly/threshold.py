"""A threshold with a stated false-alarm rate."""

from __future__ import annotations

import math

import numpy as np

from regard.recipes.estimator import RecipeError


def calibrated(scores: np.ndarray, rate: float) -> float:
    """The threshold that at most a share `rate` of points like these is above.

    It is the order statistic of split conformal prediction: of n + 1 scores that could as well have come in any other
    order, the last is above the k-th least of the others, k = ceil((n + 1) (1 - rate)), with a chance of at most
    `rate`. Points of a series depend on their neighbours, so that alarms come in groups: the rate is one over a long
    time. Anomalies among the scores raise the threshold, so that there are fewer alarms than stated.

    Raises:
        RecipeError: the scores are too few for such a rate.
    """
    rank = math.ceil((len(scores) + 1) * (1 - rate))
    if rank > len(scores):
        raise RecipeError(
            f"false_alarms={rate:g} needs {math.ceil(1 / rate) - 1} points to calibrate on, got {len(scores)}: give "
            "more points or a greater rate"
        )
    return float(np.sort(scores)[rank - 1])
