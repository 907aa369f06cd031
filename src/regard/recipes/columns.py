"""Checks of columns: targets of one kind, texts, and tables in the place of one column; a part held out of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from regard.describe import describe
from regard.recipes.estimator import RecipeError
from regard.text import encodable

Row = TypeVar("Row")


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


def as_list(x: Any, name: str, what: str) -> list[Any]:
    """The rows as a list.

    Args:
        x: the rows.
        name: of the argument, for the message.
        what: the rows in words: "sentences".

    Raises:
        RecipeError: it is a single text, or nothing that has rows.
    """
    if isinstance(x, str):
        raise RecipeError(f"{name} must be a list of {what}, got one text; give [{name}]")
    if is_table(x):
        raise RecipeError(f"{name} must be a list of {what}, got {describe(x)}; give one column")
    try:
        return list(x)
    except TypeError:
        raise RecipeError(f"{name} must be a list of {what}, got {describe(x)}") from None


def checked_texts(x: Any, name: str, what: str = "sentences") -> list[str]:
    """The texts as a list; see `as_list`.

    Raises:
        RecipeError: it is a single text, or something in it is no text.
    """
    found = as_list(x, name, what)
    for number, one in enumerate(found):
        if not isinstance(one, str):
            raise RecipeError(f"{name}[{number}] must be a text, got {describe(one)}")
        if not encodable(one):
            raise RecipeError(f"{name}[{number}] is no text in Unicode: {one!r} has surrogates")
    return [str(one) for one in found]


def held_out(rows: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """The rows for training and a tenth of them, at most 1,000, for validation; a single row is both."""
    count = min(len(rows) // 10, 1000) or int(len(rows) > 1)
    if not count:
        return list(rows), list(rows)
    order = np.random.default_rng((seed, 1)).permutation(len(rows)).tolist()
    return [rows[row] for row in order[count:]], [rows[row] for row in order[:count]]
