"""Saturation of the tanh in additive scores, on sampled pairs.

Shape legend: B batch, H query heads, K key heads, G = H / K, R queries, S sampled keys, E hidden
units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.doctor.vitals.logits import Size, at_rows, hidden_pairs
from regard.doctor.vitals.rows import pick_rows
from regard.forms import Pairwise
from regard.precision import widened

# At most 64 x 32 pairs for each sequence and head: all their hidden units are stored at once.
SAMPLED_ROWS, SAMPLED_KEYS = 64, 32
# Of a full slope of 1, at |x| = 1.82.
SATURATED_SLOPE = 0.1
# Vectors of hidden units that are read where only their tanh was seen.
SAMPLED_VECTORS = SAMPLED_ROWS * SAMPLED_KEYS


def tanh_vitals(seen: Seen, form: Pairwise, size: Size, rows: Tensor) -> dict[str, Tensor]:
    """Share of saturated hidden units and their mean slope over visible pairs; each (H,).

    The activation "sine" is tanh computed by a series, so it has the same slope.
    """
    if form.activation not in ("tanh", "sine"):
        return {}
    rows = rows[pick_rows(rows.shape[0], SAMPLED_ROWS, 0, rows.device)]
    keys = pick_rows(size.keys, SAMPLED_KEYS, rows[0], rows.device)
    a = widened(form.a.index_select(-2, rows)).unflatten(1, (form.b.shape[1], -1))
    b = widened(form.b.index_select(-2, keys)).unsqueeze(2)
    slope = 1 - torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3)).square()  # (B, K, G, R, S, E)
    slope = slope.flatten(1, 2)
    visible = visible_at(seen, size, rows, keys).expand(slope.shape[:-1])
    count = visible.sum((0, 2, 3))
    saturated = (slope < SATURATED_SLOPE).to(slope.dtype).mean(-1)

    def averaged(x: Tensor) -> Tensor:
        return torch.where(visible, x, 0).sum((0, 2, 3)) / count

    return {"tanh_saturated": averaged(saturated), "tanh_slope": averaged(slope.mean(-1))}


def hidden_vitals(hidden: Tensor, heads: int) -> dict[str, Tensor]:
    """The same of the tanh (..., E) of a score that is written out; hidden pairs count too."""
    vectors = hidden.flatten(0, -2)
    step = max(1, vectors.shape[0] // SAMPLED_VECTORS)
    slope = 1 - widened(vectors[::step]).square()
    found = {
        "tanh_saturated": (slope < SATURATED_SLOPE).to(slope.dtype).mean(),
        "tanh_slope": slope.mean(),
    }
    return {name: x.expand(heads) for name, x in found.items()}


def visible_at(seen: Seen, size: Size, rows: Tensor, keys: Tensor) -> Tensor:
    """Which of these queries see which of these keys; broadcasts to (B, H, R, S)."""
    bias = None if seen.bias is None else at_rows(seen.bias, rows)
    hidden = hidden_pairs(seen, size, rows, bias)
    if hidden is None:
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=rows.device)
    return ~(hidden if hidden.shape[-1] == 1 else hidden.index_select(-1, keys))
