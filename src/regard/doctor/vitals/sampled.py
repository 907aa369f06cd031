"""Vitals from the rows that were read: of sampled queries, or of all at the exact level.

Shape legend: B batch, H query heads, R queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.doctor.vitals.c50 import c50
from regard.doctor.vitals.heads import similarity
from regard.doctor.vitals.logits import Size
from regard.doctor.vitals.outputs import output_vitals, value_vitals
from regard.doctor.vitals.position import position_vitals
from regard.doctor.vitals.scale import scale_vital
from regard.doctor.vitals.sinks import sink_vitals
from regard.doctor.vitals.tanh import hidden_vitals, tanh_vitals
from regard.doctor.vitals.weights import RowReadings, Sums


def summarise(
    seen: Seen, size: Size, rows: Tensor, each: RowReadings, sums: Sums
) -> dict[str, Tensor]:
    """All vitals that come from rows, each (H,)."""
    found = softmax_vitals(seen, size, each)
    if seen.sink is not None:
        found["idle_weight"] = row_mean(each.idle, each.sound)
    found.update(position_vitals(each.near, each.peak, each.top, each.sound))
    found.update(sink_vitals(seen, size, rows, each, sums))
    found["head_similarity"] = similarity(sums.likeness, sums.compared)
    if seen.value is not None:
        found.update(output_vitals(each.output, each.sound))
        found.update(value_vitals(seen.value, size.heads))
    if seen.query is None:  # the cheap level had no queries and keys to compute these from
        found["logit_mean"] = row_mean(each.moments[..., 0], each.sound)
        found["logit_var"] = row_mean(each.moments[..., 1], each.sound)
    # Where a graph kept logits but not the function that changes them, no other key can be tried.
    elif seen.flex is None or seen.flex.logits is None or not seen.flex.changes:
        found["c50"] = c50(seen, size, rows, each, sums)
    found.update(scale_vital(seen, size, rows))
    if seen.pairwise is not None:
        found.update(tanh_vitals(seen, seen.pairwise, size, rows))
    elif seen.hidden is not None:
        found.update(hidden_vitals(seen.hidden, size.heads))
    return found


def softmax_vitals(seen: Seen, size: Size, each: RowReadings) -> dict[str, Tensor]:
    """Vitals of the weights of single rows, and counts of masked and broken rows."""
    # A learned sink is one more outcome of the softmax.
    outcomes = each.keys if seen.sink is None else each.keys + 1
    several = each.sound & (outcomes > 1)
    seeing = each.keys > 0
    peak = torch.where(each.sound, each.peak, -torch.inf).amax((0, 2))
    return {
        "logit_max": peak.masked_fill(peak == -torch.inf, torch.nan),
        "entropy": row_mean(each.entropy / outcomes.clamp(min=2).log(), several),
        "max_weight": row_mean(each.top, each.sound),
        "jacobian": row_mean(each.jacobian, each.sound),
        "masked_rows": (~seeing).to(each.peak.dtype).mean((0, 2)),
        "visible_share": each.keys.mean((0, 2)) / size.keys,
        "nan_logits": (seeing & each.peak.isnan()).sum((0, 2)),
        "inf_logits": (seeing & each.peak.isinf()).sum((0, 2)),
    }


def row_mean(x: Tensor, keep: Tensor) -> Tensor:
    """(H,): mean of (B, H, R) over the entries to keep; NaN where there are none."""
    return torch.where(keep, x, 0).sum((0, 2)) / keep.sum((0, 2))
