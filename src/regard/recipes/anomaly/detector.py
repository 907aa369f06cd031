"""`AnomalyDetector`: scores for the points of a series by attention between its windows."""

from __future__ import annotations

import os
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from regard import Score
from regard.arguments import check_positive, check_sizes
from regard.recipes.anomaly.job import WindowJob
from regard.recipes.anomaly.judging import Memory, fitted, joined, window_scores
from regard.recipes.anomaly.measures import AVERAGE_PRECISION, measured
from regard.recipes.anomaly.net import ASKINGS, READINGS, Asking, NetShape, Reading, WindowNet
from regard.recipes.anomaly.series import (
    check_length,
    checked_labels,
    checked_series,
    is_one_series,
)
from regard.recipes.anomaly.threshold import calibrated
from regard.recipes.anomaly.windows import (
    rows_of,
    scale_of,
    smoothing,
    standardised,
    to_points,
    windows_of,
)
from regard.recipes.equal import MEAN
from regard.recipes.estimator import Recipe, RecipeError, building, checked_validation, own_score
from regard.recipes.fingerprint import fingerprint_of
from regard.recipes.training import TrainingPlan, TrainingProgress, train

MEMORIES = ("own", "fitted")
LEAST = 3  # windows that a series must have room for, so that each window has others that share no point with it


class AttendedWindow(NamedTuple):
    """Where the score of a window comes from.

    Attributes:
        window: (W, C) in the units of the series.
        expected: (W, C) the mean of the attended windows by their weights; of a forecast, its end alone is predicted.
        residual: (W, C) squared, in standardised units; NaN where nothing is predicted.
        others: (M, W, C) the windows that it may attend to, in the same units.
        places: (M,) of their first points in the memory.
        weights: (M,) of these; they sum to 1.
    """

    window: np.ndarray
    expected: np.ndarray
    residual: np.ndarray
    others: np.ndarray
    places: np.ndarray
    weights: np.ndarray


class Ground(NamedTuple):
    """By what a series is scored.

    Attributes:
        scale: mean and deviation of each channel.
        series: (T, C) standardised by it, on the device.
        memory: the windows that those of the series attend to.
        start: place of the series' first point in the memory; None if the series is not in it.
    """

    scale: tuple[np.ndarray, np.ndarray]
    series: Tensor
    memory: Memory
    start: int | None


