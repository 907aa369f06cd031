"""Which queries are sampled."""

from __future__ import annotations

import torch
from torch import Tensor

# 2^32 over the golden ratio: multiples of it, modulo 2^32, fall far from all earlier ones.
GOLDEN = 2654435761
WORD = 2**32


def pick_rows(queries: int, count: int, step: int | Tensor, device: torch.device | str) -> Tensor:
    """`count` places below `queries`, evenly apart, other ones at each step; all if there are fewer.

    A step in a tensor on the device leaves the host out of it: it neither waits, nor does a
    compiled graph depend on the number.
    """
    if queries <= count:
        return torch.arange(queries, device=device)
    if isinstance(step, Tensor):
        step = step.to(torch.int64)
    offset = (step * GOLDEN) % WORD * queries // WORD
    return (torch.arange(count, device=device) * queries + offset) // count
