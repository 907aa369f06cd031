"""Colours and marks of the candidates, and parts that all charts share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from matplotlib.figure import Figure

from regard.bench.candidate import PASSES
from regard.bench.results import Measured, Pass
from regard.bench.store import Results
from regard.figures.render import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#666666"
# Our engines are blue, the textbook orange, every other peer has its own hue. The marks differ too, so
# a chart can be read in greyscale.
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
    "dot flash": ("#8C8C8C", ">"),
    "dot efficient": ("#8C8C8C", "<"),
    "dot math": ("#8C8C8C", "p"),
}
# Dot backends that are drawn as thin lines unless one is the yardstick: no ratio is taken over them.
BACKENDS = ("dot flash", "dot efficient", "dot math")
DOT = "dot d=64"
EAGER = ("textbook eager", "textbook linear")
OURS = ("as chosen", "sine fast", "sine matched", "exact")


class Point(NamedTuple):
    """A mark in a chart; open if its number was scaled from fewer heads."""

    x: float
    y: float
    scaled: bool


def drawn(m: Measured, which: str) -> dict[str, Pass]:
    """The passes that charts show: of the eager textbooks the faster one, of the dots the yardstick."""
    rows = {row.name: row for row in m.rows if row.passes[which].timed()}
    eager = [rows[name] for name in EAGER if name in rows]
    fastest = min(eager, key=lambda row: row.passes[which].times.median, default=None)
    chosen = {name: rows.get(name) for name in LOOKS if name not in BACKENDS}
    chosen |= {"textbook eager": fastest, "dot": m.yardstick(which)}
    return {name: row.passes[which] for name, row in chosen.items() if row is not None}


def other_dots(m: Measured, which: str) -> dict[str, Pass]:
    """The timed passes of dot backends that are not the yardstick."""
    yardstick = m.yardstick(which)
    rows = {name: m.find(name) for name in BACKENDS}
    return {
        name: row.passes[which]
        for name, row in rows.items()
        if row is not None and row is not yardstick and row.passes[which].timed()
    }


def draw_line(axes: Axes, name: str, points: list[Point], size: float = 4.8) -> None:
    """Draw a line with its marks."""
    ink, mark = LOOKS[name]
    # Our lines are drawn last, over the peers, and thin dot backends first.
    above = 2 if name in OURS else 0 if name in BACKENDS else 1
    axes.plot(
        [p.x for p in points], [p.y for p in points], color=ink, lw=thickness(name),
        ls=(0, (4, 2)) if name == "dot" else "-", zorder=2 + above,
    )  # fmt: skip
    size *= 1.6 if name == "dot" else 0.7 if name in BACKENDS else 1.0
    for p in points:
        axes.plot(
            p.x, p.y, marker=mark, ms=size, mec=ink, mfc="white" if p.scaled else ink,
            mew=0.8 if name in BACKENDS else 1.1, zorder=3 + above,
        )  # fmt: skip


def thickness(name: str) -> float:
    """Width of a candidate's line, in points."""
    return 2.0 if name in OURS else 0.8 if name in BACKENDS else 1.2


def plain(axes: Axes) -> None:
    """Style the axes with a light grid and no frame."""
    axes.minorticks_off()
    axes.grid(color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)


def spelled(name: str, settings: list[Measured]) -> str:
    """A candidate's name in a legend; the yardstick's includes its backend if all settings share it."""
    if name != "dot":
        return name
    found = {row.name for m in settings for w in PASSES if (row := m.yardstick(w)) is not None}
    return f"{DOT}, {found.pop().removeprefix('dot ')}" if len(found) == 1 else DOT


def head(figure: Figure, headline: str, results: Results, m: Measured | None, high: float) -> None:
    """Write the headline, and below it the sizes, the machine and what an open mark means."""
    about = results.machine
    place = about["name"] if about["device"] == "cuda" else f"{about['threads']} CPU threads"
    text = f"{place}, torch {about['torch']}"
    if m is not None:
        s = m.setting
        text = f"batch {s.batch}, {s.heads} heads, value dim {s.value_dim}, {s.dtype}; {text}"
        text += "; open marks: scaled from fewer heads"
    figure.text(0.012, 1 - 0.24 / high, headline, size=12, weight="bold", va="center", color=INK)
    figure.text(0.012, 1 - 0.48 / high, text, size=8.5, color="#555555", va="center")
