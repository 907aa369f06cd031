"""The picture of the recipe: two series with their matches, the costs with the path, and the energy over shifts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard.figures.canvas import BLUE, GREY, ORANGE, Canvas
from regard.recipes.align.alignment import SeriesAlignment
from regard.recipes.align.classifier import SeriesAligner
from regard.recipes.align.warping import band
from regard.recipes.datasets import Dataset
from regard.recipes.estimator import RecipeError
from regard.text import Language, Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

THREADS = 40  # lines between matched steps: more would hide the series
STEP = Text("step", "步")


def pair_of(model: SeriesAligner, x: Any) -> tuple[np.ndarray, np.ndarray]:
    """The two series to draw: the first two given; one given and its nearest training series; or two of these."""
    model.check_fitted()
    known = model.references()
    if x is None or not len(x):
        alike = np.flatnonzero(model.labels_ == model.labels_[0])
        return known[0], known[int(alike[1]) if len(alike) > 1 else 1]
    given = model.checked(x)
    if len(given) > 1:
        return given[0], given[1]
    return given[0], known[int(model.transform(x)[0].argmin())]


def show(model: Any, x: Any, language: Language) -> Figure:
    """The picture of two series; see `pair_of`."""
    if not isinstance(model, SeriesAligner):
        raise RecipeError(f"expected a SeriesAligner, got {type(model).__name__}")
    return figure(model, *pair_of(model, x), Canvas(language))


def figure(model: SeriesAligner, x: np.ndarray, y: np.ndarray, canvas: Canvas) -> Figure:
    """The picture of two series (C, T) on a canvas."""
    found = model.align_checked(x, y, window=1.0)
    left, middle, right = canvas.panels(3, wide=3.9, high=3.3)
    plot_series(canvas, left, x, y, found)
    plot_costs(canvas, middle, found, model.window_)
    plot_energy(canvas, right, found)
    return canvas.figure


def plot_series(
    canvas: Canvas, axes: Axes, x: np.ndarray, y: np.ndarray, found: SeriesAlignment
) -> None:
    """The first channel of both, one above the other, with lines between matched steps."""
    one, two = x[0], y[0]
    lift = float(max(np.ptp(one), np.ptp(two), 1e-12)) * 1.1
    shown = found.path[:: max(len(found.path) // THREADS, 1)]
    for t, u in shown:
        axes.plot([t, u], [one[t] + lift, two[u]], color=GREY, lw=0.5, alpha=0.6)
    axes.plot(one + lift, color=BLUE, lw=1.6, label="x")
    axes.plot(two, color=ORANGE, lw=1.6, label="y")
    axes.set_yticks([])
    canvas.legend(axes, loc="upper right")
    canvas.label(axes, STEP, "", Text("matched steps", "匹配的步"))


def plot_costs(canvas: Canvas, axes: Axes, found: SeriesAlignment, window: float) -> None:
    """The costs with the cheapest path, and the edge of the window that predictions have."""
    axes.imshow(
        found.costs.T, origin="lower", cmap="Greys", aspect="auto", interpolation="nearest",
        vmin=0, vmax=max(float(np.quantile(found.costs, 0.95)), 1e-12),
    )  # fmt: skip
    axes.plot(*found.path.T, color=ORANGE, lw=1.8)
    if window < 1:
        inside = band(*found.costs.shape, window)
        for edge in (inside.argmax(1), inside.shape[1] - 1 - inside[:, ::-1].argmax(1)):
            axes.plot(edge, color=BLUE, lw=0.8, ls=(0, (4, 3)))
    axes.grid(False)
    canvas.label(
        axes,
        Text("step of x", "x 的步"),
        Text("step of y", "y 的步"),
        Text("costs, cheapest path; dashed: window", "代价与最省路径；虚线：窗口"),
    )


def plot_energy(canvas: Canvas, axes: Axes, found: SeriesAlignment) -> None:
    """The energy over shifts, the best lag and its interval."""
    axes.axvspan(*found.interval, color=ORANGE, alpha=0.25, lw=0)
    axes.axvline(found.lag, color=ORANGE, lw=1.5)
    axes.plot(found.lags, found.energy, color=BLUE, lw=1.6)
    axes.set_ylim(bottom=0)
    low, high = found.interval
    lag, least, most = (f"{n:+d}".replace("-", "−") if n else "0" for n in (found.lag, low, high))
    told = f"{lag} [{least}, {most}]"
    canvas.label(
        axes,
        Text("shift of y, steps", "y 的移位（步）"),
        Text("mean cost", "平均代价"),
        Text(f"energy over shifts: lag {told}", f"移位能量：滞后 {told}"),
    )


def captioned(model: SeriesAligner, data: Dataset) -> dict[str, str]:
    """The picture for a report: the first test series and its nearest training series."""
    from regard.figures.canvas import composed

    x, y = pair_of(model, data.test.x[:1])
    svg = composed(lambda: figure(model, x, y, Canvas("en")), ["svg"])["svg"].decode()
    title = data.title
    return {
        "en": f"{title.en}. The first test series and the training series nearest to it. Left: matched steps. Middle: "
        "the cost of matching each step with each (darker: more) and the cheapest path; dashed is the window that "
        "predictions have. Right: the mean cost over shifts of the whole series, the best lag and its 95% interval.",
        "zh": f"{title.zh}。第一条测试序列与离它最近的训练序列。左：匹配的步。中：逐步匹配的代价（越深越大）与最省的路径；"
        "虚线为预测所用的窗口。右：整体移位的平均代价、最佳滞后及其 95% 区间。",
        "svg": svg,
    }
