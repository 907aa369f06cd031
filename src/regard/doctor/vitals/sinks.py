"""Sinks: the key that gets the most weight, and whether taking it matters.

A head that finds nothing relevant often puts its weight on one key whose value is small: a no-op,
not a disease. So the weight is measured together with what the key's value adds to the output.

Shape legend: B batch, H query heads, R queries, L keys, V value dims.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.doctor.vitals.cheap import per_head
from regard.doctor.vitals.logits import Size, length_at, row_logits, with_one_key
from regard.doctor.vitals.weights import RowReadings, Sums


def sink_vitals(
    seen: Seen, size: Size, rows: Tensor, each: RowReadings, sums: Sums
) -> dict[str, Tensor]:
    """Weight of the largest sink, norm of its value and share of the output; each (H,)."""
    count = each.sound.sum(-1)
    weight, place = (sums.columns / count.unsqueeze(-1)).max(-1)
    found = {"sink_weight": weight.nanmean(0)}
    if seen.value is None:
        return found
    logit = row_logits(*with_one_key(seen, size, place), rows)[0].squeeze(-1)
    # The weight of each query on the sink, from the logits that were kept: exp(logit - lse).
    on_sink = ((logit - each.peak).exp() * each.top).unsqueeze(-1)
    energies = torch.linalg.vector_norm(seen.value, dim=(-2, -1)).square()
    value = length_at(seen.value, size, place)  # (B, H, 1, V)
    length = torch.linalg.vector_norm(value, dim=-1).squeeze(-1)
    energies = per_head(energies, size.heads, 1).expand_as(length)
    others = ((energies - length.square()).clamp(min=0) / max(size.keys - 1, 1)).sqrt()
    own = energy(on_sink * value, each.sound)
    rest = energy(each.output - on_sink * value, each.sound)
    found.update(
        sink_value=torch.where(count > 0, length / others, torch.nan).nanmean(0),
        sink_output=(own / (own + rest)).nanmean(0),
    )
    return found


def energy(x: Tensor, sound: Tensor) -> Tensor:
    """Root of the summed squares of the sound rows of (B, H, R, V): (B, H)."""
    return torch.where(sound.unsqueeze(-1), x, 0).square().sum((-2, -1)).sqrt()
