"""The figure of a claim, ready to stand in a page among others."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from markupsafe import Markup

from regard.claims.claim import Claim, Numbers
from regard.figures.canvas import Canvas, drawn
from regard.page.drawing import inline, width_of
from regard.text import Language

# A drawing of more than this (many thousands of points) goes in as a picture: the report has to
# stay small.
LARGEST_SVG = 200_000
# Up to this width the numbers fit beside it; one panel is 288 wide.
NARROW = 400


@dataclass(frozen=True)
class Figure:
    """Markup to put into the page, and how to place it.

    Attributes:
        markup: an `svg` or `img` element.
        width: of the drawing; its letters are about 9 high.
        picture: it has pixels, whose colours have to stay as they are in the dark.
    """

    markup: Markup
    width: float
    picture: bool

    @property
    def wide(self) -> bool:
        """It needs the whole width of the page."""
        return self.width > NARROW


def figure(claim: Claim, numbers: Numbers, language: Language) -> Figure | None:
    """The figure drawn again from the numbers; None where this version cannot read them."""

    def draw(canvas: Canvas) -> None:
        claim.draw(numbers, canvas)

    label = claim.caption.of(language)
    try:
        svg = inline(drawn(draw, language, ["svg"])["svg"].decode(), claim.id, aria_label=label)
    except Exception:  # the numbers may be another version's, or a stranger's
        return None
    width = width_of(svg)
    if len(svg) <= LARGEST_SVG:
        return Figure(Markup(svg), width, "<image" in svg)  # noqa: S704 - matplotlib escapes
    data = base64.b64encode(drawn(draw, language, ["png"])["png"]).decode()
    image = Markup('<img src="data:image/png;base64,{}" alt="{}">').format(data, label)
    return Figure(image, width, picture=True)
