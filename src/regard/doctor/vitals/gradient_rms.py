"""The size of the gradient that reaches queries, keys or values.

Shape legend: B batch, H query heads, K key heads, T length, D dims.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.doctor.vitals.cheap import per_head
from regard.precision import working_dtype


@torch.no_grad()
def rms(x: Tensor, heads: int) -> Tensor:
    """(H,): root mean square over all but the heads of (B, K, T, D)."""
    if x.ndim != 4 or (heads and (not x.shape[1] or heads % x.shape[1])):
        raise ValueError(
            "gradient must have the shape (batch, heads, length, width) with a number of heads "
            "that "
            f"divides {heads}, got {tuple(x.shape)}"
        )
    size = torch.linalg.vector_norm(x, dim=(0, 2, 3), dtype=working_dtype(x.dtype))
    entries = math.prod(x.shape) // max(x.shape[1], 1)
    return per_head(size / (entries**0.5 or torch.nan), heads, 0)
