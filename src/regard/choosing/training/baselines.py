"""Models without attention on the same parts of the data, from scikit-learn.

A score that does not beat them brings nothing: the answer then is not a kind of attention. Each is tuned on the
validation part over a few settings, and reported on the test part. N rows, n keys of a row, C classes.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.choosing.training.chance import which_key
from regard.choosing.training.data import Data, DataParts, RowData, parts_of
from regard.choosing.training.features import TabularPart, fewer, tabular
from regard.choosing.training.intervals import row_replicates
from regard.choosing.training.metrics import Goal
from regard.choosing.training.rows import BaselineRow
from regard.choosing.training.stages import SEARCH_SEED, Settings
from regard.choosing.training.trainer import DIVERGED, quality_of
from regard.measuring.machine import calm_threads
from regard.text import Text

Predict = Callable[[TabularPart], Tensor]
Fit = Callable[[TabularPart], Predict]
TUNING_ROWS = 1000  # validation rows that settings are chosen by
NEVER = -30.0  # log probability of a class that is not in the training part
# Boosting looks at rows x features x classes numbers for each tree; this many in all take some seconds. It gets
# fewer trees, then fewer rows, until they suffice; with fewer rows than these it is left out.
BOOSTING, MOST_TREES, FEWEST_TREES, FEWEST_ROWS = 2e8, 100, 30, 300


@dataclass(frozen=True)
class Baseline:
    """A kind of model with the settings that are tried."""

    name: Text
    settings: Sequence[Fit]


def baseline_rows(
    data: Data, goal: Goal, build: Callable[..., Any], settings: Settings, until: float
) -> list[dict[str, Any]]:
    """The results as plain JSON, one for each kind of model; empty where none applies.

    Args:
        data: the user's data.
        goal: the metric.
        build: builds the model of the candidates; it tells whether a key is picked by its score.
        settings: settings of the comparison.
        until: when to stop, in seconds of `time.time()`; what is unfinished then is left out.
    """
    if importlib.util.find_spec("sklearn") is None:
        return []
    drawn = callable(data)
    found: dict[str, BaselineRow] = {}
    from threadpoolctl import threadpool_limits

    # With more threads than free cores the trees wait for one another, up to 20 times longer.
    with warnings.catch_warnings(), threadpool_limits(calm_threads()):
        # Tuning decides whether a model is good; that it has not converged is no news to the user.
        warnings.simplefilter("ignore")
        for seed in settings.seeds if drawn else settings.seeds[:1]:
            parts = parts_of(data, seed if drawn else SEARCH_SEED, settings.standardize)
            add_seed(found, parts, goal, which_key(build), seed, until)
    rows = []
    for row in found.values():
        if not drawn:
            # These models have no seed: the result on data that all seeds share is the same for all.
            row.quality = dict.fromkeys(settings.seeds, next(iter(row.quality.values())))
            first = next(iter(row.replicates.values()))
            row.replicates = dict.fromkeys(settings.seeds, first)
        if len(row.quality) == len(settings.seeds):
            rows.append(plain(row))
    return rows


def plain(row: BaselineRow) -> dict[str, Any]:
    """A row as plain JSON, which a storage can keep."""
    return {
        "name": list(row.name),
        "quality": {str(seed): value for seed, value in row.quality.items()},
        "replicates": {str(seed): value for seed, value in row.replicates.items()},
        "seconds": round(row.seconds, 3),
    }


def kept_rows(kept: Iterable[dict[str, Any]], seeds: Sequence[int]) -> list[BaselineRow]:
    """The rows from what a storage keeps, with the seeds that all finalists have."""
    return [
        BaselineRow(
            Text(*one["name"]),
            {seed: one["quality"][str(seed)] for seed in seeds},
            {seed: one["replicates"][str(seed)] for seed in seeds},
            one["seconds"],
        )
        for one in kept
    ]


def add_seed(
    found: dict[str, BaselineRow],
    parts: DataParts,
    goal: Goal,
    match: bool,
    seed: int,
    until: float,
) -> None:
    """Train every kind of model on the data of one seed, and add its results."""
    if not isinstance(parts.train, RowData):
        return
    train, validation, test = (
        tuple(torch.cat(column) for column in zip(*batches, strict=True))
        for batches in (parts.train.batches(), parts.validation, parts.test)
    )
    validation = fewer(validation, TUNING_ROWS)
    tables = tabular((train, validation, test), match)
    if tables is None:
        return
    for one in baselines(tables[0]):
        began = time.time()
        best = tuned(one, tables, validation[-1], goal, until)
        if best is None:
            continue
        output = best(tables[2])
        value = quality_of(output, test[-1], goal.metric)
        if value <= DIVERGED:
            continue
        row = found.setdefault(one.name.en, BaselineRow(one.name))
        row.quality[seed] = value
        row.replicates[seed] = row_replicates(output, test[-1], goal.metric, parts.test_groups)
        row.seconds += time.time() - began


def tuned(
    one: Baseline, tables: Sequence[TabularPart], target: Tensor, goal: Goal, until: float
) -> Predict | None:
    """The setting that is best on the validation part; None if there was time for none."""
    best, level = None, -np.inf
    for fit in one.settings:
        if time.time() > until:
            break
        predict = fit(tables[0])
        value = quality_of(predict(tables[1]), target, goal.metric)
        if value > level:
            best, level = predict, value
    return best


def baselines(train: TabularPart) -> list[Baseline]:
    """The kinds of models for data of this kind, the quickest first."""
    linear = [fitted(model, train.kind) for model in linear_models(train.kind)]
    if train.pairs:
        near = [nearest_key(cosine) for cosine in (True, False)] if train.alike else []
        found = [Baseline(Text("nearest key", "最近的键"), near)]
        name = Text("ridge regression on each key", "逐键岭回归")
        if train.kind == "right":
            name = Text("logistic regression on each key", "逐键逻辑回归")
    elif train.tagged is not None:
        found = []
        name = Text(
            "logistic regression on each position and its neighbours",
            "逐位置（含邻近位置）逻辑回归",
        )
    else:
        near = [fitted(model, train.kind) for model in neighbour_models(train)]
        found = [Baseline(Text("nearest neighbours", "最近邻"), near)]
        name = Text("ridge regression", "岭回归")
        if train.kind == "classes":
            name = Text("logistic regression", "逻辑回归")
    found.append(Baseline(name, linear))
    found.append(Baseline(Text("gradient boosting", "梯度提升"), boosting_models(train)))
    return [one for one in found if one.settings]


def linear_models(kind: str) -> list[Callable[[], Any]]:
    """Linear models with three strengths of regularisation."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if kind in ("classes", "right"):
        return [lambda c=c: LogisticRegression(C=c, max_iter=150, tol=1e-3) for c in (0.01, 1, 100)]
    return [lambda a=a: Ridge(alpha=a) for a in (0.1, 10, 1000)]


