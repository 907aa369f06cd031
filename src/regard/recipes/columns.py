"""Checks of columns: targets that are all numbers or all words, and tables in the place of one column."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from typing import Any

import numpy as np
from torch import Tensor

from regard.recipes.estimator import RecipeError


def one_kind(y: Any, name: str = "y") -> np.ndarray:
    """The targets as an array; anything that numpy takes, also a column of a data frame, or a tensor.

    Raises:
        RecipeError: words and numbers are mixed, of which numpy makes words, or rows have different lengths.
    """
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    if isinstance(y, np.ndarray) and y.dtype != object:
        return y
    try:
        rows = np.asarray(y, dtype=object)
        check_kind(rows, name)
        return np.asarray(rows.tolist())
    except RecipeError:
        raise
    except (ValueError, OverflowError):
        raise RecipeError(
            f"{name} must be a single value in each row, got rows of different lengths"
        ) from None


def check_kind(rows: np.ndarray, name: str) -> None:
    """Refuse a column that has words and numbers, naming the first of each."""
    if rows.ndim != 1:
        return
    first: dict[bool, tuple[int, Any]] = {}
    for row, value in enumerate(rows.tolist()):
        if isinstance(value, str | Number):
            first.setdefault(isinstance(value, str), (row, value))
    if len(first) == 2:
        (word_row, word), (number_row, number) = first[True], first[False]
        raise RecipeError(
            f"{name} must be all words or all numbers, got {word!r} in row {word_row} and {number!r} in row "
            f"{number_row}"
        )


def is_table(x: object) -> bool:
    """Whether x has several columns: a list of it would be that of their names, as of a data frame or a dict."""
    return isinstance(x, Mapping) or len(getattr(x, "shape", (0,))) != 1
