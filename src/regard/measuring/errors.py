"""Errors against fp64, and the largest error at which a candidate's time is still reported.

`bench` and `choose` compare a candidate's error with that of plain PyTorch in the same dtype, on a sample of
query rows. Each has its own factors, in `bench/check.py` and `choosing/cost/check.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rounding(dtype: torch.dtype, own: float, sums: float) -> float:
    """The larger of `own` machine epsilons of the dtype and `sums` epsilons of fp32.

    The second term is for engines that accumulate sums in fp32 whatever the dtype of the inputs.
    """
    return max(own * torch.finfo(dtype).eps, sums * torch.finfo(torch.float32).eps)


def allowed(
    plain: float, factor: float, dtype: torch.dtype, roundings: tuple[float, float]
) -> float:
    """The largest error that passes: `factor` times plain PyTorch's, but at least `rounding(dtype, *roundings)`.

    The floor matters when plain PyTorch happens to be exact, or nearly so.
    """
    return max(factor * plain, rounding(dtype, *roundings))


def spread_rows(count: int, length: int, device: torch.device) -> Tensor:
    """At most `count` row indices, evenly spread over `length` rows, including the first and the last.

    Each query row is computed independently of the others, so a sample represents all of them.
    """
    last = length - 1
    # A set, because neighbouring picks coincide when `count` exceeds `length`.
    picks = {round(i * last / max(count - 1, 1)) for i in range(count)}
    return torch.tensor(sorted(picks), device=device)


def distance(x: Tensor, truth: Tensor) -> float:
    """Relative error `|x - truth| / |truth|`; the absolute error when the truth is zero."""
    size = float(truth.norm())
    return float((x.double() - truth).norm()) / (size or 1.0)


def worst(errors: list[float]) -> float:
    """The largest error, or NaN if any error is NaN."""
    # `max` alone would drop a NaN or keep it, depending on its place in the list.
    return math.nan if any(math.isnan(e) for e in errors) else max(errors)
