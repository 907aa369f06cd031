"""The sine series itself as an activation: a model trained with it runs by features exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.activations import Activation
from regard.sine.series import SeriesRow, rows

ACTIVATION_RANK = 6
# The kind with the least error anywhere in the range: which part a trained model uses most is not known.
ACTIVATION_KIND = "uniform"


def row_of(reach: float) -> SeriesRow:
    """The row of the table for a reach, or an error that lists the fitted reaches."""
    for row in rows(ACTIVATION_KIND, ACTIVATION_RANK):
        if row.reach == reach:
            return row
    fitted = ", ".join(f"{row.reach:g}" for row in rows(ACTIVATION_KIND, ACTIVATION_RANK))
    raise ValueError(f"no sine series was fitted for reach={reach!r}; reaches: {fitted}")


def value(x: Tensor, reach: float) -> Tensor:
    """The series at x."""
    row = row_of(reach)
    y = row.linear * x
    # One sine after another: a tensor of all of them would be `rank` times as large as x.
    for w, c in zip(row.frequencies, row.coefficients, strict=True):
        y = y + c * torch.sin(w * x)
    return y


def slope(x: Tensor, _y: Tensor, reach: float) -> Tensor:
    """The derivative of the series at x."""
    row = row_of(reach)
    y = torch.full_like(x, row.linear)
    for w, c in zip(row.frequencies, row.coefficients, strict=True):
        y = y + (c * w) * torch.cos(w * x)
    return y


SINE = Activation("sine", value, slope)
