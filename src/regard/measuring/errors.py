"""Errors against fp64, and the largest one with which a time is shown.

`bench` and `choose` hold a candidate to the error of plain PyTorch in the same dtype, on rows of
queries that are spread over all of them; each has its own factors (`bench/check.py`, `choosing/cost/check.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rounding(dtype: torch.dtype, own: float, sums: float) -> float:
    """The larger of `own` units of rounding of the dtype and `sums` of fp32, in which sums are made."""
    return max(own * torch.finfo(dtype).eps, sums * torch.finfo(torch.float32).eps)


def allowed(
    plain: float, factor: float, dtype: torch.dtype, roundings: tuple[float, float]
) -> float:
    """The largest error that passes: `factor` times plain PyTorch's, or a few roundings.

    The roundings matter where plain PyTorch happens to be exact, or nearly so.
    """
    return max(factor * plain, rounding(dtype, *roundings))


def spread_rows(count: int, length: int, device: torch.device) -> Tensor:
    """At most `count` row numbers, evenly spread over `length` rows, the first and the last among them.

    Rows of queries do not depend on each other, so that a sample of them stands for all.
    """
    last = length - 1
    picks = {round(i * last / max(count - 1, 1)) for i in range(count)}
    return torch.tensor(sorted(picks), device=device)


def distance(x: Tensor, truth: Tensor) -> float:
    """`|x - truth| / |truth|`."""
    size = float(truth.norm())
    return float((x.double() - truth).norm()) / (size or 1.0)


def worst(errors: list[float]) -> float:
    """The largest; NaN if any is."""
    return math.nan if any(math.isnan(e) for e in errors) else max(errors)
