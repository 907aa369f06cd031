"""`KIT`: the recipe as the command line and comparisons see it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard import plot
from regard.recipes.datasets import Dataset
from regard.recipes.estimator import Recipe, RecipeError
from regard.recipes.kit import Kit
from regard.recipes.translate.contenders import EXAMPLES, comparison
from regard.recipes.translate.dates import dates
from regard.recipes.translate.multi30k import multi30k
from regard.recipes.translate.sizes import EMBEDDED, SETS, arguments
from regard.recipes.translate.subwords import SPACE
from regard.recipes.translate.translator import Translator
from regard.text import Language, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOVE = Text(
    "Down: the translation. Across: the sentence. Darker: more attention.",
    "竖：译文；横：原文；越深注意越多。",
)


def load(
    name: str,
    data: str | os.PathLike[str] | None = None,
    download: bool = False,
    limit: int | None = None,
) -> Dataset:
    """The set of that name; see `Kit.load`.

    Raises:
        RecipeError: there is no set of that name.
        DataError: the set is missing or damaged.
    """
    if name not in SETS:
        raise RecipeError(f"there is no set {name!r}; the sets are {', '.join(SETS)}")
    if name == EMBEDDED:
        return dates(limit)
    return multi30k(name, data, download, limit)


def read(lines: list[str]) -> list[str]:
    """Sentences, one a line; an empty line is an empty sentence."""
    return [line.rstrip("\r\n") for line in lines]


def write(x: Sequence[str], found: Sequence[str | list[str]]) -> list[str]:
    """A translation a line; several best ones of a sentence are separated by tabs."""
    return [one if isinstance(one, str) else "\t".join(one) for one in found]


def show(model: Recipe, x: Sequence[str] | str | None, language: Language = "en") -> Figure:
    """The alignment of a sentence with its translation; of an example if none is given."""
    assert isinstance(model, Translator)
    if x is None or not len(x):
        known = "".join(model.subwords_.pieces(range(len(model.subwords_))))
        # A vocabulary that has no word of the captions is that of dates.
        x = EXAMPLES["public" if "ball" in known else "generated"]
    source, target, weights = model.attend(x if isinstance(x, str) else x[0])
    return plot.alignment(
        weights, bare(source), bare(target), title=ABOVE.of(language), values=len(source) < 12
    )


def bare(pieces: list[str]) -> list[str]:
    """Pieces for labels: a space in place of the mark of a word's beginning."""
    return [piece.replace(SPACE, " ").strip() or piece for piece in pieces]


KIT = Kit(
    name="translate",
    estimator=Translator,
    sets=SETS,
    arguments=arguments,
    load=load,
    read=read,
    write=write,
    show=show,
    comparison=comparison,
    predict_options=("beam", "n_best"),
)
