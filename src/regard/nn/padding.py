"""Padding around sequences: find the real tokens, and zero the others.

Shape legend: B batch, L tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def real_tokens(
    length: int,
    start: Tensor | None = None,
    stop: Tensor | None = None,
    device: torch.device | None = None,
    before: int = 0,
) -> Tensor | None:
    """Which of `length` tokens are real: (B, length) with True = real; None if all are.

    Args:
        length: number of tokens.
        start: (B,) index of the first real token of each sequence; None for 0.
        stop: (B,) index after the last real token of each sequence; None for no end.
        device: device of the result.
        before: index of the first of these tokens, if earlier chunks held others.
    """
    if start is None and stop is None:
        return None
    place = torch.arange(before, before + length, device=device)
    late = None if start is None else place >= start.unsqueeze(-1)
    early = None if stop is None else place < stop.unsqueeze(-1)
    if late is None or early is None:
        return early if late is None else late
    return late & early


def zero_padding(x: Tensor, real: Tensor | None) -> Tensor:
    """X (B, L, dim) with zeros where `real` (B, L) is False; None means that all are real.

    NaN in padding would otherwise reach the gradient of projections: 0 * NaN is NaN.
    """
    return x if real is None else torch.where(real.unsqueeze(-1), x, 0)
