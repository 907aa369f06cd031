"""`Canvas`: one figure in one language, in the style of all claims.

matplotlib is imported when something is drawn: measuring and judging do not need it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from regard.text import Language, Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From the palette of Okabe and Ito, which colour-blind readers can tell apart. A score has the same
# colour and mark in every figure.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B8A800", "#777777",
)  # fmt: skip
LOOKS = {
    "dot": (RED, "v"),
    "scaled dot": (BLUE, "o"),
    "cosine": (GREEN, "s"),
    "additive": (ORANGE, "D"),
    "bilinear": (PURPLE, "^"),
    "low rank": (SKY, "P"),
    "gaussian": (YELLOW, "X"),
    "control": (GREY, "."),
}
WORDS = {
    "dot": Text("dot", "点积"),
    "scaled dot": Text("scaled dot", "缩放点积"),
    "cosine": Text("cosine", "余弦"),
    "additive": Text("additive", "加性"),
    "bilinear": Text("bilinear", "双线性"),
    "low rank": Text("low rank", "低秩"),
    "gaussian": Text("Gaussian", "高斯"),
    "control": Text("control", "对照"),
}
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
PANEL = (4.0, 3.0)  # inches of one panel
# PNG needs one of these fonts for Chinese labels. SVG keeps them as text for the reader's own fonts.
CHINESE = [
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "PingFang SC",
]


class Canvas:
    """A figure in one language, for one claim.

    Panels are side by side: `left, right = canvas.panels(2)`. Every label goes through `say`, which
    returns it in the reader's language. Labels of axes name their units.
    """

    def __init__(self, language: Language = "en") -> None:
        from matplotlib.figure import Figure

        self.language: Language = language
        self.figure = Figure(layout="constrained")

    def say(self, text: Text | str) -> str:
        """The text in the reader's language; a plain string is the same in both."""
        return text if isinstance(text, str) else text.of(self.language)

    def panels(self, count: int = 1, wide: float = PANEL[0], high: float = PANEL[1]) -> list[Axes]:
        """Empty axes with a light grid and no frame, from left to right."""
        from regard.figures.render import FAINT

        self.figure.set_size_inches(wide * count, high)
        found = [self.figure.add_subplot(1, count, number + 1) for number in range(count)]
        for axes in found:
            axes.grid(color=FAINT, lw=0.6)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        return found

    def label(self, axes: Axes, x: Text | str, y: Text | str, title: Text | str = "") -> None:
        """Label the axes, with units, and write the title of the panel."""
        axes.set_xlabel(self.say(x))
        axes.set_ylabel(self.say(y))
        axes.set_title(self.say(title), loc="left", fontsize=9.5, fontweight="bold")

    def line(
        self,
        axes: Axes,
        x: Sequence[float],
        y: Sequence[float],
        name: str = "control",
        *,
        label: Text | str | None = None,
        low: Sequence[float] | None = None,
        high: Sequence[float] | None = None,
        **more: Any,
    ) -> None:
        """Draw a line in the colour of its score, with a band from `low` to `high`."""
        ink, mark = LOOKS[name]
        style: dict[str, Any] = {"color": ink, "marker": mark, "ms": 4.5, "lw": 1.8} | more
        shown = WORDS[name] if label is None else label
        axes.plot(x, y, label=self.say(shown), **style)
        if low is not None and high is not None:
            axes.fill_between(x, low, high, color=style["color"], alpha=0.18, lw=0)

    def bars(
        self,
        axes: Axes,
        labels: Sequence[Text | str],
        values: Sequence[float],
        *,
        errors: tuple[Sequence[float], Sequence[float]] | None = None,
        colors: Sequence[str] | None = None,
    ) -> None:
        """Draw vertical bars; `errors` are the lower and upper ends of the intervals."""
        whiskers = None
        if errors is not None:
            below = [v - low for v, low in zip(values, errors[0], strict=True)]
            above = [high - v for v, high in zip(values, errors[1], strict=True)]
            whiskers = [below, above]
        axes.bar(
            range(len(values)), values, yerr=whiskers, capsize=3, width=0.65,
            color=colors or BLUE, ecolor="#444444",
        )  # fmt: skip
        axes.set_xticks(range(len(values)), [self.say(text) for text in labels])
        axes.grid(False, axis="x")

    def bar_line(self, axes: Axes, height: float, label: Text | str) -> None:
        """Draw the threshold of the criterion, or a theoretical value, as a dashed horizontal line."""
        axes.axhline(height, color="#444444", ls=(0, (4, 3)), lw=1.1, label=self.say(label))

    def legend(self, axes: Axes, **more: Any) -> None:
        """Add a legend without a frame."""
        axes.legend(frameon=False, fontsize=8, **more)


def drawn(
    draw: Callable[[Canvas], None],
    language: Language,
    suffixes: Sequence[str] = ("png", "svg"),
) -> dict[str, bytes]:
    """The figure that `draw` makes on a canvas, as PNG and SVG, by suffix."""

    def compose() -> Figure:
        canvas = Canvas(language)
        draw(canvas)
        for axes in canvas.figure.axes:
            write_powers(axes)
        return canvas.figure

    return composed(compose, suffixes)


def composed(
    compose: Callable[[], Figure], suffixes: Sequence[str] = ("png", "svg")
) -> dict[str, bytes]:
    """The figure that `compose` returns, as PNG and SVG, by suffix; Chinese is drawn if a font for it is there."""
    from matplotlib import font_manager

    from regard.figures.render import render

    known = {font.name for font in font_manager.fontManager.ttflist}
    fonts = ["DejaVu Sans", *(name for name in CHINESE if name in known)]
    with warnings.catch_warnings():
        # SVG keeps labels as text, which the reader's fonts draw even if ours lack the characters.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        return render(compose, fonts, suffixes)


def write_powers(axes: Axes) -> None:
    """Label logarithmic axes with plain text, 10⁻³: formulas would take most of the drawing time."""
    from matplotlib.ticker import FuncFormatter, LogFormatter

    for axis in (axes.xaxis, axes.yaxis):
        base = getattr(axis.get_transform(), "base", None)
        if base is not None and isinstance(axis.get_major_formatter(), LogFormatter):
            axis.set_major_formatter(FuncFormatter(lambda value, _, base=base: power(value, base)))


def power(value: float, base: float) -> str:
    """A power as text, such as `10⁻³`; empty if the exponent is not an integer."""
    exponent = math.log(value, base) if value > 0 else math.nan
    if math.isnan(exponent) or abs(exponent - round(exponent)) > 1e-6:
        return ""
    return f"{base:g}" + str(round(exponent)).translate(RAISED)
