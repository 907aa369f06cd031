"""The picture of the recipe: a series with its alarms, the scores, and the strangest window with what was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard.figures.canvas import BLUE, GREY, ORANGE, RED, SKY, Canvas
from regard.recipes.anomaly.data import SETS, load
from regard.recipes.anomaly.detector import AnomalyDetector
from regard.recipes.anomaly.series import checked_series
from regard.recipes.estimator import RecipeError
from regard.text import Language, Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 6  # attended windows that are drawn beside the strangest one
POINT = Text("point", "点")


def show(recipe: Any, x: Any = None, language: Language = "en") -> Figure:
    """Draw a series, its scores with the threshold, and its strangest window beside those it attends to.

    Args:
        recipe: a trained `AnomalyDetector`.
        x: a series; None for a test series of the embedded set that the model fits.
        language: of the labels.
    """
    if not isinstance(recipe, AnomalyDetector):
        raise RecipeError(f"recipe must be an AnomalyDetector, got {type(recipe).__name__}")
    (values,) = checked_series(default_series(recipe) if x is None else x)
    scores = recipe.point_scores(values)
    strangest = strange_window(scores, recipe.window)
    canvas = Canvas(language)
    left, middle, right = canvas.panels(3, wide=4.4, high=3.2)
    alarms = scores > recipe.threshold_
    plot_series(canvas, left, values, alarms)
    plot_scores(canvas, middle, scores, recipe.threshold_, strangest, recipe.window)
    plot_window(canvas, right, recipe, values, strangest)
    return canvas.figure


def default_series(recipe: AnomalyDetector) -> np.ndarray:
    """A test series of the first embedded set with as many channels as the model's."""
    recipe.check_fitted()
    channels = len(recipe.scale_[0])
    for name, known in SETS.items():
        if known.origin != "public":
            values = load(name).test.x[0]
            if values.shape[1] == channels:
                return values
    raise RecipeError(f"no embedded series has {channels} channels: give the series to draw")


def strange_window(scores: np.ndarray, width: int) -> int:
    """First point of the window around the greatest score."""
    return int(np.clip(scores.argmax() - width // 2, 0, len(scores) - width))


def plot_series(canvas: Canvas, axes: Axes, values: np.ndarray, alarms: np.ndarray) -> None:
    """All channels in standardised units, and the alarms behind them."""
    spread = values.std(0)
    ready = (values - values.mean(0)) / np.where(spread > 0, spread, 1.0)
    ink = BLUE if values.shape[1] == 1 else GREY
    axes.plot(ready, color=ink, lw=0.7, alpha=1.0 if values.shape[1] == 1 else 0.6)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], alarms, [0]]).astype(int)))
    for number, (first, after) in enumerate(edges.reshape(-1, 2)):
        label = canvas.say(Text("alarm", "警报")) if number == 0 else None
        axes.axvspan(first - 0.5, after - 0.5, color=ORANGE, alpha=0.45, lw=0, label=label)
    if len(edges):
        canvas.legend(axes, loc="upper right")
    title = Text(
        f"{values.shape[1]} channel{'s' * (values.shape[1] > 1)}, {len(values):,} points",
        f"{values.shape[1]} 个通道，{len(values):,} 个点",
    )
    canvas.label(axes, POINT, Text("deviations", "标准差"), title)


def plot_scores(
    canvas: Canvas, axes: Axes, scores: np.ndarray, threshold: float, strangest: int, width: int
) -> None:
    """The scores, the threshold and the place of the strangest window."""
    axes.plot(scores, color=BLUE, lw=0.9)
    axes.axvspan(strangest, strangest + width, color=SKY, alpha=0.35, lw=0)
    canvas.bar_line(axes, threshold, Text("threshold", "阈值"))
    canvas.legend(axes, loc="upper right")
    canvas.label(
        axes, POINT, Text("score", "分数"), Text("how strange each point is", "每个点有多异常")
    )


def plot_window(
    canvas: Canvas, axes: Axes, recipe: AnomalyDetector, values: np.ndarray, start: int
) -> None:
    """The strangest window in its strangest channel, the windows that it attends to, and what they make expect."""
    found = recipe.attend(values, start)
    channel = int(np.nanmean(found.residual, 0).argmax())
    places = np.arange(start, start + recipe.window)
    for rank in np.argsort(-found.weights)[:MOST]:
        axes.plot(places, found.others[rank][:, channel], color=GREY, lw=0.7, alpha=0.5)
    axes.plot([], [], color=GREY, lw=0.7, label=canvas.say(Text("attended", "所关注")))
    axes.plot(
        places,
        found.expected[:, channel],
        color=BLUE,
        lw=1.6,
        label=canvas.say(Text("expected", "预期")),
    )
    axes.plot(
        places, found.window[:, channel], color=RED, lw=1.6, label=canvas.say(Text("seen", "实际"))
    )
    canvas.legend(axes, loc="best")
    where = Text("", "")
    if values.shape[1] > 1:
        where = Text(f", channel {channel}", f"，通道 {channel}")
    title = Text(f"strangest window{where.en}", f"最异常的窗口{where.zh}")
    canvas.label(axes, POINT, Text("value", "数值"), title)
