"""Charts whose axis is not the length: speed-up by named shape, and error against time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from regard.bench.candidate import FORWARD, PASSES
from regard.bench.looks import LOOKS, OURS, Point, draw_line, drawn, head, plain, spelled
from regard.bench.results import Measured
from regard.bench.settings import shapes
from regard.bench.store import Results
from regard.figures.render import tick
from regard.measuring.words import number, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def shapes_figure(settings: list[Measured], results: Results) -> Figure:
    """A figure of the speed-up over the faster textbook for each named shape and engine.

    On a GPU it has two rows of panels: for eager calls and for device times.
    """
    order = [shape.name for shape in shapes("cpu")]
    settings = sorted(settings, key=lambda m: order.index(m.setting.name))
    kinds = {"": settings}
    if results.machine.get("device") == "cuda":
        called = [m.as_eager() for m in settings]
        kinds = {"as called": called, "on the device": settings}
    high = 1.3 + (0.3 + 0.8 * len(settings)) * len(kinds)
    figure = Figure(figsize=(9.6, high))
    grid = figure.subplots(len(kinds), 2, sharey=True, squeeze=False)
    figure.subplots_adjust(
        left=0.185, right=0.975, top=1 - 0.98 / high, bottom=0.72 / high, wspace=0.08, hspace=0.2
    )
    for panels, (kind, measured) in zip(grid, kinds.items(), strict=True):
        for axes, which in zip(panels, PASSES, strict=True):
            shapes_panel(axes, measured, which)
            axes.set_title(f"{which}, {kind}" if kind else which, size=10, weight="bold")
    shown = [name for name in OURS if any(name in drawn(m, w) for m in settings for w in PASSES)]
    entries = [Line2D([], [], color=LOOKS[name][0], lw=6, label=name) for name in shown]
    entries.append(
        Line2D([], [], color=LOOKS["textbook eager"][0], lw=1.2, label="faster textbook, 1x")
    )
    figure.legend(handles=entries, loc="lower center", ncols=5, frameon=False, fontsize=9)
    head(figure, "Shapes that people run: speed-up over the faster textbook", results, None, high)
    return figure


def shapes_panel(axes: Axes, settings: list[Measured], which: str) -> None:
    """Draw one bar for each shape and each of our engines."""
    values, step = [], 0.2
    for y, m in enumerate(settings):
        # The textbook over ours, so a longer bar is a faster engine.
        base = m.fastest("textbook", which)
        found = {name: m.ratio(base, m.find(name), which) for name in OURS}
        timed = {name: ratio.median for name, ratio in found.items() if ratio is not None}
        for k, (name, ratio) in enumerate(timed.items()):
            bar(axes, y + (k - (len(timed) - 1) / 2) * step, ratio, LOOKS[name][0], step)
            values.append(ratio)
    axes.axvline(1, color=LOOKS["textbook eager"][0], lw=1.2, zorder=5)
    axes.set_xscale("log")
    # 1x is always visible, and the right side has room for the value at the longest bar.
    span = [*values, 1.0]
    axes.set_xlim(min(span) / 1.6, max(span) * 2.2)
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}x"))
    axes.set_yticks(range(len(settings)), [two_lines(m) for m in settings])
    axes.set_ylim(len(settings) - 0.5, -0.5)
    plain(axes)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def two_lines(m: Measured) -> str:
    """A tick label: the name of a shape, and below it its sizes."""
    s = m.setting
    steps = " steps" if s.loop else ""
    return f"{s.name}\nbatch {s.batch}, {s.len_q}{steps} x {s.len_k}"


def bar(axes: Axes, y: float, value: float, ink: str, step: float) -> None:
    """Draw a bar from 1x to the value, followed by the value."""
    axes.barh(y, value - 1, left=1, height=0.86 * step, color=ink, zorder=3)
    axes.annotate(
        f"{number(value)}x", (max(value, 1.0), y), (4, 0), textcoords="offset points", va="center",
        size=8, color=ink,
    )  # fmt: skip


def error_figure(square: list[Measured], results: Results) -> Figure:
    """A figure of error against time at one length, for the narrowest and the widest hidden layer."""
    # The length measured at most hidden widths; in a tie 4096, where the bars are, else the longest.
    lengths = sorted({m.setting.len_q for m in square})
    most = max(lengths, key=lambda n: (sum(m.setting.len_q == n for m in square), n == 4096, n))
    shown = sorted((m for m in square if m.setting.len_q == most), key=lambda m: m.setting.hidden)
    shown = [shown[0]] if len(shown) == 1 else [shown[0], shown[-1]]
    high = 1.5 + 2.5 * len(shown)
    figure = Figure(figsize=(9.6, high))
    grid = figure.subplots(len(shown), 2, squeeze=False)
    figure.subplots_adjust(
        left=0.085, right=0.975, top=1 - 0.98 / high, bottom=0.98 / high, wspace=0.2, hspace=0.42
    )
    for panels, m in zip(grid, shown, strict=True):
        for axes, which in zip(panels, PASSES, strict=True):
            error_panel(axes, m, which)
    names = [n for n in LOOKS if any(n in drawn(m, which) for m in shown for which in PASSES)]
    mark_legend(figure, {name: spelled(name, shown) for name in names})
    head(figure, "What the error costs: error against fp64 beside time", results, shown[0], high)
    return figure


def mark_legend(figure: Figure, names: dict[str, str]) -> None:
    """Add a legend of the marks."""
    entries = [
        Line2D(
            [], [], color=LOOKS[n][0], marker=LOOKS[n][1], ls="", ms=10 if n == "dot" else 7,
            label=label,
        )
        for n, label in names.items()
    ]  # fmt: skip
    figure.legend(
        handles=entries, loc="lower center", ncols=len(entries), frameon=False, fontsize=8.5,
        handletextpad=0.1, columnspacing=1.2,
    )  # fmt: skip


def error_panel(axes: Axes, m: Measured, which: str) -> None:
    """Draw the errors and times of one setting and pass."""
    found = {name: p for name, p in drawn(m, which).items() if p.error}
    marks = {
        n: Point(p.times.median, p.error or 0, p.scaled_from is not None) for n, p in found.items()
    }
    for name, point in marks.items():
        draw_line(axes, name, [point], size=7.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    if marks:
        limits(axes, list(marks.values()))
    axes.xaxis.set_major_locator(LogLocator(10, numticks=9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick(seconds(x))))
    low, high = axes.get_ylim()
    subs = (1.0, 2.0, 5.0) if high < 200 * low else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(10, subs=subs, numticks=15))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0e}".replace("e-0", "e-")))
    what = "output" if which == FORWARD else "gradient of a"
    axes.set_title(f"hidden {m.setting.hidden}: error of the {what}", size=10, weight="bold")
    axes.set_xlabel(f"time, {which}", size=9)
    plain(axes)


def limits(axes: Axes, points: list[Point]) -> None:
    """Set limits with room around the marks, and wide enough for each axis to have ticks."""
    low, high = min(p.x for p in points), max(p.x for p in points)
    reach = max(high / low, 4.0)
    axes.set_xlim(low / reach**0.1, high * reach**0.1)
    low, high = min(p.y for p in points), max(p.y for p in points)
    middle, reach = (low * high) ** 0.5, max(high / low, 10.0) ** 0.6
    axes.set_ylim(middle / reach, middle * reach)
