"""Brings the tensors of any call to (batch, heads, length, width), as views where possible.

Shape legend: `*` leading dims, B batch, H heads, T length, D width, Q queries, L keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def as_heads(x: Tensor, heads: int = 1) -> Tensor:
    """(*, h, T, D), (B * heads, T, D) or (T, D) as (B, h, T, D)."""
    if x.ndim == 4:
        return x
    if x.ndim == 3:
        fits = heads > 1 and x.shape[0] % heads == 0
        return x.unflatten(0, (-1, heads)) if fits else x.unsqueeze(1)
    return x[None, None] if x.ndim == 2 else x.flatten(0, -4)


def alike(lead: tuple[int, ...], x: Tensor) -> Tensor:
    """(..., h, T, D) with its leading dims broadcast to `lead` and flattened: (B, h, T, D)."""
    if len(lead) == 1 and x.ndim == 4:
        return x
    return x.expand(*lead, *x.shape[-3:]).reshape(-1, *x.shape[-3:])


def mask_alike(lead: tuple[int, ...], mask: Tensor) -> Tensor:
    """A mask that broadcasts to (*, H, Q, L), reshaped to broadcast to (B, H, Q, L)."""
    if mask.ndim < 4 or len(lead) == 1:
        return mask
    return alike(lead, mask)


def sdpa_tensors(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The tensors and the mask of a call of torch's SDPA, brought to 4 dims."""
    if query.ndim == key.ndim == value.ndim == 4:
        return query, key, value, mask
    if query.ndim <= 3:
        # `as_heads` adds a head dim to the tensors, so a mask with a batch dim needs one too.
        mask = mask.unsqueeze(1) if mask is not None and mask.ndim == 3 else mask
        return as_heads(query), as_heads(key), as_heads(value), mask
    lead = tuple(torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3]))
    mask = None if mask is None else mask_alike(lead, mask)
    return alike(lead, query), alike(lead, key), alike(lead, value), mask
