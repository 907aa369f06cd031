"""The influence map as a figure: who should see whom, who sees whom, and what attention weighs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.doctor.laws.map import LONGEST, InfluenceMap
from regard.figures.canvas import BLUE, RED, Canvas, drawn
from regard.text import Text

SIDE = 2.5  # inches of a panel
FORBIDDEN, UNTESTED, NOTHING = RED, "#EEEEEE", "#FFFFFF"
TITLES = {
    "may": Text("who may see whom", "允许谁看见谁"),
    "sees": Text("who sees whom, measured", "实测谁看见谁"),
    "site": Text("mean attention weight", "平均注意力权重"),
}
SEEN, SEES = Text("token that is seen", "被看见的词元"), Text("output of token", "该词元的输出")
KEY = Text(
    "red: seen, but hidden by the rule; grey: not tested", "红：看见了不该看见的；灰：未测试"
)


def images(found: InfluenceMap, suffixes: Sequence[str] = ("svg",)) -> dict[str, bytes]:
    """The figure by suffix. Needs matplotlib."""
    return drawn(lambda canvas: draw(canvas, found), "en", suffixes)


def draw(canvas: Canvas, found: InfluenceMap) -> None:
    """Draw the panels that there are."""
    panels = panels_of(found)
    for axes, (name, x) in zip(canvas.panels(len(panels), SIDE, SIDE + 0.55), panels, strict=True):
        axes.grid(False)
        cells = colours(blocks(x), blocks(found.may), name)
        axes.imshow(cells, interpolation="nearest", aspect="equal")
        canvas.label(axes, SEEN, SEES, TITLES[name])
        axes.tick_params(length=0, labelsize=8)
    canvas.figure.supxlabel(canvas.say(KEY), fontsize=8.5)


def panels_of(found: InfluenceMap) -> list[tuple[str, Tensor]]:
    """The panels that there are, what was measured first: a phone shows that one."""
    panels = [("sees", found.sees), ("may", found.may), ("site", found.site)]
    return [(name, x) for name, x in panels if x is not None]


def blocks(x: Tensor | None) -> Tensor | None:
    """A map of at most `LONGEST` rows: longer ones show the largest of each block."""
    if x is None or x.shape[0] <= LONGEST:
        return x
    size = -(-x.shape[0] // LONGEST)
    fill = (-x.shape[0]) % size
    # NaN, which stands for untested, must lose against any number.
    known = x.double().nan_to_num(-1.0)
    padded = torch.nn.functional.pad(known, (0, fill, 0, fill), value=-1.0)
    count = padded.shape[0] // size
    most = padded.reshape(count, size, count, size).amax((1, 3))
    return most > 0.5 if x.dtype == torch.bool else most.masked_fill(most < 0, torch.nan)


def colours(x: Tensor | None, may: Tensor | None, name: str) -> Any:
    """The cells as RGB, 0 to 1."""
    assert x is not None
    if name == "may":
        strength, known = x.double(), torch.ones_like(x, dtype=torch.bool)
    else:
        known = ~x.isnan()
        strength = x.nan_to_num(0.0).double()
        # Small influences have to be seen: a hundredth has half of the ink.
        most = strength.max().clamp(min=1e-30)
        strength = (strength / most).clamp(0, 1) ** 0.15 * (strength > 0)
        strength = torch.where(strength > 0, 0.15 + 0.85 * strength, 0.0)
    ink = mixed(BLUE, 0.35 * strength if name == "may" else strength)
    if may is not None and name != "may" and may.shape == x.shape:
        forbidden = (~may.bool()) & (strength > 0)
        ink = torch.where(forbidden.unsqueeze(-1), mixed(FORBIDDEN, strength.clamp(min=0.6)), ink)
    ink = torch.where(known.unsqueeze(-1), ink, rgb(UNTESTED).expand_as(ink))
    return ink.numpy()


def rgb(colour: str) -> Tensor:
    """A colour such as #0072B2 as three numbers from 0 to 1."""
    return torch.tensor([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)], dtype=torch.float64)


def mixed(colour: str, strength: Tensor) -> Tensor:
    """White with so much of a colour."""
    share = strength.unsqueeze(-1)
    return share * rgb(colour) + (1 - share) * rgb(NOTHING)
