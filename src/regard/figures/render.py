"""The style of every chart, and charts as PNG and SVG bytes. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from regard.measuring.words import number

# From the palette of Okabe and Ito, which colour-blind readers can tell apart. Marks differ in shape
# too, so that charts can be read in grey.
OURS, TEXTBOOK, INK, FAINT = "#0072B2", "#D55E00", "#222222", "#D9D9D9"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "regard",
}


def render(
    compose: Callable[[], Figure],
    fonts: list[str] | None = None,
    suffixes: Sequence[str] = ("png", "svg"),
) -> dict[str, bytes]:
    """The figure as PNG and SVG, by suffix; characters that the first font lacks come from the next."""
    with mpl.rc_context(STYLE | ({"font.family": fonts} if fonts else {})):
        figure = compose()
        FigureCanvasAgg(figure)
        found = {}
        for suffix in suffixes:
            buffer = io.BytesIO()
            # Without a date the same results give the same file.
            extra = {"Date": None} if suffix == "svg" else None
            figure.savefig(buffer, format=suffix, facecolor="white", dpi=200, metadata=extra)
            found[suffix] = buffer.getvalue()
    return found


def brief(ratio: float) -> str:
    """A factor as text: `4.8x`, `92x`."""
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.1f}x"


def size(count: float) -> str:
    """A number of bytes as text, with three digits and a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000:
            return f"{number(count)} {unit}"
        count /= 1024
    return f"{number(count)} TiB"


def tick(text: str) -> str:
    """A quantity without zeros after the decimal point: `30 ms`, not `30.0 ms`."""
    value, unit = text.split()
    return f"{value.rstrip('0').rstrip('.') if '.' in value else value} {unit}"
