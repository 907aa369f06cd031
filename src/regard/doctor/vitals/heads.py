"""How alike the weights of different heads are.

Shape legend: B batch, H query heads, L keys, R queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Rows whose weights all lie within about a hundredth of uniform are left out: minus their mean only
# rounding remains, and heads that have learnt nothing yet are not copies of one another.
UNIFORM = 1e-4


def compare_heads(weights: Tensor, keys: Tensor, sound: Tensor) -> tuple[Tensor, Tensor]:
    """Correlations (H, H) of the weights (B, H, R, L) of two heads, summed over rows; their count.

    Only rows in which both heads have a correlation count. With n keys and weights p, Pearson's
    correlation over the keys of a row needs only the sums of p_a p_b: the mean of p is 1/n.
    """
    by_row = weights.transpose(1, 2)
    gram = by_row @ by_row.mT  # (B, R, H, H)
    keys, sound = (x.transpose(1, 2).unsqueeze(-1) for x in (keys, sound))
    covariance = gram * keys - 1
    same = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    variance = (covariance * same).sum(-1, keepdim=True)
    # With masks that differ by head, two heads that see different numbers of keys have no common
    # 1/n.
    uneven = sound & (variance > UNIFORM)
    valid = uneven & uneven.mT & (keys == keys.mT)
    correlation = torch.where(valid, covariance / (variance * variance.mT).sqrt(), 0)
    return correlation.sum((0, 1)), valid.sum((0, 1))


def similarity(likeness: Tensor, compared: Tensor) -> Tensor:
    """(H,): the mean correlation with the most similar other head; NaN where there is none."""
    same = torch.eye(likeness.shape[0], dtype=torch.bool, device=likeness.device)
    mean = (likeness / compared).masked_fill(same | (compared == 0), -torch.inf)
    best = mean.amax(-1)
    return best.masked_fill(best == -torch.inf, torch.nan)
