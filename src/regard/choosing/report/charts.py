"""The report's drawings: quality against cost, learning curves, and the overview of all tasks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from regard.choosing.report.words import OVER_NULL, STEP, STEPS, TIMES_NULL
from regard.choosing.training.candidates import LABELS
from regard.choosing.training.phrases import SHARES, metric_of
from regard.choosing.training.rows import CandidateRow
from regard.choosing.training.trainer import DIVERGED
from regard.choosing.training.verdict import Verdict
from regard.choosing.training.words import undecided
from regard.figures.canvas import GREY, LOOKS, ORANGE
from regard.figures.render import FAINT, render, tick
from regard.measuring.statistics import Estimate
from regard.measuring.words import seconds
from regard.page.drawing import in_both, inline, width_of
from regard.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (5.0, 4.4)  # narrow enough for a phone
ROW_HEIGHT = 0.46  # inches of one task in the overview
DASHES = {"none": "-", "layer_norm": "--", "clipped_keys": ":", "temperature": "-."}


@dataclass(frozen=True)
class Drawing:
    """A drawing for the page.

    Attributes:
        id: id of its caption, which labels it for screen readers.
        markup: an `svg` element.
        width: width in its own units, in which letters are about 9 high.
        caption: what it shows.
    """

    id: str
    markup: Markup
    width: float
    caption: Text


def look(row: CandidateRow, beside: Sequence[CandidateRow] = ()) -> tuple[str, str]:
    """Colour and mark of a score, the same in every figure of the library.

    If `beside` holds the same score with a wider hidden layer, the colour is paler.
    """
    name = row.candidate.score.replace("_", " ")
    ink, mark = LOOKS.get(name, (ORANGE, "h") if name == "gatv2" else (GREY, "*"))
    alike = [other.candidate for other in beside if other.candidate.score == row.candidate.score]
    wider = {x.hidden for x in alike if (x.hidden or 0) > (row.candidate.hidden or 0)}
    return (paler(ink), mark) if wider else (ink, mark)


def paler(ink: str) -> str:
    """The colour halfway to white."""
    red, green, blue = to_rgb(ink)
    return to_hex(((1 + red) / 2, (1 + green) / 2, (1 + blue) / 2))


def cost_chart(verdict: Verdict, prefix: str) -> Drawing:
    """A drawing of quality, with its interval, against the time of a training step."""
    metric, rows = metric_of(verdict), [r for r in verdict.rows if r.quality and r.cost is not None]

    def compose() -> Figure:
        figure, axes = canvas()
        factor = scale(verdict)
        # The best is drawn last, on top of the others.
        for row in sorted(rows, key=lambda row: row.mean().value):
            assert row.cost is not None
            ink, mark = look(row, rows)
            found = row.mean()
            # The interval of a single seed is infinite: draw no error bar.
            half = factor * (found.high - found.value) if math.isfinite(found.high) else 0.0
            filled = row.candidate.stabilizer == "none"
            axes.errorbar(
                row.cost.seconds, factor * found.value, yerr=half, fmt=mark, color=ink, ms=7,
                mfc=ink if filled else "white", capsize=3, lw=1.2, label=safe(row.candidate.label.en),
            )  # fmt: skip
        log_times(axes, [row.cost.seconds for row in rows if row.cost is not None])
        axes.set_xlabel(STEP.en)
        axes.set_ylabel(safe(unit(verdict).en))
        legend(figure, axes)
        return figure

    return drawing(
        compose,
        f"{prefix}-cost",
        Text(
            f"{heading(metric)} on the test part, with its 95% interval for new seeds and rows, against the "
            "time of one training step. Up and to the left is better; open marks have a stabiliser, pale "
            "ones fewer hidden units.",
            f"测试部分上的{metric.zh}（及对新种子和新数据行的 95% 区间）与训练一步的耗时。越靠左上越好；空心标记带有稳定措施，浅色标记的隐藏单元较少。",
        ),
        [STEP, unit(verdict), *(row.candidate.label for row in rows)],
    )


def curve_chart(verdict: Verdict, prefix: str) -> Drawing:
    """A drawing of quality on the validation part against steps, for every trained candidate."""
    metric = metric_of(verdict)

    def compose() -> Figure:
        figure, axes = canvas()
        factor = scale(verdict)
        for row in verdict.rows:
            # A diverged point, at -1e30, would flatten all curves.
            points = [(step, factor * value) for step, value in row.curve if value > DIVERGED]
            if not points:
                continue
            final, (ink, mark) = row.status == "final", look(row, verdict.rows)
            axes.plot(
                *zip(*points, strict=True), color=ink, marker=mark, ms=4 if final else 2.5,
                lw=1.8 if final else 0.8, alpha=1.0 if final else 0.55,
                ls=DASHES.get(row.candidate.stabilizer, "-"), label=safe(row.candidate.label.en),
            )  # fmt: skip
        axes.set_xlabel(STEPS.en)
        axes.set_ylabel(safe(unit(verdict).en))
        legend(figure, axes)
        return figure

    return drawing(
        compose,
        f"{prefix}-curve",
        Text(
            f"{heading(metric)} on the validation part during training. Finalists are means over seeds; "
            "the others, drawn thin, end where the search dropped them.",
            f"训练过程中验证部分上的{metric.zh}：决赛候选为各种子的平均，其余（细线）止于搜索淘汰它们之处。",
        ),
        [STEPS, unit(verdict), *(row.candidate.label for row in verdict.rows)],
    )


def overview_chart(named: Sequence[tuple[Text, Verdict]]) -> Drawing | None:
    """A drawing of all tasks: the lead of each alternative over scaled dot, and its step time.

    None if fewer than two tasks have a metric in points.
    """
    named = [(name, verdict) for name, verdict in named if verdict.metric in SHARES]
    marks = [
        Mark(y, verdict, row, found)
        for y, (_, verdict) in enumerate(named)
        for row in verdict.rows
        if (found := verdict.over(row)) is not None
    ]
    if len(named) < 2 or not marks:
        return None

    def compose() -> Figure:
        figure = Figure(figsize=(8.6, 1.0 + ROW_HEIGHT * len(named)), layout="constrained")
        gain, cost = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for axes, zero in ((gain, 0), (cost, 1)):
            plain(axes)
            axes.tick_params(axis="y", length=0)
            axes.axvline(zero, color="#444444", lw=1.0)
        for mark in sorted(marks, key=lambda mark: mark.wins):
            mark.draw(gain, cost)
        gain.set_yticks(range(len(named)), [safe(name.en) for name, _ in named])
        gain.invert_yaxis()
        gain.set_xlabel(OVER_NULL.en)
        cost.set_xlabel(TIMES_NULL.en)
        cost.set_xscale("log")
        cost.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
        cost.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
        cost.xaxis.set_minor_formatter(NullFormatter())
        handles = {mark.kind.en: mark.handle() for mark in marks}
        figure.legend(
            handles=list(handles.values()), loc="outside upper left", ncols=4, frameon=False,
            fontsize=8,
        )  # fmt: skip
        return figure

    return drawing(
        compose,
        "overview",
        Text(
            "The lead of each finalist over scaled dot, with its 95% interval, and the time of its training "
            "step over scaled dot's. Large marks are winners, open ones have a stabiliser.",
            "各决赛候选比缩放点积高多少（及 95% 区间），以及训练一步的耗时是缩放点积的几倍；大标记为胜者，空心标记带有稳定措施。",
        ),
        [OVER_NULL, TIMES_NULL, *(name for name, _ in named), *(mark.kind for mark in marks)],
    )


@dataclass(frozen=True)
class Mark:
    """One finalist in the overview: the row of its task and its lead over scaled dot."""

    y: int
    verdict: Verdict
    row: CandidateRow
    found: Estimate

    @property
    def wins(self) -> bool:
        """Whether it is the winner of a decided comparison."""
        return not undecided(self.verdict) and self.row.candidate.name == self.verdict.winner

    @property
    def kind(self) -> Text:
        """The name of its score, without sizes."""
        return LABELS.get(self.row.candidate.score, self.row.candidate.label)

    def draw(self, gain: Axes, cost: Axes) -> None:
        """Draw the mark in both panels."""
        ink, shape = look(self.row)
        size, alpha = (8, 1.0) if self.wins else (5, 0.6)
        filled = ink if self.row.candidate.stabilizer == "none" else "white"
        if math.isfinite(self.found.low):
            ends = [100 * self.found.low, 100 * self.found.high]
            gain.plot(ends, [self.y, self.y], color=ink, lw=1.6, alpha=0.5)
        ratio = self.verdict.times_null(self.row)
        for axes, x in ((gain, 100 * self.found.value), (cost, ratio)):
            if x is not None:
                axes.plot(x, self.y, marker=shape, color=ink, ms=size, mfc=filled, alpha=alpha)

    def handle(self) -> Line2D:
        """The entry in the legend."""
        ink, shape = look(self.row)
        return Line2D([], [], color=ink, marker=shape, ls="", ms=6, label=safe(self.kind.en))


def canvas() -> tuple[Figure, Axes]:
    """A figure with one panel."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    plain(axes)
    return figure, axes


