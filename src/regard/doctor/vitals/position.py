"""How much the weights follow positions and distances.

A query's own place is its index. Where there are fewer queries than keys, the last query sits at
the last key; under torch's causal mask, the first query sits at the first key. Where queries and
keys are different sequences, distances mean nothing, and neither do these vitals.

Shape legend: B batch, H query heads, R queries, L keys, W distances.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.vitals.logits import HIDDEN, Size

# Rounds of fitting a term for each query and a term for each distance in turn. Where all queries
# see the same distances one round is exact; under a causal mask two leave about 1e-4 of the
# variance.
ROUNDS = 2


def ladder(keys: int, device: torch.device) -> Tensor:
    """Distances (W,): 0, then 1, 2, 3, 4, 6, 8, 12 ... back, below `keys`, then the same ahead.

    Distances ahead are negative. Few distances cover a long sequence, so that a row keeps little.
    """
    rungs = 0
    while (2 + (rungs + 1) % 2) * 2 ** ((rungs + 1) // 2) // 2 < keys:
        rungs += 1
    rung = torch.arange(1, rungs + 1, device=device)
    back = (2 + rung % 2) * 2 ** (rung // 2) // 2
    return torch.cat([back.new_zeros(1), back, -back])


def near_logits(logits: Tensor, size: Size, rows: Tensor, causal: bool) -> Tensor:
    """Logits (B, H, R, 1 + W) of the first key and along the ladder; `HIDDEN` beyond the ends."""
    place = rows if causal else rows + max(size.keys - size.queries, 0)
    key = place[:, None] - ladder(size.keys, rows.device)
    outside = (key < 0) | (key >= size.keys)
    index = key.clamp(0, size.keys - 1).expand(*logits.shape[:2], -1, -1)
    near = logits.gather(-1, index).masked_fill_(outside, HIDDEN)
    return torch.cat([logits[..., :1], near], -1)


def position_vitals(near: Tensor, peak: Tensor, top: Tensor, sound: Tensor) -> dict[str, Tensor]:
    """Weights on the first key and on neighbours, and what distance explains; each (H,)."""
    weights = (near - peak.unsqueeze(-1)).exp() * top.unsqueeze(-1)
    visible = (near > HIDDEN / 2) & sound.unsqueeze(-1)
    share = torch.where(visible, weights, 0).sum((0, 2)) / visible.sum((0, 2))
    found = {"first_share": share[:, 0], "own_share": share[:, 1]}
    if (rungs := (near.shape[-1] - 2) // 2) > 0:
        found.update(previous_share=share[:, 2], next_share=share[:, 2 + rungs])
    near, visible = near[..., 1:], visible[..., 1:]
    found.update(
        distance_share=distance_share(near, visible), place_share=place_share(near, visible)
    )
    return found


def distance_share(logits: Tensor, visible: Tensor) -> Tensor:
    """(H,): share of the variance of (B, H, R, W) within queries that a term per distance explains.

    Adjusted for the number of terms, like an adjusted R²: about 0 where distance explains nothing,
    and never below 0.
    """
    logits, visible = (x.transpose(0, 1).flatten(1, 2) for x in (logits, visible))  # (H, BR, W)
    logits = torch.where(visible, logits, 0)
    by_query, by_distance = visible.sum(-1, keepdim=True), visible.sum(-2, keepdim=True)

    def centered(x: Tensor, count: Tensor, dim: int) -> Tensor:
        return torch.where(visible, x - x.sum(dim, keepdim=True) / count.clamp(min=1), 0)

    within = centered(logits, by_query, -1)
    left = within
    for _ in range(ROUNDS):
        left = centered(centered(left, by_distance, -2), by_query, -1)
    # The mean of each query takes one degree of freedom, and so does each distance but one.
    queries, distances = (by_query > 0).sum((-2, -1)), (by_distance > 0).sum((-2, -1))
    freedom = visible.sum((-2, -1)) - queries
    unexplained = left.square().sum((-2, -1)) / (freedom - distances + 1)
    share = 1 - unexplained / (within.square().sum((-2, -1)) / freedom)
    return torch.where(freedom >= distances, share.clamp(min=0), torch.nan)


def place_share(logits: Tensor, visible: Tensor) -> Tensor:
    """(H,): share of the variance of (B, H, R, W) within queries that all sequences have in common.

    This is the intraclass correlation of a one-way analysis of variance, with a pair of places as a
    group and its sequences as members: about 0, on either side, where places explain nothing. NaN
    for a single sequence, which cannot be compared with another.
    """
    if logits.shape[0] < 2:
        return logits.new_full((logits.shape[1],), torch.nan)
    within = torch.where(visible, logits, 0)
    within = within - within.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp(min=1)
    return intraclass(torch.where(visible, within, 0), visible)


def intraclass(x: Tensor, keep: Tensor) -> Tensor:
    """(H,): share of the variance of (B, H, R, W), with mean 0, that groups (R, W) of B explain.

    With m groups of n members each on average, and the mean squares s between and t within them,
    it is (s - t) / (s + (n - 1) t).
    """
    members = keep.sum(0)
    mean = x.sum(0) / members.clamp(min=1)
    groups, count = (members > 0).sum((-2, -1)), members.sum((-2, -1))
    between = (members * mean.square()).sum((-2, -1)) / groups
    left = torch.where(keep, x - mean, 0).square().sum((0, -2, -1)) / (count - groups)
    share = (between - left) / (between + (count / groups - 1) * left)
    return torch.where(count > groups, share, torch.nan)
