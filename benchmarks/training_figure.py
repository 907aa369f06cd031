"""The figure of training_equivalence.py: curves, their distance, and what left the range."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# From the palette of Okabe and Ito; the dashes differ too, so that it can be read in grey.
LOOKS = {
    "textbook": {"color": "#D55E00", "linestyle": "-", "linewidth": 3.2, "alpha": 0.45},
    "exact": {"color": "#222222", "linestyle": "--", "linewidth": 1.4},
    "sine": {"color": "#0072B2", "linestyle": "-", "linewidth": 1.2},
}
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "svg.hashsalt": "regard",  # the same file for the same numbers
}
BAND = "#D9D9D9"
# Differences below rounding are drawn here: a logarithmic axis has no 0.
FLOOR = 1e-7


def draw(summary: dict[str, dict], beside: Path) -> None:
    """Write the figure beside the JSON, as PNG and SVG."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.2 * len(summary), 7.2), layout="constrained")
        FigureCanvasAgg(figure)
        rows = figure.subplots(
            3, len(summary), squeeze=False, sharex="col", sharey="row", height_ratios=[3, 2, 1.4]
        )
        for column, (case, found) in enumerate(summary.items()):
            curves(rows[0][column], case, found)
            distances(rows[1][column], found)
            escapes(rows[2][column], found)
        for axis, label in zip(
            rows[:, 0],
            ("held-out loss, mean over seeds", "distance from the textbook", "left the range"),
            strict=True,
        ):
            axis.set_ylabel(label)
        rows[0][0].legend(frameon=False)
        # Above its panel: inside, the band would cover it.
        rows[1][0].legend(
            frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1)
        )
        figure.savefig(beside.with_suffix(".png"), dpi=150)
        figure.savefig(beside.with_suffix(".svg"), metadata={"Date": None})


def curves(axis, case: str, found: dict) -> None:
    """The mean over seeds of each engine, in the textbook's band of one standard deviation."""
    steps, spread = found["step"], found["spread over seeds"]
    middle = found["engines"]["textbook"]["mean"]
    low, high = ([m + sign * s for m, s in zip(middle, spread, strict=True)] for sign in (-1, 1))
    axis.fill_between(steps, low, high, color=BAND, linewidth=0)
    for engine, row in found["engines"].items():
        axis.plot(steps, row["mean"], label=engine, **LOOKS[engine])
    axis.set_title(case)


def distances(axis, found: dict) -> None:
    """Between the curves, below the spread over seeds that they would have to reach."""
    steps, spread = found["step"], found["spread over seeds"]
    axis.fill_between(steps, FLOOR, spread, color=BAND, linewidth=0, label="spread over seeds")
    for engine, row in found["engines"].items():
        if engine != "textbook":
            apart = [max(x, FLOOR) for x in row["difference"]]
            axis.plot(steps, apart, label=engine, **LOOKS[engine])
    axis.set_yscale("log")
    axis.set_ylim(bottom=FLOOR)


def escapes(axis, found: dict) -> None:
    """The share of training steps that exact attention answered in place of the series."""
    sine = found["engines"]["sine"]
    share = found["share of steps that left the range"]
    axis.stairs([100 * x for x in share], found["step"], fill=True, color=LOOKS["sine"]["color"])
    axis.set_ylim(0, 100)
    axis.yaxis.set_major_formatter("{x:.0f}%")
    axis.set_xlabel(f"steps; {sine['escapes']} of {sine['calls']} calls left the range")
