"""`KIT`: the recipe as the command line and comparisons see it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from regard.recipes.datasets import Dataset
from regard.recipes.estimator import RecipeError
from regard.recipes.kit import Kit
from regard.recipes.translate.contenders import comparison
from regard.recipes.translate.dates import dates
from regard.recipes.translate.multi30k import multi30k
from regard.recipes.translate.picture import show
from regard.recipes.translate.sizes import EMBEDDED, TRANSLATE_SETS, arguments
from regard.recipes.translate.translator import Translator


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
    if name not in TRANSLATE_SETS:
        raise RecipeError(f"there is no set {name!r}; the sets are {', '.join(TRANSLATE_SETS)}")
    if name == EMBEDDED:
        return dates(limit)
    return multi30k(name, data, download, limit)


def read(lines: list[str]) -> list[str]:
    """Sentences, one a line; an empty line is an empty sentence."""
    return [line.rstrip("\r\n") for line in lines]


def write(x: Sequence[str], found: Sequence[str | list[str]]) -> list[str]:
    """A translation a line; several best ones of a sentence are separated by tabs."""
    return [one if isinstance(one, str) else "\t".join(one) for one in found]


KIT = Kit(
    name="translate",
    estimator=Translator,
    sets=TRANSLATE_SETS,
    arguments=arguments,
    load=load,
    read=read,
    write=write,
    show=show,
    comparison=comparison,
)
