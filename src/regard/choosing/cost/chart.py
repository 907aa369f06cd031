"""The chart of a cost report: time and memory of each score, ours and the textbook's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from regard.choosing.cost.results import CostReport, CostRow
from regard.figures.render import FAINT, OURS, TEXTBOOK, brief, render, size, tick
from regard.measuring.words import number, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(report: CostReport) -> dict[str, bytes]:
    """The chart as PNG and SVG, by suffix."""
    return render(lambda: compose(report))


def compose(report: CostReport) -> Figure:
    """A figure with two panels that share their rows, the fastest score on top."""
    rows = sorted((r for r in report.rows if r.timed()), key=lambda r: r.both.median)
    height = 1.75 + 0.36 * len(rows)
    figure = Figure(figsize=(9.6, height))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.3, 1))
    figure.subplots_adjust(
        left=0.172, right=0.975, wspace=0.07, top=1 - 0.86 / height, bottom=0.84 / height
    )
    left.set_yticks(range(len(rows)), [row.candidate.label for row in rows])
    left.set_ylim(len(rows) - 0.4, -0.6)
    for label, row in zip(left.get_yticklabels(), rows, strict=True):
        label.set(color=colour(row), weight="bold" if row is report.baseline else "normal")
    time_panel(left, rows, report.baseline)
    memory_panel(right, rows)
    figure.text(0.012, 1 - 0.24 / height, headline(report), size=12, weight="bold", va="center")
    figure.text(0.012, 1 - 0.50 / height, subtitle(report), size=8.2, color="#555555", va="center")
    legend(figure, height)
    return figure


def time_panel(axes: Axes, rows: list[CostRow], base: CostRow | None) -> None:
    """Draw forward and forward+backward times with their interquartile ranges."""
    for y, row in enumerate(rows):
        ink, text = colour(row), seconds(row.both.median)
        if base is not None and base.timed() and row is not base:
            text += f"  ({number(row.both.over(base.both).median)}x)"
        axes.plot(
            [row.forward.median, row.both.median], [y, y], color=ink, lw=1.1, alpha=0.35, zorder=2
        )
        for found, filled in ((row.forward, False), (row.both, True)):
            low, high = found.quartiles
            axes.plot([low, high], [y, y], color=ink, lw=3.4, alpha=0.45, zorder=3)
            dot(axes, found.median, y, ink, filled)
        beside(axes, max(row.both.median, row.both.quartiles[1]), y, text, ink)
    if base is not None and base.timed():
        axes.axvline(base.both.median, color=OURS, lw=0.9, ls=(0, (4, 3)), alpha=0.7, zorder=1)
    values = [t.median for row in rows for t in (row.forward, row.both)]
    log_axis(axes, values, seconds, room=0.42)
    axes.set_xlabel("time of one call (log scale)")


def memory_panel(axes: Axes, rows: list[CostRow]) -> None:
    """Draw the peak memory of both passes."""
    values = []
    for y, row in enumerate(rows):
        ink = colour(row)
        forward, both = max(row.forward_memory or 1, 1), max(row.both_memory or 1, 1)
        axes.plot([forward, both], [y, y], color=ink, lw=1.1, alpha=0.35, zorder=2)
        dot(axes, forward, y, ink, filled=False)
        dot(axes, both, y, ink, filled=True)
        beside(axes, max(forward, both), y, size(both), ink)
        values += [forward, both]
    log_axis(axes, values, size, room=0.28, base=2)
    axes.set_xlabel("peak memory above the inputs (log scale)")


def dot(axes: Axes, x: float, y: float, ink: str, filled: bool) -> None:
    """Draw a mark: open for forward, filled for forward and backward."""
    axes.plot(
        x, y, marker="o" if filled else "D", ms=6 if filled else 5, mew=1.3, mec=ink,
        mfc=ink if filled else "white", zorder=4,
    )  # fmt: skip


def beside(axes: Axes, x: float, y: float, text: str, ink: str) -> None:
    """Write the value to the right of its mark."""
    axes.annotate(
        text, (x, y), (8, 0), textcoords="offset points", va="center", size=8, color=ink,
        bbox={"fc": "white", "ec": "none", "pad": 0.6},
    )  # fmt: skip


def log_axis(
    axes: Axes, values: list[float], spell: Callable[[float], str], room: float, base: int = 10
) -> None:
    """Make the axis logarithmic, with units at the ticks and room for labels on the right."""
    low, high = min(values), max(values)
    axes.set_xscale("log", base=base)
    # The room grows with the decades shown, because labels have a fixed width on paper.
    reach = max(high / low, 4.0)
    axes.set_xlim(low / reach**0.07, high * reach**room)
    if base == 10:
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 3.0) if reach < 300 else (1.0,)))
    else:
        axes.xaxis.set_major_locator(LogLocator(4 if reach < 2**9 else 16, numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick(spell(x))))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.grid(axis="x", color=FAINT, lw=0.7)
    axes.grid(axis="y", color="#F0F0F0", lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def legend(figure: Figure, height: float) -> None:
    """Add a legend of marks and colours."""
    grey = {"color": "#555555", "ls": "", "mew": 1.3}
    entries = [
        Line2D([], [], marker="D", mfc="white", ms=5, label="forward", **grey),
        Line2D([], [], marker="o", ms=6, label="forward and backward", **grey),
        Line2D([], [], color="#555555", lw=3.2, alpha=0.5, label="interquartile range"),
        Line2D([], [], color=OURS, lw=0.9, ls=(0, (4, 3)), label="baseline, 1x"),
        Line2D([], [], color=OURS, marker="s", ls="", ms=6, label="regard"),
        Line2D([], [], color=TEXTBOOK, marker="s", ls="", ms=6, label="textbook, eager PyTorch"),
    ]
    figure.legend(
        handles=entries, loc="lower center", ncols=6, frameon=False, fontsize=8.5,
        handletextpad=0.4, columnspacing=1.6, bbox_to_anchor=(0.5, 0.02 / height),
    )  # fmt: skip


def headline(report: CostReport) -> str:
    """The headline of the chart."""
    ours, theirs = report.find("additive"), report.find("textbook_additive")
    if not (ours and theirs and ours.timed() and theirs.timed() and ours.both_memory):
        return "What each attention score costs"
    time = theirs.both.over(ours.both).median
    space = (theirs.both_memory or 0) / ours.both_memory
    return (
        f"Additive attention as the textbook writes it: {brief(time)} the time and "
        f"{brief(space)} the memory of regard's"
    )


def subtitle(report: CostReport) -> str:
    """The shape and the machine."""
    s, m = report.shape, report.machine
    place = (
        m["name"]
        if m["device"] == "cuda"
        else f"{m['threads']} CPU thread{'s' * (m['threads'] > 1)}"
    )
    lengths = f"{s.len_q} queries, {s.len_k} keys"
    return (
        f"d_q {s.d_q}, d_k {s.d_k}, {lengths}, {s.heads} heads, hidden {s.hidden}, "
        f"projections {s.width} wide, batch {s.batch}, {s.dtype}{', causal' * s.causal}; "
        f"{place}, torch {m['torch']}"
    )


def colour(row: CostRow) -> str:
    """Blue for the library, vermilion for the textbook."""
    return TEXTBOOK if row.candidate.textbook else OURS
