"""Quality against cost, and learning curves, as drawings to put into the page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from regard.choosing.training.trainer import DIVERGED
from regard.choosing.training.verdict import Row, Verdict
from regard.choosing.training.words import SHARES
from regard.claims.canvas import GREY, LOOKS, ORANGE
from regard.claims.report.figures import inline, width_of
from regard.measuring.figure import FAINT, render, tick
from regard.measuring.words import seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (6.2, 3.6)
DASHES = {"none": "-", "layer_norm": "--", "clipped_keys": ":", "temperature": "-."}
Drawing = tuple[Markup, float, str]


def look(row: Row) -> tuple[str, str]:
    """Colour and mark of a score, the same in every figure of the library."""
    name = row.candidate.score.replace("_", " ")
    return LOOKS.get(name, (ORANGE, "h") if name == "gatv2" else (GREY, "*"))


def cost_chart(verdict: Verdict, prefix: str) -> Drawing:
    """Quality with its interval against the time of a step."""
    caption = (
        f"{verdict.metric.capitalize()} on the test part, with its 95% interval over seeds, against the time of "
        "one training step. Up and to the left is better; open marks have a stabiliser."
    )

    def compose() -> Figure:
        figure, axes = canvas()
        rows = [row for row in verdict.rows if row.quality and row.cost is not None]
        factor = scale(verdict)
        for row in sorted(rows, key=lambda row: row.mean().value):
            assert row.cost is not None
            ink, mark = look(row)
            found = row.mean()
            half = factor * (found.high - found.value) if math.isfinite(found.high) else 0.0
            filled = row.candidate.stabilizer == "none"
            axes.errorbar(
                row.cost.seconds, factor * found.value, yerr=half, fmt=mark, color=ink, ms=7,
                mfc=ink if filled else "white", capsize=3, lw=1.2, label=row.candidate.label,
            )  # fmt: skip
        axes.set_xscale("log")
        times = [row.cost.seconds for row in rows if row.cost is not None]
        axes.set_xlim(min(times) / 1.4, max(times) * 1.4)
        for axis in (axes.xaxis,):
            axis.set_major_formatter(FuncFormatter(lambda x, _: tick(seconds(x))))
            axis.set_minor_formatter(FuncFormatter(lambda x, _: ""))
        if len({round(math.log10(x)) for x in times}) == 1:
            axes.set_xticks(sorted({min(times), max(times)}))
        axes.set_xlabel("time of a training step")
        axes.set_ylabel(unit(verdict))
        legend(axes)
        return figure

    return drawing(compose, f"{prefix}-cost", caption)


def curve_chart(verdict: Verdict, prefix: str) -> Drawing:
    """Quality on the validation part against steps, for all that were trained."""
    caption = (
        f"{verdict.metric.capitalize()} on the validation part while training: finalists as the mean over seeds, "
        "the others, thin, as far as the search let them come."
    )

    def compose() -> Figure:
        figure, axes = canvas()
        factor = scale(verdict)
        for row in verdict.rows:
            points = [(step, factor * value) for step, value in row.curve if value > DIVERGED]
            if not points:
                continue
            final, (ink, mark) = row.status == "final", look(row)
            axes.plot(
                *zip(*points, strict=True), color=ink, marker=mark, ms=4 if final else 2.5,
                lw=1.8 if final else 0.8, alpha=1.0 if final else 0.55,
                ls=DASHES.get(row.candidate.stabilizer, "-"), label=row.candidate.label,
            )  # fmt: skip
        axes.set_xlabel("training steps")
        axes.set_ylabel(unit(verdict))
        legend(axes)
        return figure

    return drawing(compose, f"{prefix}-curve", caption)


def canvas() -> tuple[Figure, Axes]:
    """Axes with a light grid and no frame."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend(axes: Axes) -> None:
    """Beside the drawing: no curve is hidden by it."""
    axes.legend(frameon=False, fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5))


def scale(verdict: Verdict) -> float:
    """To hundredths where the metric is a share."""
    return 100.0 if verdict.metric in SHARES else 1.0


def unit(verdict: Verdict) -> str:
    """The name of the axis."""
    return f"{verdict.metric}, %" if verdict.metric in SHARES else verdict.metric


def drawing(compose, prefix: str, caption: str) -> Drawing:
    """The drawing as markup, its width, and what it shows."""
    svg = inline(render(compose, suffixes=["svg"])["svg"].decode(), prefix, caption)
    return Markup(svg), width_of(svg), caption  # noqa: S704 - matplotlib escapes
