"""The recipe as the commands see it."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.recipes.align.classifier import SeriesAligner
from regard.recipes.align.contenders import comparison
from regard.recipes.align.data import NAMES, load
from regard.recipes.align.picture import show
from regard.recipes.estimator import RecipeError
from regard.recipes.kit import Kit


def arguments(name: str) -> dict[str, Any]:
    """The constructor's arguments at the default size: the same for every set, which decides the rest."""
    return {}


def read(lines: list[str]) -> list[np.ndarray]:
    """A series in each line: numbers between spaces or commas, channels between semicolons; empty lines are left out.

    Raises:
        RecipeError: there is none, or one is not numbers.
    """
    found = [series_of(line, n) for n, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise RecipeError("the input is empty: give at least one series")
    return found


def series_of(line: str, number: int) -> np.ndarray:
    """The series (C, T) in a line."""
    channels = [one.replace(",", " ").split() for one in line.split(";")]
    if len({len(one) for one in channels}) != 1:
        raise RecipeError(
            f"line {number}: its channels differ in length: {[len(one) for one in channels]}"
        )
    try:
        return np.array([[float(x) for x in one] for one in channels])
    except ValueError as error:
        raise RecipeError(f"line {number} is not a series of numbers: {error}") from None


def write(x: list[np.ndarray], predicted: Any) -> list[str]:
    """One line for each series: its class."""
    return [str(one) for one in predicted]


KIT = Kit(
    name="align",
    estimator=SeriesAligner,
    sets=NAMES,
    arguments=arguments,
    load=load,
    read=read,
    write=write,
    show=show,
    comparison=comparison,
)
