"""Series as a list of arrays (channels, steps), from the layouts of aeon and of tslearn, with every mistake named.

Shape legend: N series, C channels, T steps of a series.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from regard.describe import describe
from regard.recipes.estimator import RecipeError

SeriesLayout = Literal["aeon", "tslearn"]
LAYOUTS = get_args(SeriesLayout)
SHAPES = {
    "aeon": "(series, channels, steps)",
    "tslearn": "(series, steps, channels), padded with NaN",
}


def checked_series(x: Any, layout: SeriesLayout = "aeon", name: str = "x") -> list[np.ndarray]:
    """The series as arrays (C, T) of fp64.

    Args:
        x: an array (N, T) or of 3 dims in the given layout, or a list of arrays (T,) or of 2 dims, whose lengths may
            differ.
        layout: "aeon" has channels before steps; "tslearn" has steps first, and NaN after the end of short series.
        name: of the argument, for messages.

    Raises:
        RecipeError: names the series and what would work.
    """
    if isinstance(x, Tensor):
        x = x.detach().cpu().numpy()
    if isinstance(x, str | bytes | dict) or not hasattr(x, "__len__"):
        raise RecipeError(
            f"{name} must be an array {SHAPES[layout]} or a list of series, got {describe(x)}"
        )
    if hasattr(x, "to_numpy"):  # a frame has a series in each row
        x = x.to_numpy()
    rows = list(x)
    if rows and all(np.ndim(one) == 0 for one in rows):
        raise RecipeError(f"{name} is a single series: put it into a list, [{name}]")
    found = [checked_one(one, layout, f"{name}, series {n}") for n, one in enumerate(rows)]
    check_channels(found, name)
    return found


def checked_one(x: Any, layout: SeriesLayout = "aeon", name: str = "x") -> np.ndarray:
    """One series as an array (C, T) of fp64.

    Raises:
        RecipeError: it is empty, has gaps, or is no array of numbers.
    """
    if isinstance(x, Tensor):
        x = x.detach().cpu().numpy()
    try:
        array = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):
        raise RecipeError(f"{name} must be numbers, got {describe(x)}") from None
    if array.ndim not in (1, 2):
        raise RecipeError(
            f"{name} must have 1 or 2 dims, steps and perhaps channels, got {array.ndim}"
        )
    if array.ndim == 1:
        array = array[None]
    elif layout == "tslearn":
        array = array.T
    if layout == "tslearn":
        array = array[:, : last_step(array)]
    if not array.size:
        raise RecipeError(f"{name} is empty: a series needs one step or more")
    if not np.isfinite(array).all():
        channel, step = map(int, np.argwhere(~np.isfinite(array))[0])
        what = "a gap (NaN)" if np.isnan(array[channel, step]) else "an infinite value"
        raise RecipeError(
            f"{name} has {what} at step {step}: fill gaps first, for example by numpy.interp"
        )
    return array


def last_step(array: np.ndarray) -> int:
    """How many steps there are before the NaN that pads a series (C, T) to the end."""
    real = np.flatnonzero(~np.isnan(array).all(0))
    return int(real[-1]) + 1 if len(real) else 0


def check_channels(x: list[np.ndarray], name: str, wanted: int | None = None) -> None:
    """Refuse series that differ in their number of channels, or do not have those that are wanted."""
    for number, one in enumerate(x):
        wanted = len(one) if wanted is None else wanted
        if len(one) != wanted:
            raise RecipeError(
                f"{name}, series {number} has {len(one)} channel{'s' * (len(one) != 1)}, expected {wanted}: "
                f"is it {SHAPES['aeon']}, or layout='tslearn'?"
            )


def check_layout(layout: object) -> None:
    """Refuse an unknown layout."""
    if layout not in LAYOUTS:
        raise RecipeError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")


def normalized(x: np.ndarray) -> np.ndarray:
    """Each channel with mean 0 and deviation 1; a constant one is all 0."""
    centred = x - x.mean(1, keepdims=True)
    spread = centred.std(1, keepdims=True)
    # Rounding gives a constant series a tiny spread, which would be blown up to noise.
    least = 1e-12 * np.maximum(np.abs(x).max(1, keepdims=True), 1e-300)
    return np.where(spread > least, centred / np.where(spread > least, spread, 1.0), 0.0)


def slopes(x: np.ndarray) -> np.ndarray:
    """The slope of each channel (C, T); of a single step it is 0."""
    return np.gradient(x, axis=1) if x.shape[1] > 1 else np.zeros_like(x)


def padded(x: list[np.ndarray]) -> Tensor:
    """Series as one tensor (N, C, T), with 0 after the end of short ones."""
    found = np.zeros((len(x), len(x[0]), max(one.shape[1] for one in x)))
    for row, one in zip(found, x, strict=True):
        row[:, : one.shape[1]] = one
    return torch.from_numpy(found)
