"""How different the outputs of different queries are.

Shape legend: B batch, H query heads, R queries, V value dims.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
