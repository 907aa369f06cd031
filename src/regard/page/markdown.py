"""What the pages of docs/ share: Markdown tables, escaped text, and the fonts of their figures."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Figures are laid out in DejaVu Sans; Verdana, which has the same widths, replaces it where it is missing.
FONTS = b"text, tspan { font-family: 'DejaVu Sans', Verdana, sans-serif !important }"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def marked(text: str) -> str:
    """The text with Markdown's special characters escaped, except inside code in backticks."""
    pieces = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(
        one if one.startswith("`") else re.sub(r"([\\*_<|$`])", r"\\\1", one) for one in pieces
    )


def with_fonts(svg: bytes) -> bytes:
    """A figure that names the fonts it was laid out for."""
    return svg.replace(b"</style>", FONTS + b"</style>", 1)
