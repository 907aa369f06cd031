"""The style of the plots: colours, fonts, sizes in inches, and tokens as labels."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from torch import Tensor

# Characters that DejaVu lacks are drawn with the first of these fonts that is installed.
FURTHER_FONTS = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Zen Hei", "PingFang SC",
    "Hiragino Sans", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS",
)  # fmt: skip
PALE = "#9CCBE8"
SMALL = 7.5  # font size of notes, in points
EM = 0.125  # font size of labels in inches, 9 points
CLOSEST = 0.14  # smallest distance in inches between labels that can still be read
BOLD = 0.09  # width of a column of a title in inches: 11 points, bold
TITLE_LINE = 0.19  # height in inches of each further line of a title
LONGEST = 20  # longest label, in columns; the middle of a longer token is left out
READABLE = 0.2  # smallest square, in inches, in which a number can be read
INVISIBLE = {"\n": "↵", "\r": "↵", "\t": "⇥"}


@contextmanager
def blank() -> Iterator[Figure]:
    """An empty figure in our style; draw on it within this context.

    Raises:
        ImportError: matplotlib is missing.
    """
    try:
        import matplotlib as mpl
        from matplotlib import font_manager
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("regard.plot draws with matplotlib: pip install matplotlib") from None
    from regard.figures.render import STYLE

    known = {font.name for font in font_manager.fontManager.ttflist}
    fonts = ["DejaVu Sans", *(name for name in FURTHER_FONTS if name in known)]
    with mpl.rc_context(STYLE | {"font.family": fonts}):
        # "compressed" is the layout for panels whose shape is fixed.
        yield Figure(layout="compressed", facecolor="white")


def colors() -> Colormap:
    """The colour map: white for 0, then blue, to nearly black, so it works in grey too. NaN is grey."""
    from matplotlib.colors import LinearSegmentedColormap

    from regard.figures.render import OURS

    made = LinearSegmentedColormap.from_list("regard", ["#FFFFFF", PALE, OURS, "#06283D"])
    return made.with_extremes(bad="#E4E4E4")


def columns(text: str) -> int:
    """The width of a text in terminal columns: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def shown(token: str) -> str:
    """A token as a label: white space is made visible, the middle of a long token is left out."""
    if not token.strip():
        return "".join(INVISIBLE.get(letter, "␣") for letter in token[:4]) or "∅"
    text = "".join(INVISIBLE.get(letter, letter) for letter in token)
    text = "".join(letter if letter.isprintable() else "�" for letter in text)
    if columns(text) <= LONGEST:
        return text
    head, tail = text, text[::-1]
    while columns(head) > LONGEST - 7:
        head = head[:-1]
    while columns(tail) > 6:
        tail = tail[:-1]
    return f"{head}…{tail[::-1]}"


def drawable(text: str) -> str:
    """A title without control characters and lone surrogates, on which matplotlib raises."""
    return "".join(
        "�" if unicodedata.category(letter) in ("Cc", "Cs") and letter != "\n" else letter
        for letter in text
    )


def length(tokens: Sequence[str]) -> float:
    """The width of the longest of these labels, in inches."""
    return max(columns(shown(token)) for token in tokens) * 0.56 * EM


def cell(rows: int, across: int, values: bool, room: float) -> float:
    """The side of one square of a matrix in inches, so that the matrix fits into `room`."""
    return max(min(0.44 if values else 0.3, room / max(rows, across)), 0.02)


def label(axis: Axis, tokens: Sequence[str], inches: float, **look: Any) -> None:
    """Label an axis with tokens, as many as can be read with `inches` between positions."""
    places = range(0, len(tokens), every(inches))
    axis.set_ticks(places, [shown(tokens[place]) for place in places], **look)
    for text in axis.get_ticklabels():
        text.set_parse_math(False)  # a dollar sign in a token does not start a formula
    axis.set_tick_params(length=0, pad=2)


def every(inches: float) -> int:
    """The step between labelled positions: 1, or the first of 2, 5, 10, 20 ... that leaves room."""
    if inches >= CLOSEST:
        return 1
    least = 2 * CLOSEST / inches
    unit = 10 ** math.floor(math.log10(least))
    return next(step * unit for step in (1, 2, 5, 10) if step * unit >= least)


def turned(tokens: Sequence[str], inches: float, top: bool) -> dict[str, Any]:
    """The rotation of labels at columns: none if they fit, else slanted, or upright if narrow."""
    room = inches * every(inches)
    if length(tokens) <= 0.95 * room:
        return {}
    if inches < 0.2:
        return {"rotation": 90}
    return {"rotation": 50, "ha": "left" if top else "right", "rotation_mode": "anchor"}


