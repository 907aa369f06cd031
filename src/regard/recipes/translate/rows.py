"""Checks of sentences and pairs, and a validation part where none is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from regard.describe import describe
from regard.recipes.columns import is_table
from regard.recipes.estimator import RecipeError
from regard.text import encodable

Pair = tuple[str, str]
Row = TypeVar("Row")


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


def checked_sides(x: Any, y: Any) -> tuple[list[str], list[str]]:
    """The sentences and their translations as lists.

    Raises:
        RecipeError: there are no translations, or as many of them as sentences are not given.
    """
    if y is None:
        raise RecipeError("y is missing: give the translation of each sentence of x")
    sources, targets = checked_texts(x, "x"), checked_texts(y, "y")
    if len(sources) != len(targets):
        raise RecipeError(
            f"x has {len(sources)} sentences and y {len(targets)}: give one translation for each"
        )
    return sources, targets


def checked_pairs(x: Any, y: Any) -> tuple[list[Pair], int]:
    """The pairs whose sides both have characters, and how many were left out.

    Raises:
        RecipeError: the sides differ in number, or no pair is left.
    """
    sources, targets = checked_sides(x, y)
    pairs = [
        (one, other)
        for one, other in zip(sources, targets, strict=True)
        if one.strip() and other.strip()
    ]
    if not pairs:
        raise RecipeError(
            f"there is nothing to train on: of {len(sources)} pairs none has text on both sides"
        )
    return pairs, len(sources) - len(pairs)


def held_out(rows: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """The rows for training and a tenth of them, at most 1,000, for validation; a single row is both."""
    count = min(len(rows) // 10, 1000) or int(len(rows) > 1)
    if not count:
        return list(rows), list(rows)
    order = np.random.default_rng((seed, 1)).permutation(len(rows)).tolist()
    return [rows[row] for row in order[count:]], [rows[row] for row in order[:count]]
