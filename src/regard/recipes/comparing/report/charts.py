"""The drawings of a comparison: quality against cost, and differences to the reference."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from regard.figures.canvas import BLUE, GREEN, GREY, LOOKS, ORANGE, PURPLE, RED, SKY, Canvas
from regard.figures.render import tick
from regard.measuring.words import seconds
from regard.recipes.comparing.sentences import SAME
from regard.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from regard.recipes.comparing.results import Compared, ComparedRow

WIDE = 5.0  # inches: narrow enough for a phone
ROW_HIGH = 0.3  # inches of a row of the forest plot
DARK = "#444444"
# Of rows that are named after no score, such as a way to attend: marks that no score has.
OTHERS = ((ORANGE, "h"), (PURPLE, "<"), (GREEN, ">"), (SKY, "p"), (RED, "d"))
MARKS = "*Xov^sDPph<>d8"  # of rows that share a colour
TRAIN = Text("training time of one run", "一次训练的耗时")
TO_REFERENCE = Text("difference to {}, {}", "与{}之差，{}")
BETTER = (Text("better →", "更好 →"), Text("← better", "← 更好"))
LEAST_TIME = 1e-4  # seconds: the axis is logarithmic


def looks(found: Compared) -> dict[str, tuple[str, str]]:
    """Colour and mark of each row: a score's own, the same in every figure of the library; no two alike."""
    taken: dict[str, tuple[str, str]] = {}
    # By name, so that a row looks the same whatever its rank; "dot" before "dot, with a residual".
    for row in sorted(found.rows, key=lambda row: (row.kind != "score", len(row.name), row.name)):
        wanted = choices(row)
        taken[row.name] = next((x for x in wanted if x not in taken.values()), wanted[0])
    return taken


def choices(row: ComparedRow) -> list[tuple[str, str]]:
    """The looks that suit a row, the best first."""
    if row.kind != "score":
        ink = GREY if row.kind == "control" else DARK
        marks = MARKS[1:] if row.kind == "control" else MARKS
        return [(ink, mark) for mark in marks]
    name = row.name.replace("_", " ").removeprefix("projected ")
    known = [key for key in LOOKS if name == key] or [key for key in LOOKS if name.startswith(key)]
    first = [LOOKS[known[0]]] if known else list(OTHERS)
    return first + [(first[0][0], mark) for mark in MARKS]


def safe(text: str) -> str:
    """The text for matplotlib, to which a dollar sign starts a formula."""
    return text.replace("$", r"\$")


def cost_chart(found: Compared, canvas: Canvas) -> None:
    """Quality, with its interval, against training time."""
    entries = math.ceil(len(found.rows) / 2)
    (axes,) = canvas.panels(1, wide=WIDE, high=3.2 + 0.2 * entries)
    marks = looks(found)
    for row in reversed(found.rows):  # the best is drawn last, on top of the others
        if not math.isfinite(row.value.value):
            continue
        ink, mark = marks[row.name]
        ends = [[row.value.value - row.value.low], [row.value.high - row.value.value]]
        axes.errorbar(
            max(row.train_seconds, LEAST_TIME), row.value.value, yerr=ends, fmt=mark, color=ink, ms=7,
            mec="white", mew=0.6, capsize=2, lw=1.2, label=safe(canvas.say(row.title)),
        )  # fmt: skip
    log_times(axes, [max(row.train_seconds, LEAST_TIME) for row in found.rows])
    canvas.label(axes, TRAIN, found.metric.title)
    handles, labels = axes.get_legend_handles_labels()
    canvas.figure.legend(
        handles[::-1],
        labels[::-1],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=7.5,
    )


def log_times(axes: Axes, times: list[float]) -> None:
    """Make the axis of times logarithmic, with ticks even if all times lie in one decade."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_xscale("log")
    axes.set_xlim(min(times) / 1.4, max(times) * 1.4)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick(seconds(x))))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if max(times) < 20 * min(times):
        axes.set_xticks(
            sorted({min(times), max(times)} if max(times) > 2 * min(times) else {max(times)})
        )


def forest_chart(found: Compared, canvas: Canvas) -> None:
    """The difference of every row to the reference, with its interval, the best on top."""
    rows = [row for row in found.rows if row.difference is not None]
    (axes,) = canvas.panels(1, wide=WIDE, high=1.1 + ROW_HIGH * max(len(rows), 1))
    axes.axvline(0, color=BLUE, lw=1.2)
    marks = looks(found)
    for y, row in enumerate(reversed(rows)):
        assert row.difference is not None
        ink, mark = marks[row.name]
        axes.plot([row.difference.low, row.difference.high], [y, y], color=ink, lw=1.8, alpha=0.7)
        axes.plot(row.difference.value, y, marker=mark, color=ink, ms=6.5)
    for y, row in enumerate(reversed(rows)):
        if row.difference is not None and row.difference.low == row.difference.high:
            note(axes, row.difference.value, y, safe(canvas.say(SAME)))
    axes.set_yticks(range(len(rows)), [safe(canvas.say(row.title)) for row in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(False, axis="y")
    reference = canvas.say(found.row(found.reference).title)
    side = canvas.say(BETTER[0] if found.metric.greater else BETTER[1])
    label = canvas.say(TO_REFERENCE).format(reference, canvas.say(found.metric.title))
    axes.set_xlabel(safe(f"{label}\n{side}"))


def note(axes: Axes, x: float, y: float, told: str) -> None:
    """Words beside a mark, on the side where there is room."""
    left = x > sum(axes.get_xlim()) / 2
    axes.annotate(
        told, (x, y), (-8 if left else 8, 0), textcoords="offset points", fontsize=8,
        ha="right" if left else "left", va="center",
    )  # fmt: skip


CHARTS = {"forest": forest_chart, "cost": cost_chart}
