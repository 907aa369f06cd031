"""The elementwise functions a pairwise score may apply to `a + b`.

An activation is named because engines are compiled or registered ahead of time and receive the
name, not the function. Registering a new one makes it usable by every engine that runs the
pairwise form in PyTorch (`reference`, `cpu`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

ACTIVATIONS: dict[str, Activation] = {}
OURS = ("tanh", "leaky_relu")


@dataclass(frozen=True)
class Activation:
    """An elementwise function `f(x, parameter)` and its derivative.

    Args:
        name: what the activation is called. Making one registers it; a second one of the same
            name takes its place, unless the name is one of ours.
        value: `f(x, parameter)`, a new tensor of the shape of `x`.
        slope: `f'(x, y, parameter)` where `y = f(x, parameter)`, given so that it need not be
            computed again.
    """

    name: str
    value: Callable[[Tensor, float], Tensor]
    slope: Callable[[Tensor, Tensor, float], Tensor]

    def __post_init__(self) -> None:
        if self.name in OURS and self.name in ACTIVATIONS:
            raise ValueError(
                f"{self.name!r} is an activation of regard's own scores; use another name"
            )
        ACTIVATIONS[self.name] = self


TANH = Activation(
    "tanh",
    value=lambda x, _: torch.tanh(x),
    slope=lambda _x, y, _: 1 - y * y,
)

LEAKY_RELU = Activation(
    "leaky_relu",
    value=torch.nn.functional.leaky_relu,
    slope=lambda x, _y, slope: torch.full_like(x, slope).masked_fill_(x > 0, 1.0),
)
