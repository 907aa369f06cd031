"""Plots of summaries: the entropy of each head, and the weights of several scores on one query."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from regard.describe import describe
from regard.plot import looks
from regard.plot.inputs import by_head, checked, tokens_of
from regard.plot.matrices import mean_nats, nats

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def entropy(
    weights: Tensor, tokens: Sequence[str] | None = None, *, title: str | None = None
) -> Figure:
    """The entropy of the weights of each head and query, in nats.

    Args:
        weights: (queries, keys), or (heads, queries, keys).
        tokens: of the queries.
        title: a line above.

    It is 0 if one key has all the weight, and ln(keys) if all keys have the same. Queries that attend to
    nothing are grey. The bars on the right are the mean of each head divided by ln(keys).
    """
    found = by_head(weights)
    heads, queries, keys = found.shape
    names = tokens_of(tokens, queries, "tokens")
    rows = nats(found)
    most = max(math.log(keys), 1e-12)
    inches = looks.cell(heads, queries, values=heads == 1, room=9.0)
    slant = looks.turned(names, inches, top=False)
    with looks.blank() as figure:
        figure.set_size_inches(
            inches * queries + 3.0,
            inches * heads
            + (looks.length(names) * 0.8 if slant else 0.1)
            + (1.0 if title else 0.7),
        )
        main, side = figure.subplots(1, 2, width_ratios=[inches * queries, 1.0], sharey=True)
        image = looks.matrix(main, rows, most, thin=inches < 0.08)
        looks.label(main.xaxis, names, inches, **slant)
        looks.label(main.yaxis, [f"head {number + 1}" for number in range(heads)], inches)
        means = rows.nanmean(-1).nan_to_num() / most
        looks.bars_beside(side, means, inches, "mean ÷ ln keys")
        side.set_xlim(0, 1)
        side.set_xticks([0, 1], ["0", "1"])
        if heads == 1 and inches >= looks.READABLE:  # a single row is too low for a colour bar
            looks.write_values(main, rows, most, inches)
        else:
            looks.scale(figure, image, [main, side], most, "entropy, nats", heads * inches)
        looks.head_line(figure, title)
    return figure


def compare(
    weights: Mapping[str, Tensor], keys: Sequence[str] | None = None, *, title: str | None = None
) -> Figure:
    """The weights that several scores give one query, in a column for each score.

    Args:
        weights: maps the name of a score to weights (keys,), all of the same query and keys.
        keys: the tokens of the keys, down.
        title: a line above.

    In each column the key with the most weight is dark, and the entropy is written under the name.
    """
    if not isinstance(weights, Mapping) or not weights:
        given = "an empty mapping" if isinstance(weights, Mapping) else describe(weights)
        raise TypeError(
            f"weights must map names of scores to tensors, got {given}; for example "
            "compare({'dot': w, 'cosine': u}, keys)"
        )
    found = {str(name): checked(given, (1,), "(keys,)") for name, given in weights.items()}
    counts = {name: len(given) for name, given in found.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(
            f"all weights must be of the same keys, but their numbers differ: {listed}"
        )
    count = next(iter(counts.values()))
    names = tokens_of(keys, count, "keys")
    inches = max(min(0.3, 8.0 / count), 0.04)
    farthest = max(given.max().item() for given in found.values()) or 1.0
    with looks.blank() as figure:
        from regard.figures.render import OURS

        figure.set_layout_engine("constrained")
        figure.set_size_inches(
            looks.length(names) + 1.5 * len(found) + 0.2,
            inches * count + (1.0 if title else 0.7),
        )
        grid = figure.subplots(1, len(found), sharey=True, squeeze=False)
        for axes, (name, given) in zip(grid.flat, found.items(), strict=True):
            best = given.argmax().item()
            inks = [OURS if place == best else looks.PALE for place in range(count)]
            axes.barh(range(count), given.numpy(), height=0.72, color=inks)
            if inches >= looks.CLOSEST:
                for place, weight in enumerate(given.tolist()):
                    text = f"{weight:.2f}"
                    axes.text(
                        weight + 0.02 * farthest, place, text, va="center", fontsize=looks.SMALL
                    )
            axes.set_xlim(0, farthest * 1.28)
            axes.set_xticks([])
            axes.spines[["top", "right", "bottom"]].set_visible(False)
            text = f"{looks.drawable(name)}\n{mean_nats(given[None])}"
            axes.set_title(text, fontsize=8.5, loc="left", parse_math=False)
        grid[0, 0].invert_yaxis()
        for axes in grid.flat:
            looks.label(axes.yaxis, names, inches)
            axes.tick_params(axis="y", labelleft=axes is grid[0, 0])
        looks.head_line(figure, title)
    return figure
