"""How far a result is from the truth."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rounding(dtype: torch.dtype, own: float, sums: float) -> float:
    """That many units of rounding, whichever are larger."""
    return max(own * torch.finfo(dtype).eps, sums * torch.finfo(torch.float32).eps)


def distance(x: Tensor, truth: Tensor) -> float:
    """`|x - truth| / |truth|`."""
    size = float(truth.norm())
    return float((x.double() - truth).norm()) / (size or 1.0)


def worst(errors: list[float]) -> float:
    """The largest; NaN if any is."""
    return math.nan if any(math.isnan(e) for e in errors) else max(errors)
