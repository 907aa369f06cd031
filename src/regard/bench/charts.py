"""The charts of a run: time and memory by length, speed-up by named shape, error against time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from regard.bench.candidate import BOTH, PASSES
from regard.bench.looks import (
    GREY,
    LOOKS,
    OURS,
    Point,
    draw_line,
    drawn,
    head,
    other_dots,
    plain,
    spelled,
    thickness,
)
from regard.bench.points import error_figure, shapes_figure
from regard.bench.results import Measured, Pass
from regard.bench.settings import shapes
from regard.bench.store import Results
from regard.figures.render import render, size, tick
from regard.measuring.files import write_atomic
from regard.measuring.words import seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def save(results: Results, folder: Path, name: str) -> list[str]:
    """Draw every chart that has data, as PNG and SVG; returns the names of the files."""
    settings = list(results.measured.values())
    drawings: dict[str, Callable[[], Figure]] = {}
    square = [m for m in settings if m.setting.name.startswith("square")]
    if len({m.setting.len_q for m in square}) > 1:
        drawings["time"] = lambda: by_length(square, results, PASSES, seconds_of, seconds, TIME)
        drawings["memory"] = lambda: by_length(square, results, [BOTH], bytes_of, size, MEMORY)
    if square:
        drawings["error"] = lambda: error_figure(square, results)
    named = {shape.name for shape in shapes("cpu")}
    if any(m.setting.name in named for m in settings):
        shown = [m for m in settings if m.setting.name in named]
        drawings["shapes"] = lambda: shapes_figure(shown, results)
    written = []
    for kind, compose in drawings.items():
        for suffix, data in render(compose).items():
            written.append(f"{name}-{kind}.{suffix}")
            write_atomic(folder / written[-1], data)
    return written


def seconds_of(p: Pass) -> float | None:
    """The median time of a pass, or None."""
    return p.times.median if p.timed() else None


def bytes_of(p: Pass) -> float | None:
    """The peak memory of a pass, or None."""
    return p.bytes if p.timed() and p.bytes else None


# The order of the lines from top to bottom in most panels, used for the legend.
SLOW_FIRST = (
    "FlexAttention", "Keras", "textbook eager", "textbook compiled", "dot math", "exact", "sine matched",
    "sine fast", "dot efficient", "dot flash", "dot",
)  # fmt: skip
TIME = "Additive attention: time of a call by length"
MEMORY = "Additive attention: peak memory above the inputs by length, forward and backward"


def by_length(
    square: list[Measured],
    results: Results,
    passes: Sequence[str],
    value: Callable[[Pass], float | None],
    spell: Callable[[float], str],
    headline: str,
) -> Figure:
    """A figure with a row of panels for each pass and a column for each hidden width; log axes."""
    widths = sorted({m.setting.hidden for m in square})
    rows, columns = len(passes), len(widths)
    # In inches: margins for the axis labels and the legend, then 2.35 x 2.6 for each panel.
    wide, high = 2.15 + max(2.35 * columns, 6.4), 1.1 + 2.6 * rows
    figure = Figure(figsize=(wide, high))
    grid = figure.subplots(rows, columns, sharex=True, sharey="row", squeeze=False)
    figure.subplots_adjust(
        left=0.78 / wide, right=1 - 1.6 / wide, top=1 - 0.98 / high, bottom=0.56 / high,
        wspace=0.08, hspace=0.14,
    )  # fmt: skip
    shown: set[str] = set()
    for i, which in enumerate(passes):
        found = {hidden: lines(square, hidden, which, value) for hidden in widths}
        shown |= {name for panel in found.values() for name in panel}
        all_there_is = results.machine.get("memory_bytes") if value is bytes_of else None
        for j, hidden in enumerate(widths):
            axes = grid[i][j]
            if all_there_is:
                ceiling(axes, all_there_is, j == 0)
            for name, points in found[hidden].items():
                draw_line(axes, name, points)
            log_axes(axes, sorted({m.setting.len_q for m in square}), spell, j == 0)
            if i == 0:
                axes.set_title(f"hidden {hidden}", size=10, weight="bold")
        finer_ticks(grid[i][0], spell)
        if rows > 1:
            grid[i][0].set_ylabel(which, size=10)
    for axes in grid[-1]:
        axes.set_xlabel("length", size=9)
    names = {name: spelled(name, square) for name in SLOW_FIRST if name in shown}
    legend(figure, names, wide)
    head(figure, headline, results, square[0], high)
    return figure


def lines(
    square: list[Measured], hidden: int, which: str, value: Callable[[Pass], float | None]
) -> dict[str, list[Point]]:
    """The points of every candidate, ordered by length."""
    found: dict[str, list[Point]] = {}
    for m in sorted(square, key=lambda m: m.setting.len_q):
        if m.setting.hidden != hidden:
            continue
        for name, p in (drawn(m, which) | other_dots(m, which)).items():
            height = value(p)
            if height is not None:
                point = Point(m.setting.len_q, height, p.scaled_from is not None)
                found.setdefault(name, []).append(point)
    return found


def log_axes(axes: Axes, lengths: list[int], spell: Callable[[float], str], left: bool) -> None:
    """Make both axes logarithmic, with ticks labelled in units."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(lengths[:: 2 if len(lengths) > 4 else 1]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: length(x)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    # Memory is labelled in powers of 32 (KiB, 32 KiB, MiB, ...), time in powers of 10.
    axes.yaxis.set_major_locator(LogLocator(32 if spell is size else 10, numticks=9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: tick(spell(y))))
    axes.yaxis.set_minor_formatter(NullFormatter())
    plain(axes)
    axes.tick_params(axis="y", labelleft=left, length=3 if left else 0)


def finer_ticks(axes: Axes, spell: Callable[[float], str]) -> None:
    """Add ticks within decades if the axis spans less than two of them."""
    low, high = axes.get_ylim()
    if high < 100 * low:
        subs = (1.0, 2.0, 4.0, 8.0, 16.0) if spell is size else (1.0, 3.0)
        axes.yaxis.set_major_locator(LogLocator(32 if spell is size else 10, subs=subs, numticks=9))


def ceiling(axes: Axes, count: int, named: bool) -> None:
    """Draw a line at the memory of the device; points above it were scaled from fewer heads."""
    axes.axhline(count, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
    if named:
        axes.annotate(
            "all memory", (0.02, count), (0, 3), xycoords=("axes fraction", "data"),
            textcoords="offset points", size=7.5, color=GREY,
        )  # fmt: skip


def legend(figure: Figure, names: dict[str, str], wide: float) -> None:
    """Add a legend in the right margin, in the order of the lines; our engines in bold."""
    handles = [
        Line2D([], [], color=LOOKS[name][0], marker=LOOKS[name][1], ms=5, lw=thickness(name))
        for name in names
    ]  # fmt: skip
    found = figure.legend(
        handles, list(names.values()), loc="center left", frameon=False, fontsize=8.5,
        bbox_to_anchor=(1 - 1.55 / wide, 0.5), handlelength=1.6, labelspacing=0.8,
    )  # fmt: skip
    for name, text in zip(names, found.get_texts(), strict=True):
        text.set_color(LOOKS[name][0])
        text.set_fontweight("bold" if name in OURS else "normal")


def length(x: float) -> str:
    """A length as a tick label: `512`, `4k`."""
    return f"{x / 1024:g}k" if x >= 1024 else f"{x:g}"