def neighbour_models(train: TabularPart) -> list[Callable[[], Any]]:
    """Nearest neighbours, 1 to 25 of them."""
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

    kind = KNeighborsClassifier if train.kind == "classes" else KNeighborsRegressor
    return [lambda k=k: kind(k) for k in (1, 5, 25) if k <= len(train.features)]


def boosting_models(train: TabularPart) -> list[Fit]:
    """Gradient boosted trees, two rates for small data; as many trees and rows as take seconds."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    several = train.kind == "numbers" and train.answers.ndim > 1 and train.answers.shape[1] > 1
    if several or train.tokens:  # it gives one number, and takes those of tokens for amounts
        return []
    classes = len(np.unique(train.answers)) if train.kind == "classes" else 1
    count, columns = train.features.shape
    wide = columns * (classes if classes > 2 else 1)
    trees = int(min(max(BOOSTING / (count * wide), FEWEST_TREES), MOST_TREES))
    rows = int(BOOSTING / (trees * wide))
    if rows < FEWEST_ROWS:
        return []
    regress = train.kind in ("numbers", "relevance")
    kind = HistGradientBoostingRegressor if regress else HistGradientBoostingClassifier
    options = {"max_iter": trees, "random_state": 0, "early_stopping": False, "max_leaf_nodes": 15}
    rates = (0.03, 0.1) if rows >= count else (0.1,)
    makes = [lambda r=r: kind(learning_rate=r, **options) for r in rates]
    return [fitted(make, train.kind, rows) for make in makes]


def fitted(make: Callable[[], Any], kind: str, most: int | None = None) -> Fit:
    """A function that fits a model on standardised features, and gives one that predicts outputs.

    Args:
        make: makes a model of scikit-learn.
        kind: kind of the answers, see `TabularPart`.
        most: number of rows to fit on at most; default all.
    """

    def fit(train: TabularPart) -> Predict:
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        first = OneHotEncoder(handle_unknown="ignore") if train.tokens else StandardScaler()
        model = make_pipeline(first, make())
        features, answers = train.features, train.answers
        if most is not None and most < len(features):
            rows = np.random.default_rng(0).permutation(len(features))[:most]
            features, answers = features[rows], answers[rows]
        # One number for each row is a column in the data, and a plain list for scikit-learn.
        single = answers.ndim == 2 and answers.shape[1] == 1
        model.fit(features, answers.reshape(-1) if single else answers)

        def predict(part: TabularPart) -> Tensor:
            if train.pairs:
                if kind == "relevance":
                    return part.by_key(np.asarray(model.predict(part.features)))
                return part.by_key(model.predict_proba(part.features)[:, 1])
            if kind != "classes":
                told = torch.as_tensor(model.predict(part.features)).float()
                return told.reshape(len(told), *train.answers.shape[1:])
            told = np.full((len(part.features), part.classes), NEVER)
            share = np.clip(model.predict_proba(part.features), 1e-12, None)
            told[:, model.classes_.astype(int)] = np.log(share)
            return part.by_position(told)

        return predict

    return fit


def nearest_key(cosine: bool) -> Fit:
    """Picks the key that is nearest to the query, by angle or by distance; nothing is fitted."""

    def fit(train: TabularPart) -> Predict:
        def predict(part: TabularPart) -> Tensor:
            query, key = part.query.unsqueeze(1), part.key
            if cosine:
                near = torch.cosine_similarity(query, key, dim=-1)
            else:
                near = -(query - key).square().sum(-1)
            return part.by_key(near.numpy())

        return predict

    return fit