def plain(axes: Axes) -> None:
    """Style the axes with a light grid and no frame."""
    axes.grid(color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def log_times(axes: Axes, times: list[float]) -> None:
    """Make the axis of times logarithmic, with ticks even if all times lie in one decade."""
    axes.set_xscale("log")
    axes.set_xlim(min(times) / 1.4, max(times) * 1.4)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick(seconds(x))))
    axes.xaxis.set_minor_formatter(NullFormatter())
    # Within a decade or two the powers of ten are one tick, or none.
    if max(times) < 30 * min(times):
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    if max(times) < 2.5 * min(times):
        axes.set_xticks(sorted({min(times), max(times)}))


def legend(figure: Figure, axes: Axes) -> None:
    """Add a legend below the drawing, where it hides no curve and fits a narrow screen."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=7.5,
                  handlelength=3.2)  # fmt: skip # dashes need room to be told from a line


def safe(text: str) -> str:
    """A user's name escaped for matplotlib: `$` starts a formula, a leading `_` hides the label."""
    text = text.replace("$", r"\$")
    return f"\N{ZERO WIDTH SPACE}{text}" if text.startswith("_") else text


def scale(verdict: Verdict) -> float:
    """The factor of the metric's axis: 100 for a share, shown as percent, else 1."""
    return 100.0 if verdict.metric in SHARES else 1.0


def heading(metric: Text) -> str:
    """The metric's name with a capital first letter; `capitalize` would lower the rest of NDCG."""
    return metric.en[:1].upper() + metric.en[1:]


def unit(verdict: Verdict) -> Text:
    """The label of the metric's axis."""
    metric = metric_of(verdict)
    if verdict.metric not in SHARES:
        return metric
    return Text(f"{metric.en}, %", f"{metric.zh}，%")


def drawing(compose: Callable[[], Figure], name: str, caption: Text, labels: list[Text]) -> Drawing:
    """The drawing with its labels in both languages."""
    with warnings.catch_warnings():
        # SVG keeps letters as text, so the reader's fonts draw glyphs that ours lack.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        svg = render(compose, suffixes=["svg"])["svg"].decode()
    svg = inline(svg, name, aria_labelledby=f"{name}-caption")
    svg = in_both(svg, {text.en: text.zh for text in labels})
    return Drawing(f"{name}-caption", Markup(svg), width_of(svg), caption)  # noqa: S704 - matplotlib escapes
