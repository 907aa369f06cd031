"""`SeriesAlignment`: how two series fit: the path, the energy over shifts, and the best lag with its uncertainty.

The energy of a shift is the mean cost along its diagonal of the matrix of costs. The best lag has the least energy. How
sure it is follows from a bootstrap over blocks of time: neighbouring costs are alike, so that single steps drawn with
replacement would make it look surer than it is.

Shape legend: T and U steps, P cells of a path, L lags.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from regard import Score
from regard.measuring.statistics import LEVEL
from regard.recipes.align.net import StepScore, inputs_of, scale_of
from regard.recipes.align.series import SeriesLayout, check_channels, check_layout, checked_one
from regard.recipes.align.warping import hard_path, soft_path
from regard.recipes.estimator import RecipeError

DRAWS = 400  # of the bootstrap
SAME = 1e-9  # energies that differ by less than this share of the largest cost are equal


class SeriesAlignment(NamedTuple):
    """How two series fit.

    Attributes:
        path: (P, 2) steps of x and y that the cheapest path matches.
        cost: of that path.
        costs: (T, U) of matching each step of x with each of y.
        soft: (T, U) how much each cell belongs to the path under soft-DTW; 1 or 0 where the path is certain.
        lags: (L,) the shifts that were tried: step t of x beside step t + lag of y.
        energy: (L,) the mean cost of each.
        lag: that of the least energy; the one nearest to 0 of equal ones.
        interval: the least and the greatest lag that repeated measurements would give, in 95 of 100 cases.
        window: how far the path may leave the diagonal, as a share of the length.
    """

    path: np.ndarray
    cost: float
    costs: np.ndarray
    soft: np.ndarray
    lags: np.ndarray
    energy: np.ndarray
    lag: int
    interval: tuple[int, int]
    window: float


def align(
    x: Any,
    y: Any,
    *,
    score: str | Score | None = None,
    window: float = 1.0,
    max_lag: int | None = None,
    layout: SeriesLayout = "aeon",
    gamma: float = 0.1,
    seed: int = 0,
) -> SeriesAlignment:
    """Align two series by the cost of a score that has learned nothing; for scaled dot it is that of DTW.

    Args:
        x: a series (T,), or of 2 dims in the given layout.
        y: another one with as many channels; its length may differ.
        score: a name, a `Score`, or None for scaled dot.
        window: how far the path may leave the diagonal, as a share of the shorter length.
        max_lag: the largest shift to try; None for half of the shorter series.
        layout: "aeon" (channels, steps) or "tslearn" (steps, channels).
        gamma: softness of `soft`, in units of the mean cost.
        seed: of the bootstrap.
    """
    check_layout(layout)
    sides = [checked_one(one, layout, name) for one, name in ((x, "x"), (y, "y"))]
    check_channels(sides, "x and y")
    scale, model = scale_of(sides), StepScore(len(sides[0]), score)
    with torch.no_grad():
        one, two = (model(torch.from_numpy(inputs_of(side, scale))[None]) for side in sides)
        costs = model.cost(one, two)[0].double().numpy()
    return aligned(costs, window, max_lag, gamma, seed)


def aligned(
    costs: np.ndarray, window: float, max_lag: int | None, gamma: float, seed: int
) -> SeriesAlignment:
    """The alignment that follows from a matrix of costs (T, U)."""
    if not 0 <= window <= 1:
        raise RecipeError(f"window must be a share from 0 to 1, got {window!r}")
    most = min(costs.shape) // 2
    if max_lag is not None:
        if type(max_lag) is not int or not 0 <= max_lag < min(costs.shape):
            raise RecipeError(
                f"max_lag must be an integer from 0 to {min(costs.shape) - 1}, the shorter series less one, got "
                f"{max_lag!r}"
            )
        most = max_lag
    path, cost = hard_path(costs, window)
    typical = float(costs.mean()) or 1.0
    lags = np.arange(-most, costs.shape[1] - costs.shape[0] + most + 1)
    lags = lags if len(lags) else np.arange(-most, most + 1)
    shifted = diagonals(costs, lags)
    energy = np.nanmean(shifted, axis=1)
    lag, interval = best_lag(shifted, lags, seed)
    soft = soft_path(costs / typical, gamma, window)
    return SeriesAlignment(path, cost, costs, soft, lags, energy, lag, interval, window)


def diagonals(costs: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """The costs (L, T) of step t of x beside step t + lag of y, NaN where y has no such step."""
    rows, columns = costs.shape
    at = np.arange(rows) + lags[:, None]
    inside = (at >= 0) & (at < columns)
    return np.where(inside, costs[np.arange(rows), np.clip(at, 0, columns - 1)], np.nan)


def best_lag(shifted: np.ndarray, lags: np.ndarray, seed: int) -> tuple[int, tuple[int, int]]:
    """The lag of the least energy, and its 95% interval by a bootstrap over blocks of time.

    Where all shifts fit equally well, as for constant series, nothing is known: the interval has all of them.
    """
    there = ~np.isnan(shifted)
    known = np.where(there, shifted, 0.0)
    energy = known.sum(1) / there.sum(1)
    nearest = np.argsort(np.abs(lags), kind="stable")
    least = SAME * max(float(known.max()), 1e-300)
    if np.ptp(energy) <= least:
        return int(lags[nearest[0]]), (int(lags.min()), int(lags.max()))
    counts = block_counts(shifted.shape[1], seed).T
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = (known @ counts) / (there @ counts)  # (L, draws)
    drawn = np.where(np.isnan(drawn), np.inf, drawn)[nearest]
    found = lags[nearest[drawn.argmin(0)]]
    tail = (1 - LEVEL) / 2
    low = np.quantile(found, tail, method="lower")
    high = np.quantile(found, 1 - tail, method="higher")
    lag = int(lags[nearest[energy[nearest].argmin()]])
    return lag, (min(int(low), lag), max(int(high), lag))


def block_counts(steps: int, seed: int) -> np.ndarray:
    """How often each step is drawn (draws, T), in circular blocks of the root of their number."""
    draw, size = np.random.default_rng(seed), max(math.isqrt(steps), 1)
    begins = draw.integers(steps, size=(DRAWS, -(-steps // size)))
    at = (begins[:, :, None] + np.arange(size)) % steps
    found = np.zeros((DRAWS, steps))
    np.add.at(found, (np.arange(DRAWS)[:, None], at.reshape(DRAWS, -1)), 1.0)
    return found
