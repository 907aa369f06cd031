"""The series itself as an activation: a model trained with it has nothing approximate in it."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.activations import Activation
from regard.sine.series import SeriesRow, rows

ACTIVATION_RANK = 6
# No part of the range is favoured: how often a trained model meets each is its own affair.
ACTIVATION_KIND = "uniform"


def row_of(reach: float) -> SeriesRow:
    """The row of a reach, which must be one that was fitted."""
    for row in rows(ACTIVATION_KIND, ACTIVATION_RANK):
        if row.reach == reach:
            return row
    fitted = ", ".join(f"{row.reach:g}" for row in rows(ACTIVATION_KIND, ACTIVATION_RANK))
    raise ValueError(f"no sine series was fitted for reach={reach!r}; reaches: {fitted}")


def value(x: Tensor, reach: float) -> Tensor:
    """The series at x, one sine after another: no tensor of rank times its size is built."""
    row = row_of(reach)
    y = row.linear * x
    for w, c in zip(row.frequencies, row.coefficients, strict=True):
        y = y + c * torch.sin(w * x)
    return y


def slope(x: Tensor, _y: Tensor, reach: float) -> Tensor:
    """Its derivative."""
    row = row_of(reach)
    y = torch.full_like(x, row.linear)
    for w, c in zip(row.frequencies, row.coefficients, strict=True):
        y = y + (c * w) * torch.cos(w * x)
    return y


SINE = Activation("sine", value, slope)