class AnomalyDetector(Recipe):
    """Finds anomalies in series of one or several channels, without labels.

    Every window of a series attends to windows that share no point with it. What these cannot explain is strange.

    Args:
        score: a name such as "gaussian", a `Score`, None for scaled dot, or "mean" for equal weights, the control.
        reading: how weights become scores of windows. "reconstruction": the squared residual of a window from the
            weighted mean of others. "forecast": that of its last quarter, from those that follow windows alike.
            "density": the negative logarithm of the weight that other windows give to it.
        asking: "context" for a query made from the window, "global" for one learned query for all windows.
        memory: what windows attend to: "fitted" for those of `fit`, as `stream` does, so that the threshold holds for
            new series; "own" for those of the series that is scored, whatever `fit` saw: its strangest points,
            among themselves. A series of `fit` is recognised, and its windows do not find themselves.
        window: points of a window.
        width: of the projections of each head.
        heads: whose outputs are averaged.
        sharpness: factor on the projections at the start; the greater, the fewer windows are attended to.
        keys: the most windows of a memory.
        smooth: points of the moving mean over scores; below 1 a share of the length of the series.
        false_alarms: share of normal points that may be above the threshold.
        epochs: of training, 50 steps each, at most.
        rate: the largest learning rate; it falls along a cosine.
        weight_decay: of AdamW.
        batch: windows in a batch.
        patience: the most validations in a row without a better one: the next such ends training; None for never.
        seed: of weights and batches.
        device: None for the GPU if there is one.

    Attributes:
        threshold_: points with greater scores are alarms.
        stream_threshold_: likewise, of live data.
    """

    name = "anomaly"
    metric = AVERAGE_PRECISION
    model_: WindowNet  # type: ignore[bad-override] - narrower

    def __init__(
        self,
        score: str | Score | None = "gaussian",
        reading: Reading = "reconstruction",
        asking: Asking = "context",
        memory: Literal["own", "fitted"] = "fitted",
        window: int = 64,
        width: int = 32,
        heads: int = 1,
        sharpness: float = 1.0,
        keys: int = 1024,
        smooth: float = 0.03,
        false_alarms: float = 0.01,
        epochs: int = 6,
        rate: float = 3e-3,
        weight_decay: float = 0.0,
        batch: int = 128,
        patience: int | None = None,
        seed: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        self.score = score  # type: ignore[bad-override] - kept as `chosen_score`
        self.reading, self.asking, self.memory = reading, asking, memory
        self.window, self.width, self.heads, self.sharpness = window, width, heads, sharpness
        self.keys, self.smooth, self.false_alarms = keys, smooth, false_alarms
        self.epochs, self.rate, self.weight_decay = epochs, rate, weight_decay
        self.batch, self.patience = batch, patience
        self.seed, self.device = seed, device

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        validation: tuple[Any, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: TrainingProgress | None = None,
    ) -> Self:
        """Train on a series, or a list of several, without labels; see `Recipe.fit`.

        `y`, and the labels of `validation`, are not looked at. Without `validation`, the last tenth of each series
        decides when to stop.
        """
        self.check_arguments()
        series = checked_series(x)
        check_length(series, self.window, LEAST)
        held = None
        if validation is not None:
            held = checked_series(checked_validation(validation)[0], "validation")
            self.check_channels(held, series[0].shape[1])
            check_length(held, self.window, LEAST)
        self.scale_ = scale_of(series)
        count = sum(len(one) - self.window + 1 for one in series)
        self.model_ = self.fresh_model(min(self.keys, count))
        job = WindowJob(
            self.model_,
            self.prepared(series),
            None if held is None else self.prepared(held),
            self.batch,
            self.seed,
        )
        self.history_ = train(
            job,
            self.plan(),
            seed=self.seed,
            device=self.chosen_device(),
            checkpoint=checkpoint,
            progress=progress,
            identity=lambda: self.identity(series, held or []),
        )
        self.model_.eval()
        self.calibrate(series)
        return self

    def calibrate(self, series: list[np.ndarray]) -> None:
        """Keep windows of the training for live data, and set both thresholds."""
        ready = [standardised(one, self.scale_).to(self.chosen_device()) for one in series]
        memory = joined(ready, self.window, self.keys)
        self.model_.memory.copy_(memory.windows)
        self.model_.places.copy_(memory.places)
        self.length_, self.starts_ = max(map(len, series)), {}
        smooth, start = smoothing(self.smooth, self.length_), 0
        live, calm = [], []
        for given, values in zip(series, ready, strict=True):
            self.starts_[fingerprint_of(given)] = start
            scores = window_scores(self.model_, values, memory, start)
            # Points before the first whole window have no score when data are live.
            live.append(to_points(scores, self.window, smooth, trailing=True)[self.window - 1 :])
            calm.append(to_points(scores, self.window, smooth))
            start += len(values) + 1
        if self.memory == "own":
            calm = [self.scores_of(one) for one in series]
        self.threshold_ = calibrated(np.concatenate(calm), self.false_alarms)
        self.stream_threshold_ = calibrated(np.concatenate(live), self.false_alarms)

    def point_scores(self, x: Any) -> Any:
        """A score for each point: an array (T,) for a series, or a list of arrays for a list; greater is stranger.

        Scores look at points on both sides. For live data, which have one, see `stream`.
        """
        self.check_fitted()
        series = checked_series(x)
        self.check_channels(series)
        check_length(series, self.window, LEAST if self.memory == "own" else 1)
        found = [self.scores_of(one) for one in series]
        return found[0] if is_one_series(x) else found

    def predict(self, x: Any) -> Any:
        """1 for each point whose score is above the threshold, else 0: an array, or a list of arrays for a list."""
        found = self.point_scores(x)
        alarms = [
            (one > self.threshold_).astype(np.int64)
            for one in ([found] if is_one_series(x) else found)
        ]
        return alarms[0] if is_one_series(x) else alarms

    def stream(self, point: Any) -> Any:
        """The score of one more point of live data, and whether it is an alarm; see `Stream`.

        The detector keeps one stream. For several at once, and to begin anew, make a `Stream` of each.
        """
        from regard.recipes.anomaly.stream import Stream

        if not hasattr(self, "live_") or self.live_.model is not getattr(self, "model_", None):
            self.live_ = Stream(self)
        return self.live_.add(point)

    def statistics(self, x: Any, y: Any) -> np.ndarray:
        """Average precision and VUS-PR (N, 2) of each series, over its points that are not labelled -1."""
        one = is_one_series(x)
        series = checked_series(x)
        labels = checked_labels(y, series, one)
        scores = self.point_scores(x)
        pairs = zip(labels, [scores] if one else scores, strict=True)
        return np.array([measured(*pair) for pair in pairs])

    @torch.no_grad()
    def attend(self, x: Any, start: int) -> AttendedWindow:
        """Where the score of the window that begins at point `start` of a series comes from."""
        self.check_fitted()
        (values,) = checked_series([x] if is_one_series(x) else x)
        self.check_channels([values])
        last = len(values) - self.window
        if not 0 <= start <= last:
            raise RecipeError(
                f"start must be 0 to {last}, the first point of a window, got {start}"
            )
        scale, ready, memory, first = self.ground(values)
        one, allowed = rows_of(windows_of(ready, self.window), slice(start, start + 1)), None
        if first is not None:
            allowed = memory.allowed(torch.tensor([first + start], device=one.device), self.window)
        weights = self.model_.weights(one, memory.windows, allowed)[0]
        residual = self.model_(one, memory.windows, allowed)[0].double().cpu().numpy()
        mean, spread = scale
        others = (
            memory.windows.unflatten(1, (self.window, -1)).double().cpu().numpy() * spread + mean
        )
        shares = weights.double().cpu().numpy()
        unseen = np.full((self.window - len(residual), values.shape[1]), np.nan)
        return AttendedWindow(
            values[start : start + self.window],
            np.tensordot(shares, others, 1),
            np.concatenate([unseen, residual]),
            others,
            memory.places.cpu().numpy(),
            shares,
        )

    def ground(self, values: np.ndarray) -> Ground:
        """By what a series is scored."""
        own = self.memory == "own"
        scale = scale_of([values]) if own else self.scale_
        ready = standardised(values, scale).to(self.chosen_device())
        if not own:
            start = self.starts_.get(fingerprint_of(values))
            return Ground(scale, ready, fitted(self.model_), start)
        return Ground(scale, ready, Memory.of(windows_of(ready, self.window), self.keys), 0)

    def scores_of(self, values: np.ndarray) -> np.ndarray:
        """The scores (T,) of the points of one checked series."""
        ground = self.ground(values)
        scores = window_scores(self.model_, ground.series, ground.memory, ground.start)
        length = len(values) if self.memory == "own" else self.length_
        return to_points(scores, self.window, smoothing(self.smooth, length))

    def prepared(self, series: list[np.ndarray]) -> list[Tensor]:
        """The series standardised as they are when they are scored, on the device."""
        own, device = self.memory == "own", self.chosen_device()
        return [
            standardised(one, scale_of([one]) if own else self.scale_).to(device) for one in series
        ]

    def learned(self) -> dict[str, Any]:
        """Scales, thresholds, the longest training series, all by fingerprint, and how many windows are kept."""
        return {
            "scale": [one.tolist() for one in self.scale_],
            "thresholds": [self.threshold_, self.stream_threshold_],
            "length": self.length_,
            "starts": self.starts_,
            "kept": len(self.model_.memory),
        }

    def restore(self, learned: dict[str, Any]) -> None:
        """Set what `learned` returned, and build the network."""
        self.check_arguments()
        mean, spread = (np.array(one, dtype=np.float64) for one in learned["scale"])
        if mean.ndim != 1 or mean.shape != spread.shape or not (spread > 0).all():
            raise RecipeError("the scale of the channels is damaged")
        self.scale_ = mean, spread
        self.threshold_, self.stream_threshold_ = map(float, learned["thresholds"])
        self.length_, kept = int(learned["length"]), int(learned["kept"])
        self.starts_: dict[str, int] = {k: int(v) for k, v in learned["starts"].items()}
        if not 1 <= kept <= self.keys:
            raise RecipeError(f"keys={self.keys}, but {kept} windows are kept")
        self.model_ = self.fresh_model(kept)

    def fresh_model(self, kept: int) -> WindowNet:
        """The network with weights drawn from the seed."""
        shape = NetShape(
            self.window, len(self.scale_[0]), self.width, self.heads, self.sharpness, self.reading, self.asking
        )  # fmt: skip
        torch.manual_seed(self.seed)
        with building():
            given = MEAN if self.chosen_score == MEAN else own_score(self.chosen_score)
            return WindowNet(given, shape, kept).to(self.chosen_device())

    def plan(self) -> TrainingPlan:
        """How it is trained."""
        return TrainingPlan(
            epochs=self.epochs,
            rate=self.rate,
            weight_decay=self.weight_decay,
            patience=self.patience,
        )

    def criterion(self, quality: float) -> tuple[str, str]:
        """The residual that validations of the training measure: there are no labels to be right about."""
        return "residual", f"{-quality:.4f}"

    def estimator_kind(self) -> str:
        """What scikit-learn calls it."""
        return "outlier_detector"

    def check_channels(self, series: list[np.ndarray], trained: int | None = None) -> None:
        """Refuse series of another number of channels than those of the training."""
        wanted = len(self.scale_[0]) if trained is None else trained
        if series[0].shape[1] != wanted:
            raise RecipeError(
                f"the series has {series[0].shape[1]} channels, those of the training have {wanted}"
            )

    def check_arguments(self) -> None:
        """Refuse arguments that cannot work, by name."""
        self.check_training()
        choices = {"reading": READINGS, "asking": ASKINGS, "memory": MEMORIES}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise RecipeError(
                    f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        with building():
            check_sizes(width=self.width, heads=self.heads, keys=self.keys, batch=self.batch)
            check_positive(sharpness=self.sharpness, smooth=self.smooth)
        if type(self.window) is not int or self.window < 2:
            raise RecipeError(f"window must be an integer of 2 or more, got {self.window!r}")
        if not 0 < self.false_alarms < 1:
            raise RecipeError(f"false_alarms must be between 0 and 1, got {self.false_alarms!r}")
