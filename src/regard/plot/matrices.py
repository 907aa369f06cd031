"""Plots of whole weight matrices: queries down, keys across."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.plot import looks
from regard.plot.inputs import by_head, checked, tokens_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDEST = 13.0  # widest figure, in inches
THUMBNAIL = 1.5  # side of a small matrix, in inches


def nats(weights: Tensor) -> Tensor:
    """`-sum_k w ln w` of each row; NaN for a row that attends to nothing."""
    found = torch.special.entr(weights).sum(-1)
    return found.where(weights.sum(-1) > 0, math.nan)


def mean_nats(weights: Tensor) -> str:
    """The mean entropy of the rows that attend to something, as text."""
    found = nats(weights).nanmean().item()
    return "sees nothing" if math.isnan(found) else f"{found:.2f} nats"


def alignment(
    weights: Tensor,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    *,
    values: bool = False,
    title: str | None = None,
    note: str | None = None,
    scale_to: float = 0.0,
) -> Figure:
    """The soft alignment of Bahdanau et al. (2015): how much each target token attends to each source token.

    Args:
        weights: (target, source), or (heads, target, source) for one panel per head.
        source: the tokens that are attended to (keys), across; numbers if None.
        target: the tokens that attend (queries), down.
        values: write the weight into each square if there is room. A single row always has them.
        title: a line above.
        note: what the title leaves open, below it in plain type.
        scale_to: the end of the colour scale at least, so that weights that are all small look so.

    With several heads, the mean entropy of the rows is written under each. All panels share one colour
    scale. The middle of long tokens is left out, and of too many tokens only every few are labelled.
    """
    found = by_head(weights)
    heads, rows, across = found.shape
    left = tokens_of(target, rows, "target", across)
    top = tokens_of(source, across, "source", rows)
    largest = max(looks.largest_of(found), scale_to)
    one_row = heads == rows == 1
    inches = looks.cell(rows, across, values or one_row, WIDEST - 2 if heads == 1 else 4.5)
    written = (values or one_row) and inches >= looks.READABLE
    slant = looks.turned(top, inches, top=True)
    above = looks.length(top) * (0.8 if slant else 0) + looks.EM + 0.1
    beside = looks.length(left)
    wide = min(heads, math.ceil(heads**0.5 * 1.2))
    wide = max(1, min(wide, int((WIDEST - beside) // (inches * across + 0.25)) or 1))
    high = math.ceil(heads / wide)
    wide = math.ceil(heads / high)
    with looks.blank() as figure:
        # The last slanted label reaches beyond the right edge of the matrix.
        lean = max(looks.length(top) * 0.65 - 0.7, 0) if "ha" in slant else 0
        figure.set_size_inches(
            beside + wide * (inches * across + 0.2) + 0.9 + lean,
            above + high * (inches * rows + (0.35 if heads > 1 else 0.1)) + (0.4 if title else 0.1),
        )
        grid = figure.subplots(high, wide, squeeze=False)
        for number, axes in enumerate(grid.flat):
            if number >= heads:
                axes.set_visible(False)
                continue
            looks.matrix(axes, found[number], largest, thin=inches < 0.08)
            axes.xaxis.tick_top()
            first_row, first_column = number < wide, number % wide == 0
            looks.label(axes.xaxis, top if first_row else [], inches, **slant)
            looks.label(axes.yaxis, left if first_column else [], inches)
            if written:
                looks.write_values(axes, found[number], largest, inches)
            if heads > 1:
                line = f"head {number + 1} · {mean_nats(found[number])}"
                axes.set_xlabel(line, fontsize=looks.SMALL)
        if not (one_row and written):  # a single row is too low for a colour bar beside it
            image, tall = grid[0, 0].images[0], high * rows * inches
            looks.scale(figure, image, list(grid.flat), largest, "weight", tall)
        looks.head_line(figure, title, note)
    return figure


def heads(
    weights: Tensor, tokens: Sequence[str] | None = None, *, title: str | None = None
) -> Figure:
    """Small matrices of every head of a model, one row of panels for each layer.

    Args:
        weights: (heads, length, length), or (layers, heads, length, length); combine a list of layers
            with `torch.stack`.
        tokens: labels on the left and under the last row, if they can be read.
        title: a line above.

    The mean entropy of the rows is written above each head. Each panel has its own colour scale: the
    panels show the pattern of a head, and the entropy says how sharp it is.
    """
    found = checked(weights, (3, 4), "(heads, queries, keys) or (layers, heads, queries, keys)")
    layered = found.ndim == 4
    panels = found if layered else folded(found)
    rows, across = panels.shape[-2:]
    if tokens is not None and rows != across:
        raise ValueError(
            f"tokens label both axes, so weights must be square, got {rows} x {across}; leave tokens out"
        )
    names = tokens_of(tokens, across, "tokens") if tokens is not None else []
    high, wide = panels.shape[:2]
    side = max(min(THUMBNAIL, (WIDEST - 1) / wide), 0.5)
    inches = side / max(rows, across)
    # With a few heads the panels may grow until their tokens can be read.
    if names and inches < looks.CLOSEST and wide <= 4:
        side = min(looks.CLOSEST * across, (WIDEST - 2) / wide, 3.5)
        inches = side / max(rows, across)
    named = bool(names) and inches >= looks.CLOSEST / 3
    margin = looks.length(names) if named else 0.1
    with looks.blank() as figure:
        figure.set_size_inches(
            margin + wide * (side + 0.12) + (0.5 if layered else 0.1),
            margin + high * (side + 0.28) + (0.4 if title else 0.1),
        )
        grid = figure.subplots(high, wide, squeeze=False)
        for row in range(high):
            for column in range(wide):
                axes, panel = grid[row, column], panels[row, column]
                if panel.isnan().any():  # the last row of one layer may not be full
                    axes.set_visible(False)
                    continue
                looks.matrix(axes, panel, looks.largest_of(panel), thin=inches < 0.1)
                last = row == high - 1 or bool(panels[row + 1, column].isnan().any())
                turn = looks.turned(names, inches, top=False) if named else {}
                looks.label(axes.xaxis, names if named and last else [], inches, **turn)
                looks.label(axes.yaxis, names if named and column == 0 else [], inches)
                number = column + 1 if layered else row * wide + column + 1
                line = f"{number} · {mean_nats(panel)}"
                axes.set_title(line, fontsize=looks.SMALL, pad=3)
                if layered and column == 0:
                    axes.set_ylabel(f"layer {row + 1}", fontsize=looks.SMALL)
        looks.head_line(figure, title)
    return figure


def folded(weights: Tensor) -> Tensor:
    """Weights (heads, rows, keys) arranged in rows of panels; empty panels are NaN."""
    count = weights.shape[0]
    wide = count if count <= 4 else math.ceil((1.6 * count) ** 0.5)
    wide = math.ceil(count / math.ceil(count / wide))  # no nearly empty last row
    empty = weights.new_full((-count % wide, *weights.shape[1:]), math.nan)
    return torch.cat([weights, empty]).unflatten(0, (-1, wide))


def decoding(
    weights: Tensor,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """The weights of a decoder over the source at each step.

    Args:
        weights: (steps, source) of one head, such as the weights of each step stacked.
        source: tokens or frames that are read, down.
        target: tokens that are written, from left to right.
        title: a line above.

    The line is the mean position of the weight at each step; it goes down if the decoder reads in order.
    The bars on the right are the total weight of each source token. A total near 0 means that the token
    was skipped, one far above the others that it was read repeatedly.
    """
    found = by_head(weights)
    if found.shape[0] != 1:
        raise ValueError(
            f"decoding draws one head, got weights of {found.shape[0]}; use weights[head] or "
            "weights.mean(0)"
        )
    matrix = found[0].mT  # (source, steps)
    rows, steps = matrix.shape
    left = tokens_of(source, rows, "source", steps)
    under = tokens_of(target, steps, "target", rows)
    total = matrix.sum(0)
    places = torch.arange(rows, dtype=matrix.dtype)
    centre = (places @ matrix / total).where(total > 0, math.nan)
    largest = looks.largest_of(matrix)
    inches = looks.cell(rows, steps, values=False, room=8.0)
    slant = looks.turned(under, inches, top=False)
    with looks.blank() as figure:
        from regard.figures.render import TEXTBOOK

        figure.set_size_inches(
            looks.length(left) + inches * steps + 2.6,
            inches * rows + (looks.length(under) * 0.8 if slant else 0.1) + (0.9 if title else 0.6),
        )
        main, side = figure.subplots(1, 2, width_ratios=[inches * steps, 1.0], sharey=True)
        image = looks.matrix(main, matrix, largest, thin=inches < 0.08)
        looks.label(main.xaxis, under, inches, **slant)
        looks.label(main.yaxis, left, inches)
        width = 2.2 if inches > 0.1 else 1.4
        for ink, wide in (
            ("white", width + 2),
            (TEXTBOOK, width),
        ):  # a white outline, visible on dark squares
            main.plot(range(steps), centre.numpy(), color=ink, lw=wide, solid_capstyle="round")
        read = matrix.sum(1)
        looks.bars_beside(side, read, inches, "looked at, in all")
        side.set_xticks([0, looks.largest_of(read)], ["0", f"{looks.largest_of(read):.2g}"])
        main.set_title("mean place", fontsize=looks.SMALL, loc="left", color=TEXTBOOK)
        looks.scale(figure, image, [main, side], largest, "weight", rows * inches)
        looks.head_line(figure, title)
    return figure
