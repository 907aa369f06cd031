"""Series as users have them, checked and brought to one form: a float64 array (T, C) without gaps.

Shape legend: T points, C channels.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from torch import Tensor

from regard.describe import describe
from regard.recipes.estimator import RecipeError

UNJUDGED = -1  # label of a point that no measure counts, such as one of a probation


def is_one_series(x: Any) -> bool:
    """Whether x is a single series: an array, a tensor, a frame or a list of plain numbers."""
    if isinstance(x, list | tuple):
        return not x or isinstance(x[0], int | float | np.generic)
    if isinstance(x, np.ndarray) and x.dtype == object and x.ndim == 1:
        return len(x) == 0 or isinstance(x[0], int | float | np.generic)
    return True


def checked_series(x: Any, name: str = "x") -> list[np.ndarray]:
    """The series of x as arrays (T, C): x is one series, or a list of several.

    Missing values are filled along a straight line between their neighbours, with a warning; points are taken as
    evenly spaced.

    Raises:
        RecipeError: a series is empty, not of numbers, infinite, without a value in some channel, of another number
            of channels than the first, or has timestamps that are unsorted or doubled.
    """
    several = [x] if is_one_series(x) else list(x)
    if not several:
        raise RecipeError(f"{name} is empty: give one series, or a list of several")
    names = [name] if is_one_series(x) else [f"{name}[{n}]" for n in range(len(several))]
    found = [filled(numbers_of(one, own), own) for one, own in zip(several, names, strict=True)]
    for one, own in zip(found, names, strict=True):
        if one.shape[1] != found[0].shape[1]:
            raise RecipeError(
                f"{own} has {one.shape[1]} channels, {names[0]} has {found[0].shape[1]}: all series of a call have "
                "the same channels"
            )
    return found


def numbers_of(x: Any, name: str) -> np.ndarray:
    """One series as an array (T, C) of float64, in which NaN marks what is missing."""
    check_index(x, name)
    if isinstance(x, Tensor):
        x = x.detach().cpu().numpy()
    try:
        found = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):
        raise RecipeError(f"{name} must be of numbers, got {describe(x)}") from None
    if found.ndim not in (1, 2):
        raise RecipeError(
            f"{name} must be (points,) or (points, channels), got an array of shape {found.shape}"
        )
    if 0 in found.shape:
        raise RecipeError(f"{name} is empty: give a series of numbers")
    found = found[:, None] if found.ndim == 1 else found
    if np.isinf(found).any():
        point, channel = (int(n[0]) for n in np.nonzero(np.isinf(found)))
        raise RecipeError(
            f"{name} has {found[point, channel]} at point {point}: numbers must be finite, or NaN where they are "
            "missing"
        )
    return found


def check_index(x: Any, name: str) -> None:
    """Refuse a frame whose timestamps are unsorted or doubled: the order of its points would be a guess."""
    index = getattr(x, "index", None)
    if index is None or not hasattr(index, "is_monotonic_increasing"):
        return
    if not index.is_monotonic_increasing:
        raise RecipeError(
            f"the index of {name} does not ascend: sort the points by {name}.sort_index()"
        )
    if not index.is_unique:
        twice = index[index.duplicated()][0]
        raise RecipeError(
            f"the index of {name} has {twice} twice: join such points, as {name}.groupby(level=0).mean() does"
        )


def filled(values: np.ndarray, name: str) -> np.ndarray:
    """The series without gaps: each is bridged by a line, and one at an end takes the nearest value."""
    gaps = np.isnan(values)
    if not gaps.any():
        return values
    found, places = values.copy(), np.arange(len(values))
    for channel in range(values.shape[1]):
        missing = gaps[:, channel]
        if missing.all():
            raise RecipeError(f"{name} has no number in channel {channel}: leave this channel out")
        found[missing, channel] = np.interp(
            places[missing], places[~missing], values[~missing, channel]
        )
    warnings.warn(
        f"{name} lacks {int(gaps.sum())} of {gaps.size} values: they are filled along lines between their neighbours",
        stacklevel=4,
    )
    return found


def checked_labels(y: Any, series: list[np.ndarray], one: bool) -> list[np.ndarray]:
    """The labels of every series: 1 for a point of an anomaly, 0 for others, -1 for those that are not judged.

    Raises:
        RecipeError: they are missing, of another length, or other numbers.
    """
    if y is None:
        raise RecipeError("y is missing: give 0 or 1 for each point")
    several = [y] if one else list(y)
    if len(several) != len(series):
        raise RecipeError(f"y has labels of {len(several)} series, x has {len(series)} series")
    found = []
    for number, (labels, values) in enumerate(zip(several, series, strict=True)):
        name = "y" if one else f"y[{number}]"
        own = np.asarray(labels)
        if own.shape != (len(values),):
            raise RecipeError(
                f"{name} must have one label for each of {len(values)} points, got shape {own.shape}"
            )
        if not np.isin(own, (0, 1, UNJUDGED)).all():
            raise RecipeError(
                f"{name} must be 0 or 1 at each point, or -1 where it is not judged, got {np.unique(own)[:5].tolist()}"
            )
        found.append(own.astype(np.int64))
    return found


def check_length(series: list[np.ndarray], window: int, windows: int = 1) -> None:
    """Refuse series that are shorter than so many windows."""
    for number, one in enumerate(series):
        if len(one) < windows * window:
            raise RecipeError(
                f"series {number} has {len(one)} points, fewer than the {windows * window} that window={window} "
                f"needs: give a longer series, or a window of {max(len(one) // windows, 1)} or less"
            )
