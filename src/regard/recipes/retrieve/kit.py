"""`KIT`: the recipe as the command line and comparisons see it."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.recipes.estimator import RecipeError
from regard.recipes.kit import Kit
from regard.recipes.retrieve.comparison import arguments, comparison
from regard.recipes.retrieve.data import SEARCH_SETS, load
from regard.recipes.retrieve.finder import DocumentFinder
from regard.recipes.retrieve.picture import show


def read(lines: list[str]) -> list[str] | np.ndarray:
    """Queries, one a line: texts, or vectors as numbers with commas or spaces between.

    Raises:
        RecipeError: lines of numbers differ in length.
    """
    found = [line.strip() for line in lines]
    vectors = [numbers(line) for line in found]
    if not found or any(one is None or len(one) < 2 for one in vectors):
        return found
    if len({len(one) for one in vectors if one is not None}) > 1:
        raise RecipeError("vectors must have the same number of numbers in each line")
    return np.array(vectors, np.float32)


def numbers(line: str) -> list[float] | None:
    """The numbers of a line; None if something else is in it."""
    try:
        return [float(one) for one in line.replace(",", " ").split()]
    except ValueError:
        return None


def write(x: Any, found: np.ndarray) -> list[str]:
    """A line for each query: the query, or the number of its line, and the ids of its documents, by tabs."""
    names = [str(n) for n in range(1, len(x) + 1)] if isinstance(x, np.ndarray) else x
    return ["\t".join([name, *map(str, row)]) for name, row in zip(names, found, strict=True)]


KIT = Kit(
    name="retrieve",
    estimator=DocumentFinder,
    sets=tuple(SEARCH_SETS),
    arguments=arguments,
    load=load,
    read=read,
    write=write,
    show=show,
    comparison=comparison,
)
