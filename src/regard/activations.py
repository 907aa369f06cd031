"""Activations: the elementwise functions that a pairwise score may apply to `a + b`.

Engines know an activation by its name, because registered operators take strings and not functions.
A new one is usable at once by every engine that runs the pairwise form in PyTorch (`reference`,
`cpu`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

ACTIVATIONS: dict[str, Activation] = {}
OURS = ("tanh", "leaky_relu", "sine")


@dataclass(frozen=True)
class Activation:
    """An elementwise function `f(x, parameter)` and its derivative.

    Args:
        name: by which scores and engines refer to it. Making an activation registers it, and replaces
            an earlier one of the same name; the names of regard's own activations are reserved.
        value: `f(x, parameter)`, a new tensor of the shape of `x`.
        slope: `f'(x, y, parameter)`. It is given `y = f(x, parameter)`, which is often cheaper to use
            than x.
        in_place: optionally a pair of functions that overwrite their argument: `f(x, parameter)`
            overwrites x; the slope is computed from y alone and overwrites y. Engines that work in tiles
            then allocate nothing for each tile.
    """

    name: str
    value: Callable[[Tensor, float], Tensor]
    slope: Callable[[Tensor, Tensor, float], Tensor]
    in_place: tuple[Callable[[Tensor, float], Tensor], Callable[[Tensor, float], Tensor]] | None = (
        None
    )

    def __post_init__(self) -> None:
        if self.name in OURS and self.name in ACTIVATIONS:
            raise ValueError(
                f"name={self.name!r} is an activation of regard's own scores; use another name"
            )
        ACTIVATIONS[self.name] = self


TANH = Activation(
    "tanh",
    value=lambda x, _: torch.tanh(x),
    slope=lambda _x, y, _: 1 - y * y,
    in_place=(lambda x, _: x.tanh_(), lambda y, _: y.square_().neg_().add_(1)),
)

LEAKY_RELU = Activation(
    "leaky_relu",
    value=torch.nn.functional.leaky_relu,
    slope=lambda x, _y, slope: torch.full_like(x, slope).masked_fill_(x > 0, 1.0),
    in_place=(
        torch.nn.functional.leaky_relu_,
        lambda y, slope: y.gt_(0).mul_(1 - slope).add_(slope),
    ),
)
