"""The figure of a claim as markup for the report."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from markupsafe import Markup

from regard.claims.claim import Claim, Numbers
from regard.figures.canvas import Canvas, drawn
from regard.page.drawing import inline, width_of
from regard.text import Language

# An SVG of more characters than this (thousands of points) is embedded as a PNG, to keep the report small.
LARGEST_SVG = 200_000
# The table of numbers fits beside a figure of at most this width; one panel is 288 wide.
NARROW = 400


@dataclass(frozen=True)
class Figure:
    """The markup of a figure and how to place it in the page.

    Attributes:
        markup: an `svg` or `img` element.
        width: of the drawing, in units in which its letters are about 9 high.
        picture: whether it contains a bitmap, whose colours must not be changed in dark mode.
    """

    markup: Markup
    width: float
    picture: bool

    @property
    def wide(self) -> bool:
        """Whether it needs the whole width of the page."""
        return self.width > NARROW


def figure(claim: Claim, numbers: Numbers, language: Language) -> Figure | None:
    """The figure drawn from the numbers, or None if the claim's current code cannot draw them."""

    def draw(canvas: Canvas) -> None:
        claim.draw(numbers, canvas)

    label = claim.caption.of(language)
    try:
        svg = inline(drawn(draw, language, ["svg"])["svg"].decode(), claim.id, aria_label=label)
    except Exception:  # the numbers may come from other code, or from a file made elsewhere
        return None
    width = width_of(svg)
    if len(svg) <= LARGEST_SVG:
        return Figure(Markup(svg), width, "<image" in svg)  # noqa: S704 - matplotlib escapes
    data = base64.b64encode(drawn(draw, language, ["png"])["png"]).decode()
    image = Markup('<img src="data:image/png;base64,{}" alt="{}">').format(data, label)
    return Figure(image, width, picture=True)
