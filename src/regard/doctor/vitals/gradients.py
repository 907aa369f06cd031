"""The gradient that reaches queries, keys and values.

Shape legend: B batch, H query heads, K key heads, T length, D dims.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.doctor.vitals.cheap import per_head
from regard.doctor.vitals.table import columns
from regard.precision import working_dtype


def measure_gradients(
    heads: int,
    *,
    query: Tensor | None = None,
    key: Tensor | None = None,
    value: Tensor | None = None,
) -> Tensor:
    """The vitals (H, count) of gradients (B, H or K, T, D); NaN for all that is not given.

    Each may come in a call of its own, as backward hooks do.
    """
    given = {"query_grad": query, "key_grad": key, "value_grad": value}
    found = {name: rms(x, heads) for name, x in given.items() if x is not None}
    if not found:
        raise ValueError("measure_gradients needs a gradient of query, key or value")
    device = next(iter(found.values())).device
    return columns(found, heads, device)


@torch.no_grad()
def rms(x: Tensor, heads: int) -> Tensor:
    """(H,): root mean square over all but the heads of (B, K, T, D)."""
    if x.ndim != 4 or (heads and (not x.shape[1] or heads % x.shape[1])):
        raise ValueError(
            f"a gradient of (batch, heads, length, width) with a divisor of {heads} heads is "
            f"needed, got shape {tuple(x.shape)}"
        )
    size = torch.linalg.vector_norm(x, dim=(0, 2, 3), dtype=working_dtype(x.dtype))
    entries = math.prod(x.shape) // max(x.shape[1], 1)
    return per_head(size / (entries**0.5 or torch.nan), heads, 0)
