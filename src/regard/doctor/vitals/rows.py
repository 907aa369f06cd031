"""Picks the queries that the sampled level reads."""

from __future__ import annotations

import torch
from torch import Tensor

# 2^32 over the golden ratio: each multiple of it, modulo 2^32, lies far from all earlier ones.
GOLDEN = 2654435761
WORD = 2**32


def pick_rows(queries: int, count: int, step: int | Tensor, device: torch.device | str) -> Tensor:
    """`count` evenly spaced places below `queries`, others at each step; all if there are fewer.

    A step given as a tensor on the device is never read by the host: nothing waits, and no compiled
    graph depends on its value.
    """
    if queries <= count:
        return torch.arange(queries, device=device)
    if isinstance(step, Tensor):
        step = step.to(torch.int64)
    offset = (step * GOLDEN) % WORD * queries // WORD
    return (torch.arange(count, device=device) * queries + offset) // count
