"""Other distances, by aeon, each with its own settings chosen by leaving one training series out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from regard.measuring.clock import worked
from regard.recipes.align.warping import elastic_distances
from regard.recipes.align.windows import WINDOWS, left_out_accuracy
from regard.recipes.datasets import Dataset
from regard.recipes.fingerprint import fingerprint
from regard.text import Text


class ElasticDistance(NamedTuple):
    """A distance of aeon: its name there, its title, and what is tried: as many settings as DTW has windows."""

    method: str
    title: Text
    tried: tuple[Mapping[str, Any], ...]


WIDE = 0.2  # window of MSM and TWE, which decides little: their costs punish warping by themselves
# The grids of MSM and TWE span those that Lines and Bagnall (2015) search.
DISTANCES = {
    "euclid": ElasticDistance("dtw", Text("Euclid", "欧氏距离"), ({"window": 0.0},)),
    "dtw": ElasticDistance("dtw", Text("DTW", "DTW"), ({"window": 1.0},)),
    "dtw window": ElasticDistance(
        "dtw", Text("DTW, chosen window", "DTW（选定窗口）"), tuple({"window": one} for one in WINDOWS)
    ),
    "msm": ElasticDistance(
        "msm", Text("MSM", "MSM"),
        tuple({"c": one, "window": WIDE} for one in (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0, 100.0)),
    ),
    "twe": ElasticDistance(
        "twe", Text("TWE", "TWE"),
        tuple(
            {"nu": nu, "lmbda": lmbda, "window": WIDE}
            for nu, lmbda in itertools.product((0.00001, 0.001, 0.1, 1.0), (0.0, 0.05, 0.1))
        ),
    ),
}  # fmt: skip
DTW_RN = "dtw window"  # the archive's DTW_Rn


class SetResult(NamedTuple):
    """What a method did on one set.

    Attributes:
        left_out: accuracy on the training series, each judged by the others, in percent.
        right: whether each test series got its class.
        setting: that was chosen.
        parameters: of a network; 0 for a distance.
        seconds: of choosing or training, and of predicting.
    """

    left_out: float
    right: np.ndarray
    setting: Mapping[str, Any]
    parameters: int
    seconds: tuple[float, float]


COMPUTED: dict[tuple[str, str], SetResult] = {}


def by_distance(data: Dataset, name: str) -> SetResult:
    """A distance on a set. Nothing in it is random, so that one process computes it once for all seeds."""
    key = fingerprint(data), name
    if key not in COMPUTED:
        COMPUTED[key] = computed(data, DISTANCES[name])
    return COMPUTED[key]


def computed(data: Dataset, distance: ElasticDistance) -> SetResult:
    """Choose the setting on the training series, the first of equal ones, and predict the test series."""
    y, begun = np.asarray(data.train.y), worked()
    best, chosen = -1.0, distance.tried[0]
    for setting in distance.tried:
        found = left_out_accuracy(
            elastic_distances(data.train.x, None, distance.method, **setting), y
        )
        if found > best:
            best, chosen = found, setting
    trained = worked()
    nearest = elastic_distances(data.test.x, data.train.x, distance.method, **chosen).argmin(1)
    seconds = trained - begun, worked() - trained
    return SetResult(best, y[nearest] == np.asarray(data.test.y), chosen, 0, seconds)
