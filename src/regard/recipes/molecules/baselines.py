"""Baselines without attention: scikit-learn's random forests on descriptors and on fingerprints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from regard.measuring.clock import worked
from regard.recipes.datasets import Dataset, Part
from regard.recipes.kit import Evaluated
from regard.recipes.metrics import RMSE
from regard.recipes.molecules.ranking import ROC_AUC


def run_forest(
    data: Dataset,
    inputs: Callable[[Sequence[str]], np.ndarray],
    classify: bool,
    setting: Mapping[str, Any],
    seed: int,
) -> Evaluated:
    """Train a forest on the training rows and evaluate it.

    Times are those of the forest: inputs are computed once for all rows, by RDKit.
    """
    kind: Any = RandomForestClassifier if classify else RandomForestRegressor
    forest = kind(random_state=seed, n_jobs=1, **setting)
    x = {id(part): inputs(part.x) for part in (data.train, data.validation, data.test)}

    def statistics(part: Part) -> np.ndarray:
        if classify:
            return np.stack([np.asarray(part.y), forest.predict_proba(x[id(part)])[:, 1]], 1)
        return (forest.predict(x[id(part)]) - part.y)[:, None] ** 2

    begun = worked()
    forest.fit(x[id(data.train)], data.train.y)
    trained = worked()
    tested = statistics(data.test)
    ended = worked()
    metric = ROC_AUC if classify else RMSE
    return Evaluated(
        metric.value(statistics(data.validation)), tested, 0, trained - begun, ended - trained
    )