def matrix(axes: Axes, weights: Tensor, largest: float, thin: bool) -> Any:
    """Draw weights (rows, columns) as coloured squares, with pale lines between them."""
    rows, across = weights.shape
    image = axes.imshow(
        weights.numpy(),
        cmap=colors(),
        vmin=0,
        vmax=largest,
        aspect="equal",
        interpolation="nearest",
    )
    if not thin:
        axes.set_xticks([place - 0.5 for place in range(1, across)], minor=True)
        axes.set_yticks([place - 0.5 for place in range(1, rows)], minor=True)
        axes.grid(which="minor", color="#F1F1F1", lw=0.8)
        axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set(color="#BBBBBB", lw=0.6)
    return image


def largest_of(weights: Tensor) -> float:
    """The largest weight, at the top of the colour scale; 1 if all weights are 0."""
    return weights.max().item() or 1.0


def write_values(axes: Axes, weights: Tensor, largest: float, inches: float) -> None:
    """Write the weight into each square with two digits, unless it is below 0.005."""
    from regard.figures.render import INK

    for row, line in enumerate(weights.tolist()):
        for column, weight in enumerate(line):
            if weight >= 0.005:
                ink = "white" if weight > 0.45 * largest else INK
                text = f"{weight:.2f}".removeprefix("0")
                size = min(8.0, 72 * inches / 3.6)
                axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=size)


def scale(
    figure: Figure, image: Any, axes: list[Axes], largest: float, name: str, high: float
) -> None:
    """Add a colour bar from 0 to `largest` beside panels that are `high` inches high."""
    shrink = 0.6 if high > 2 else 1
    bar = figure.colorbar(image, ax=axes, fraction=0.05, shrink=shrink, aspect=18, pad=0.02)
    digits = ".2f" if largest >= 0.1 else ".2g"
    bar.set_ticks(
        [0, largest / 2, largest], labels=[f"{x:{digits}}" for x in (0, largest / 2, largest)]
    )
    bar.ax.tick_params(length=0, labelsize=SMALL)
    bar.set_label(name, fontsize=SMALL)
    bar.outline.set_visible(False)


def bars_beside(axes: Axes, lengths: Tensor, inches: float, name: str) -> None:
    """Draw a bar for each row of the matrix to the left, whose rows are `inches` high."""
    count = len(lengths)
    axes.barh(range(count), lengths.numpy(), height=0.7 if inches >= 0.08 else 1.0, color=PALE)
    axes.set_box_aspect(inches * count)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", which="both", length=0, labelleft=False)
    axes.set_title(name, fontsize=SMALL, loc="left")


def head_line(figure: Figure, title: str | None, note: str | None = None) -> None:
    """Write the title above the whole figure, in as many lines as its width needs, and below it a note."""
    if title:
        wide, high = figure.get_size_inches()
        lines = folded(drawable(str(title)), max(int(wide / BOLD), 8))
        told = folded(drawable(note), max(int(wide / BOLD * 1.25), 8)) if note else []
        figure.set_figheight(high + TITLE_LINE * (len(lines) + len(told) - 1))
        # The layout keeps room for the title alone: with empty lines in it, for the note too.
        text = "\n".join(lines + [" "] * len(told))
        figure.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold", parse_math=False)
        if told:
            from matplotlib.transforms import ScaledTranslation

            down = ScaledTranslation(0, -TITLE_LINE * len(lines), figure.dpi_scale_trans)
            head_top = figure.transFigure + ScaledTranslation(0, -0.04, figure.dpi_scale_trans)
            figure.text(0.01, 1, "\n".join(told), transform=head_top + down, va="top", ha="left",
                        fontsize=9, linespacing=1.45, parse_math=False)  # fmt: skip


def folded(text: str, room: int) -> list[str]:
    """The lines of a text, broken before words that exceed `room` columns; longer words anywhere."""
    lines = []
    for line in text.split("\n"):
        now = ""
        for word in re.split(r"(?<= )", line):
            rest = word
            if now and columns(now + rest.rstrip()) > room:
                lines.append(now.rstrip())
                now = ""
            while columns(rest.rstrip()) > room:
                fits = next(n for n in range(1, len(rest) + 1) if columns(rest[: n + 1]) > room)
                lines.append(rest[:fits])
                rest = rest[fits:]
            now += rest
        lines.append(now.rstrip())
    return lines
