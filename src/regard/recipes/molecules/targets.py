"""Checks of the targets of molecules, and the scale by which they are standardised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regard.recipes.columns import one_kind
from regard.recipes.estimator import RecipeError


def check_targets(x: list[str], y: Any, classify: bool) -> np.ndarray:
    """The targets as an array with one for each molecule: numbers, or classes of any kind.

    Raises:
        RecipeError: they are missing, too few or too many, no numbers, or not finite; the message names the row.
    """
    if y is None:
        raise RecipeError("y is missing: give one value or class for each SMILES")
    found = one_kind(y)
    if found.shape != (len(x),):
        raise RecipeError(f"y must have one entry for each of {len(x)} SMILES, got {found.shape}")
    for row, value in enumerate(found.tolist()):
        if not usable(value, classify):
            wanted = "a class" if classify else "a finite number"
            raise RecipeError(
                f"y must be {wanted} in each row, got {value!r} in row {row} ({x[row]!r})"
            )
    return found if classify else found.astype(np.float64)


def usable(value: Any, classify: bool) -> bool:
    """Whether a target can be learned: a finite number, or for classes also text."""
    if isinstance(value, str):
        return classify
    if not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond float64
        return False


def scale_of(y: np.ndarray) -> list[float]:
    """The mean and the deviation by which targets are standardised; 1 for equal targets.

    Raises:
        RecipeError: the deviation is beyond float64, or too small for it.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        mean, spread = float(y.mean()), float(y.std())
    if y.min() == y.max():
        spread = 1.0
    if not (math.isfinite(mean) and np.finfo(np.float64).tiny <= spread < math.inf):
        raise RecipeError(
            f"y spans {y.min():g} to {y.max():g}, which cannot be standardised in float64: rescale y"
        )
    return [mean, spread]
