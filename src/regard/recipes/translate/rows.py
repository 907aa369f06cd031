"""Checks of sentences and their translations."""

from __future__ import annotations

from typing import Any

from regard.recipes.columns import checked_texts
from regard.recipes.estimator import RecipeError

Pair = tuple[str, str]


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
