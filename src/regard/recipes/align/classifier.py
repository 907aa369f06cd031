"""`SeriesAligner`: the cost of matching two steps of series, learned from classes, and DTW on it."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from regard import Score
from regard.recipes.align.alignment import SeriesAlignment, aligned
from regard.recipes.align.data import ARCHIVE, EMBEDDED, LeftOut
from regard.recipes.align.job import TEMPERATURE, AlignJob
from regard.recipes.align.net import SQUARED, StepScore, inputs_of, scale_of
from regard.recipes.align.series import (
    SeriesLayout,
    check_channels,
    check_layout,
    checked_one,
    checked_series,
    normalized,
    padded,
)
from regard.recipes.align.warping import (
    cost_distances,
    point_distances,
    resampled,
)
from regard.recipes.align.windows import chosen_start, left_out_accuracy
from regard.recipes.columns import one_kind
from regard.recipes.datasets import Dataset, Part
from regard.recipes.estimator import Recipe, RecipeError, checked_validation
from regard.recipes.metrics import ACCURACY
from regard.recipes.training import TrainingHistory, TrainingPlan, TrainingProgress, train


class SeriesAligner(Recipe):
    """Aligns series and classifies them by the nearest, by DTW on the cost that a score makes of two steps.

    Training starts from DTW with the window that is best on the training series, each left out in turn, and moves the
    features of steps so that series of one class come near each other under soft-DTW. Where that does not gain on the
    training series, the start is kept, and `learned_` is False.

    Args:
        score: a name such as "additive", a `Score`, or None for scaled dot, whose cost is the squared distance.
        window: how far a path may leave the diagonal, as a share of the length; None chooses it.
        slope: share of slopes beside values in the starting cost, 0 to 1; None chooses it.
        learn: False keeps the start: DTW itself for most scores.
        steps: series are resampled to at most so many steps for training. Of scores whose cost is no squared distance
            (additive, bilinear, GATv2, your own) for predictions too.
        gamma: softness of the path in training, in units of a typical cost of a step.
        normalize: give each channel of each series mean 0 and deviation 1 first.
        layout: of arrays: "aeon" (series, channels, steps), or "tslearn" (series, steps, channels).
        epochs: of training.
        rate: the largest learning rate.
        weight_decay: pulls towards the start.
        batch: series in a batch.
        validate_every: epochs between two looks at the accuracy.
        seed: of weights and order.
        device: None for the CPU, where DTW runs anyway.
    """

    name = "align"
    metric = ACCURACY

    def __init__(
        self,
        score: str | Score | None = None,
        window: float | None = None,
        slope: float | None = None,
        learn: bool = True,
        steps: int = 48,
        gamma: float = 0.1,
        normalize: bool = False,
        layout: SeriesLayout = "aeon",
        epochs: int = 6,
        rate: float = 0.01,
        weight_decay: float = 0.1,
        batch: int = 16,
        validate_every: int = 5,
        seed: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        self.score = score  # type: ignore[bad-override] - kept as `chosen_score`
        self.window, self.slope, self.learn, self.steps = window, slope, learn, steps
        self.gamma, self.normalize, self.layout = gamma, normalize, layout
        self.epochs, self.rate, self.weight_decay, self.batch = epochs, rate, weight_decay, batch
        self.validate_every, self.seed, self.device = validate_every, seed, device

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        validation: tuple[Any, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: TrainingProgress | None = None,
    ) -> Self:
        """Train on series and their classes; see `Recipe.fit`.

        Without `validation`, each training series is judged by the others: of the few series that such sets have, none
        is kept apart.
        """
        self.check_arguments()
        x, y = self.checked_rows(x, y)
        if len(x) < 2 or len(np.unique(y)) < 2:
            raise RecipeError(
                f"fit needs two classes or more, got {len(x)} series of {len(np.unique(y))}"
            )
        held = None
        if validation is not None:
            held = self.checked_rows(*checked_validation(validation), name="validation")
            check_channels(held[0], "validation", len(x[0]))
        self.classes_ = np.unique(y).tolist()
        self.labels_ = np.searchsorted(self.classes_, y)
        self.scale_ = scale_of(x)
        start = chosen_start(x, self.labels_, self.window, self.slope)
        self.window_, self.slope_, self.start_seconds_ = start
        self.lengths_ = [one.shape[1] for one in x]
        self.model_ = self.fresh_model(len(x[0]), padded(x))
        apart = self.distances(self.network, x, None)
        self.network.unit.fill_(self.typical_cost(apart))
        self.history_ = TrainingHistory(best_epoch=0)
        self.history_.best = self.judged(self.network, held, apart / self.network.unit.item())
        self.history_.stopped, self.learned_ = "epochs", False
        if self.learn:
            self.learn_costs(held, (x, y, held), checkpoint, progress)
        self.model_.eval()
        return self

    def learn_costs(self, held: Any, rows: Any, checkpoint: Any, progress: Any) -> None:
        """Train the network from the start, and go back to the start if that was better."""
        model, begun = self.network, self.history_.best
        start = {k: v.clone() for k, v in model.state_dict().items()}
        torch.manual_seed(self.seed)
        model.shake()
        y = torch.as_tensor(self.labels_)
        sizes, soft = (self.batch, self.steps), (self.gamma, self.window_)
        job = AlignJob(
            model, self.inputs(self.references()), y, sizes, soft, self.seed,
            lambda one: self.judged(one, held),
        )  # fmt: skip
        self.history_ = train(
            job,
            self.plan(),
            seed=self.seed,
            device=self.chosen_device(),
            checkpoint=checkpoint,
            progress=progress,
            identity=lambda: self.identity(rows),
        )
        self.learned_ = self.history_.best >= begun
        if not self.learned_:
            model.load_state_dict(start)

    def fit_dataset(self, data: Dataset, **options: Any) -> Self:
        """`fit` on the training part; a set without validation rows has each training series judged by the others."""
        if data.name == ARCHIVE:
            raise RecipeError(
                f"{ARCHIVE} is many sets, for `compare`; train one of them, as --set {EMBEDDED}"
            )
        if isinstance(data.validation, LeftOut):
            return self.fit(data.train.x, data.train.y, **options)
        return super().fit_dataset(data, **options)

    def score_part(self, part: Part) -> float:
        """`quality` on one part of a set; of a `LeftOut` part each series is judged by the others."""
        if isinstance(part, LeftOut):
            self.check_fitted()
            apart = self.distances(self.network, self.references(), None)
            return left_out_accuracy(apart, self.labels_)
        return super().score_part(part)

    def predict(self, x: Any) -> np.ndarray:
        """The class of the nearest training series; an empty list gives an empty array."""
        found = self.transform(x)
        return np.asarray(self.classes_)[self.labels_[found.argmin(1)]]

    def predict_proba(self, x: Any) -> np.ndarray:
        """Weights of the classes (N, K): attention over the training series, with their costs as scores.

        It is softer than `predict`, which asks the nearest alone, and may put another class first.
        """
        costs = self.transform(x)
        longest = np.maximum(
            *np.meshgrid([one.shape[1] for one in self.checked(x)], self.lengths_, indexing="ij")
        )
        sharp = float(self.network.sharpness.detach().exp()) / TEMPERATURE
        weights = softmax(-sharp * costs / np.maximum(longest, 1), axis=1)
        return weights @ np.eye(len(self.classes_))[self.labels_]

    def transform(self, x: Any) -> np.ndarray:
        """The cost (N, R) of the cheapest path to every training series."""
        self.check_fitted()
        x = self.checked(x)
        if not x:
            return np.zeros((0, len(self.lengths_)))
        return self.distances(self.network, x, self.references())

    def statistics(self, x: Any, y: Any) -> np.ndarray:
        """Whether each prediction is right (N, 1)."""
        y = self.checked_rows(x, y)[1]
        return (self.predict(x) == y).astype(np.float64)[:, None]

    def align(
        self, x: Any, y: Any, max_lag: int | None = None, window: float | None = None
    ) -> SeriesAlignment:
        """Path, energy over shifts and best lag of two series by the learned cost, in the window of predictions or another."""
        self.check_fitted()
        sides = [checked_one(one, self.layout, name) for one, name in ((x, "x"), (y, "y"))]
        check_channels(sides, "x and y", self.network.series.shape[1])
        sides = [normalized(one) for one in sides] if self.normalize else sides
        return self.align_checked(sides[0], sides[1], max_lag, window)

    def align_checked(
        self, x: np.ndarray, y: np.ndarray, max_lag: int | None = None, window: float | None = None
    ) -> SeriesAlignment:
        """`align` for series (C, T) that were checked and normalised."""
        window = self.window_ if window is None else window
        return aligned(self.step_costs(x, y), window, max_lag, self.gamma, self.seed)

    @torch.no_grad()
    def step_costs(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The costs (T, U) of matching each step of x (C, T) with each of y (C, U)."""
        one, two = self.features(self.network, [x, y])
        return self.network.cost(one[None], two[None])[0].double().cpu().numpy()

    def distances(
        self, model: StepScore, x: list[np.ndarray], y: list[np.ndarray] | None
    ) -> np.ndarray:
        """The costs of the cheapest paths between series, (N, M), or between all pairs of x."""
        sides = [None if one is None else self.features(model, one) for one in (x, y)]
        assert sides[0] is not None
        if model.score.name in SQUARED:
            points = [None if one is None else self.points(model, one) for one in sides]
            assert points[0] is not None
            return point_distances(points[0], points[1], self.window_)
        short = [
            None if one is None else [resampled(f, min(self.steps, len(f))) for f in one]
            for one in sides
        ]
        assert short[0] is not None
        return cost_distances(model, short[0], short[1], self.window_)

    @torch.no_grad()
    def features(self, model: StepScore, x: list[np.ndarray]) -> list[Tensor]:
        """Features (T, E) of each series."""
        return [model(one[None])[0] for one in self.inputs(x)]

    @torch.no_grad()
    def points(self, model: StepScore, features: list[Tensor]) -> list[np.ndarray]:
        """Points (T, E) of each series, whose squared distances are the costs."""
        return [model.points(one[None])[0].double().cpu().numpy() for one in features]

    def inputs(self, x: list[np.ndarray]) -> list[Tensor]:
        """Inputs (I, T) of the network on the device."""
        device = self.chosen_device()
        return [torch.as_tensor(inputs_of(one, self.scale_)).to(device) for one in x]

    @property
    def network(self) -> StepScore:
        """The trained network."""
        assert isinstance(self.model_, StepScore)
        return self.model_

    def references(self) -> list[np.ndarray]:
        """The training series."""
        series = self.network.series.cpu().numpy()
        return [one[:, :length] for one, length in zip(series, self.lengths_, strict=True)]

    def judged(
        self,
        model: StepScore,
        held: tuple[list[np.ndarray], np.ndarray] | None,
        apart: np.ndarray | None = None,
    ) -> float:
        """Accuracy in percent: on the rows held apart, or on the training series, each judged by the others.

        The mean weight of the right class, in thousandths, is added: of few series many accuracies are equal.

        Args:
            model: the network.
            held: rows held apart, or None.
            apart: costs between all training series, if they are known.
        """
        y = self.labels_
        if held is None:
            found = self.distances(model, self.references(), None) if apart is None else apart
            np.fill_diagonal(found, np.inf)
        else:
            found = self.distances(model, held[0], self.references())
            known = {one: n for n, one in enumerate(self.classes_)}
            y = np.array([known.get(one, -1) for one in held[1].tolist()])
        weights = softmax(-found / (TEMPERATURE * np.mean(self.lengths_)), axis=1)
        weight = float((weights * (self.labels_ == y[:, None])).sum(1).mean())
        return 100 * float((self.labels_[found.argmin(1)] == y).mean()) + 1e-3 * weight

    def typical_cost(self, apart: np.ndarray) -> float:
        """The median cost of a path between two training series, for a step; 1 if it is 0."""
        costs = apart[apart > 0]
        if not len(costs):
            return 1.0
        squared = self.network.score.name in SQUARED
        lengths = self.lengths_ if squared else np.minimum(self.lengths_, self.steps)
        return float(np.median(costs) / np.mean(lengths))

    def estimator_kind(self) -> str:
        """It predicts classes."""
        return "classifier"

    def learned(self) -> dict[str, Any]:
        """Classes, scales, the chosen start, and of the training series all but their values."""
        return {
            "classes": self.classes_,
            "labels": self.labels_.tolist(),
            "lengths": self.lengths_,
            "channels": self.network.series.shape[1],
            "scale": list(self.scale_),
            "window": self.window_,
            "slope": self.slope_,
            "learned": self.learned_,
        }

    def restore(self, learned: dict[str, Any]) -> None:
        """Set what `learned` returned, and build the network."""
        self.check_arguments()
        self.classes_, self.learned_ = learned["classes"], bool(learned["learned"])
        self.labels_, self.lengths_ = np.array(learned["labels"], dtype=int), learned["lengths"]
        value, slope = map(float, learned["scale"])
        self.scale_ = value, slope
        self.window_, self.slope_ = float(learned["window"]), float(learned["slope"])
        shape = len(self.lengths_), int(learned["channels"]), max(self.lengths_)
        self.model_ = self.fresh_model(shape[1], torch.zeros(shape, dtype=torch.float64))

    def fresh_model(self, channels: int, series: Tensor) -> StepScore:
        """The network at its start, with weights drawn from the seed where the start draws any."""
        torch.manual_seed(self.seed)
        model = StepScore(channels, self.chosen_score, self.slope_)
        model.remember(series)
        return model.to(self.chosen_device())

    def plan(self) -> TrainingPlan:
        """How it is trained."""
        return TrainingPlan(
            epochs=self.epochs,
            rate=self.rate,
            weight_decay=self.weight_decay,
            validate_every=self.validate_every,
        )

    def checked(self, x: Any, name: str = "x") -> list[np.ndarray]:
        """The series, checked against those of the training, and normalised if asked for."""
        found = self.as_series(x, name)
        check_channels(found, name, self.network.series.shape[1])
        return found

    def as_series(self, x: Any, name: str) -> list[np.ndarray]:
        """The series, normalised if asked for."""
        found = checked_series(x, self.layout, name)
        return [normalized(one) for one in found] if self.normalize else found

    def checked_rows(self, x: Any, y: Any, name: str = "x") -> tuple[list[np.ndarray], np.ndarray]:
        """Series and their classes.

        Raises:
            RecipeError: they do not fit each other, a class is missing, or there are fewer than two of either.
        """
        found = self.as_series(x, name)
        if y is None:
            raise RecipeError("y is missing: give the class of each series")
        y = one_kind(y)
        if y.shape != (len(found),):
            raise RecipeError(
                f"y must have one entry for each of the {len(found)} series, got shape {y.shape}"
            )
        missing = [n for n, one in enumerate(y.tolist()) if one is None or one != one]
        if missing:
            raise RecipeError(
                f"y has {y[missing[0]]} in row {missing[0]}: give every series a class"
            )
        return found, y

    def check_arguments(self) -> None:
        """Refuse arguments that cannot work, by name."""
        self.check_training()
        check_layout(self.layout)
        for name in ("steps", "batch"):
            value = getattr(self, name)
            if type(value) is not int or value < 2:
                raise RecipeError(f"{name} must be an integer of 2 or more, got {value!r}")
        for name in ("window", "slope"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, float | int) and 0 <= value <= 1):
                raise RecipeError(f"{name} must be a share from 0 to 1 or None, got {value!r}")
        if not (isinstance(self.gamma, float | int) and 0 < self.gamma < float("inf")):
            raise RecipeError(f"gamma must be a positive number, got {self.gamma!r}")
