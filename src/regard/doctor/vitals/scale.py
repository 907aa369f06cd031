"""The factor that was really applied to the inner product of query and key.

Shape legend: B batch, H query heads, R queries, L keys, D width of a query and key.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.doctor.vitals.logits import HIDDEN_LOGIT, Size
from regard.precision import widened


def scale_vital(seen: Seen, size: Size, rows: Tensor) -> dict[str, Tensor]:
    """The factor times sqrt(d), (H,); nothing where query and key are not known."""
    if seen.query is not None:
        # Functions of the user, and factors inside the query, hide what was applied.
        if seen.shift is not None or (seen.flex is not None and seen.flex.changes):
            return {}
        times = abs(seen.scale) * seen.query.shape[-1] ** 0.5
        return {"applied_scale": seen.query.new_full((size.heads,), times, dtype=torch.float32)}
    if seen.logits is None or seen.made_of is None:
        return {}
    query, key = seen.made_of
    logits = seen.logits.index_select(-2, rows)
    top, bottom = regression(query.index_select(-2, rows), key, logits)
    factor = top.sum(0) / bottom.sum(0)  # NaN where queries or keys are zero
    return {"applied_scale": factor.abs().float() * query.shape[-1] ** 0.5}


def regression(query: Tensor, key: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Sums (B, H) whose quotient is the least-squares factor from <query, key> to the visible logits.

    Both are centred over the keys of a query, which takes off what is added to all of them. A bias makes the
    factor approximate.
    """
    raw = widened(query) @ widened(key).transpose(-1, -2)
    visible = (logits > HIDDEN_LOGIT) & logits.isfinite()
    weight = visible.to(raw.dtype) / visible.sum(-1, keepdim=True).clamp(min=1)
    made = torch.where(visible, logits, 0).to(raw.dtype)
    raw = raw - (raw * weight).sum(-1, keepdim=True)
    made = made - (made * weight).sum(-1, keepdim=True)
    return (raw * made * weight).sum((-2, -1)), (raw.square() * weight).sum((-2, -1))
