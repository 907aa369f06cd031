"""How much the outputs of different queries differ, and the values that they are made of.

Shape legend: B batch, H query heads, K key heads, R queries, L keys, S some keys, V value dims.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.vitals.cheap import per_head
from regard.doctor.vitals.position import intraclass
from regard.doctor.vitals.rows import pick_rows

# The values of at most so many keys are read.
SAMPLED_VALUES = 64


def output_vitals(output: Tensor, sound: Tensor) -> dict[str, Tensor]:
    """Common share and effective rank of the sound rows of (B, H, R, V); each (H,).

    The rank is (sum of energies)² / sum of energies² over the directions in which outputs vary
    about their mean; the Gram matrix of the rows has the same energies as their covariance.
    """
    keep, count = sound.unsqueeze(-1), sound.sum(-1)[..., None, None]
    output = torch.where(keep, output, 0)
    mean = output.sum(-2, keepdim=True) / count
    common = mean.square().sum((-2, -1)) * count[..., 0, 0] / output.square().sum((-2, -1))
    varied = torch.where(keep, output - mean, 0)
    gram = varied.mT @ varied if varied.shape[-1] < varied.shape[-2] else varied @ varied.mT
    energy = varied.square().sum((-2, -1))
    rank = energy.square() / gram.square().sum((-2, -1))
    return {"output_alike": common.nanmean(0), "output_rank": rank.nanmean(0)}


def value_vitals(value: Tensor, heads: int) -> dict[str, Tensor]:
    """Shares of the values (B, K, L, V) that all places, or all sequences, have in common; (H,)."""
    some = value.index_select(-2, pick_rows(value.shape[-2], SAMPLED_VALUES, 0, value.device))
    mean = some.mean(-2, keepdim=True)
    common = mean.square().sum((-2, -1)) * some.shape[-2] / some.square().sum((-2, -1))
    found = {"value_alike": common.nanmean(0)}
    if some.shape[0] > 1:
        varied = some - some.mean((0, 2), keepdim=True)
        found["value_place"] = intraclass(varied, torch.ones_like(varied, dtype=torch.bool))
    return {name: per_head(x, heads, 0) for name, x in found.items()}
