"""DTW on costs: soft, for training, by tslearn; hard, for predictions, by aeon; and the path of one pair.

Shape legend: B pairs, N and M series, T and U steps, E features of a step.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from regard.recipes.align.net import StepScore

AT_ONCE = 2**22  # cells of cost matrices in one batch
FAR = 1e6  # the cost of a cell outside of the window in soft DTW, whose softmin has no place for infinity


@lru_cache(maxsize=64)
def band(rows: int, columns: int, window: float) -> np.ndarray:
    """The cells (T, U) that a window allows: a share of the shorter length to each side of the diagonal."""
    from aeon.distances import create_bounding_matrix

    return create_bounding_matrix(rows, columns, window)


@contextmanager
def own_threads() -> Iterator[None]:
    """As many threads for numba as torch has, and for torch as many as before.

    The first parallel kernel of numba sets the number of threads of the OpenMP that torch uses too, to all cores.
    """
    import numba

    before = torch.get_num_threads()
    numba.set_num_threads(min(before, numba.config.NUMBA_NUM_THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def soft_costs(costs: Tensor, gamma: float, window: float) -> Tensor:
    """Soft-DTW (B,) of costs (B, T, U), with gradients, by tslearn.

    In the limit gamma to 0 it is the cost of the cheapest path.
    """
    from tslearn.metrics import SoftDTWLossPyTorch

    outside = torch.from_numpy(~band(*costs.shape[1:], window)).to(costs.device)
    inside = costs.masked_fill(outside, FAR)
    # The loss takes two batches of series and a function of them. Here the costs are known.
    empty = costs.new_empty(len(costs), 1, 1)
    loss: Any = SoftDTWLossPyTorch
    with own_threads():
        return loss(gamma, dist_func=lambda x, y: inside)(empty, empty)


def soft_path(costs: np.ndarray, gamma: float, window: float) -> np.ndarray:
    """How much each cell (T, U) belongs to the path: the gradient of soft-DTW by the costs; 1 or 0 for a hard path."""
    given = torch.tensor(costs[None], dtype=torch.float32, requires_grad=True)
    soft_costs(given, gamma, window).sum().backward()
    assert given.grad is not None
    return given.grad[0].double().numpy()


def hard_path(costs: np.ndarray, window: float) -> tuple[np.ndarray, float]:
    """The cheapest path (P, 2) through costs (T, U), and its cost, by tslearn."""
    from tslearn.metrics import dtw_path_from_metric

    inside = np.where(band(*costs.shape, window), costs, np.inf)
    path, cost = dtw_path_from_metric(inside, metric="precomputed")
    return np.array(path), float(cost)


def point_distances(
    x: Sequence[np.ndarray], y: Sequence[np.ndarray] | None, window: float
) -> np.ndarray:
    """Hard DTW (N, M) between points (T, E), whose squared distances are the costs, by aeon."""
    sides = [None if one is None else [point.T for point in one] for one in (x, y)]
    assert sides[0] is not None
    return elastic_distances(sides[0], sides[1], "dtw", window=window)


def elastic_distances(
    x: Sequence[np.ndarray], y: Sequence[np.ndarray] | None, method: str, **setting: Any
) -> np.ndarray:
    """Distances (N, M) between series (C, T) by a method of aeon; without y between all pairs of x."""
    from aeon.distances import pairwise_distance

    def as_aeon(series: Sequence[np.ndarray]) -> Any:
        own = [np.ascontiguousarray(one, dtype=np.float64) for one in series]
        return np.stack(own) if len({one.shape for one in own}) == 1 else own

    with warnings.catch_warnings(), own_threads():
        warnings.simplefilter("ignore")  # numba's, about casts inside of aeon
        other = None if y is None else as_aeon(y)
        return pairwise_distance(as_aeon(x), other, method=method, **setting)


@torch.no_grad()
def cost_distances(
    model: StepScore, x: Sequence[Tensor], y: Sequence[Tensor] | None, window: float
) -> np.ndarray:
    """Hard DTW (N, M) between features (T, E), by matrices of costs; without y between all pairs of x.

    The costs of (x, y) and (y, x) are the same, so that without y half of the pairs are computed.
    """
    from regard.recipes.align.kernels import path_costs

    same, other = y is None, x if y is None else y
    found = np.zeros((len(x), len(other)))
    for lengths, rows, columns in blocks(x, other, same):
        size = max(AT_ONCE // (lengths[0] * lengths[1]), 1)
        allowed = band(*lengths, window)
        for begin in range(0, len(rows), size):
            one, two = rows[begin : begin + size], columns[begin : begin + size]
            sides = torch.stack([x[n] for n in one]), torch.stack([other[n] for n in two])
            costs = model.cost(*sides).double().cpu().numpy()
            out = np.empty(len(costs))
            path_costs(costs, allowed, out)
            found[one, two] = out
    return found + found.T if same else found


def blocks(
    x: Sequence[Tensor], y: Sequence[Tensor], same: bool
) -> list[tuple[tuple[int, int], np.ndarray, np.ndarray]]:
    """All pairs by their two lengths: lengths, rows and columns. Of the same series, each pair once."""
    lengths = [np.array([len(one) for one in side]) for side in (x, y)]
    found = []
    for first in np.unique(lengths[0]):
        for second in np.unique(lengths[1]):
            own = [np.flatnonzero(a == b) for a, b in zip(lengths, (first, second), strict=True)]
            rows, columns = (one.ravel() for one in np.meshgrid(*own, indexing="ij"))
            kept = rows < columns if same else np.ones(len(rows), bool)
            if kept.any():
                found.append(((int(first), int(second)), rows[kept], columns[kept]))
    return found


def resampled(features: Tensor, steps: int) -> Tensor:
    """Features (T, E) at so many evenly spaced steps, between neighbours by a line."""
    if len(features) == steps:
        return features
    return interpolate(features.mT[None], size=steps, mode="linear", align_corners=True)[0].mT


def nearest_left_out(distances: np.ndarray) -> np.ndarray:
    """For each series the nearest of the others, by distances (N, N)."""
    found = distances.copy()
    np.fill_diagonal(found, np.inf)
    return found.argmin(1)
