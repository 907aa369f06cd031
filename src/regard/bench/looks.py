"""How candidates look in charts, and what every chart has."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from matplotlib.figure import Figure

from regard.bench.results import Measured, Pass
from regard.bench.store import Results
from regard.measuring.figure import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#666666"
# Ours in blues, the textbook in oranges, others by a hue of their own; the marks differ too, so that
# a chart can be read in grey.
LOOKS = {
    "as chosen": ("#56B4A9", "h"),
    "sine fast": ("#0072B2", "o"),
    "sine matched": ("#3FA7E0", "s"),
    "exact": ("#0B3C6F", "D"),
    "textbook eager": ("#D55E00", "v"),
    "textbook compiled": ("#E69F00", "^"),
    "FlexAttention": ("#009E73", "P"),
    "Keras": ("#AA4499", "X"),
    "dot": (GREY, "."),
}
DOT = "dot d=64"
EAGER = ("textbook eager", "textbook linear")
OURS = ("as chosen", "sine fast", "sine matched", "exact")


class Point(NamedTuple):
    """A mark; open where it was scaled from fewer heads."""

    x: float
    y: float
    scaled: bool


def drawn(m: Measured, which: str) -> dict[str, Pass]:
    """What charts show of a setting: of the eager spellings the faster, of dots the yardstick."""
    rows = {row.name: row for row in m.rows if row.passes[which].timed()}
    eager = [rows[name] for name in EAGER if name in rows]
    fastest = min(eager, key=lambda row: row.passes[which].times.median, default=None)
    chosen = {name: rows.get(name) for name in LOOKS}
    chosen |= {"textbook eager": fastest, "dot": m.yardstick(which)}
    return {name: row.passes[which] for name, row in chosen.items() if row is not None}


def draw_line(axes: Axes, name: str, points: list[Point], size: float = 4.8) -> None:
    """A line with its marks."""
    ink, mark = LOOKS[name]
    ours, dot = name in OURS, name == "dot"
    axes.plot(
        [p.x for p in points], [p.y for p in points], color=ink, lw=2.0 if ours else 1.2,
        ls=(0, (4, 2)) if dot else "-", zorder=4 if ours else 3,
    )  # fmt: skip
    for p in points:
        axes.plot(
            p.x, p.y, marker=mark, ms=1.6 * size if dot else size, mec=ink, mfc="white" if p.scaled else ink, mew=1.1,
            zorder=5 if ours else 4,
        )  # fmt: skip


def plain(axes: Axes) -> None:
    """A light grid and no frame."""
    axes.minorticks_off()
    axes.grid(color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)


def spelled(name: str) -> str:
    """As it is shown."""
    return DOT if name == "dot" else name


def head(figure: Figure, headline: str, results: Results, m: Measured | None, high: float) -> None:
    """What the picture shows, where it was measured, and what an open mark means."""
    about = results.machine
    place = about["name"] if about["device"] == "cuda" else f"{about['threads']} CPU threads"
    text = f"{place}, torch {about['torch']}"
    if m is not None:
        s = m.setting
        text = f"batch {s.batch}, {s.heads} heads, value dim {s.value_dim}, {s.dtype}; {text}"
        text += "; open marks: scaled from fewer heads"
    figure.text(0.012, 1 - 0.24 / high, headline, size=12, weight="bold", va="center", color=INK)
    figure.text(0.012, 1 - 0.48 / high, text, size=8.5, color="#555555", va="center")
