"""What a softmax follower knows of additive attention written out: `v . tanh(W q + U k)`.

Shape legend: B batch, Q queries, L keys, E hidden units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

TIMES = frozenset(("mul", "__rmul__"))
# Functions that give weights (B, L) the dim of their query.
GIVE_DIM = frozenset(("unsqueeze", "__getitem__", "view", "reshape"))


class Squashed(NamedTuple):
    """A tanh that may be that of an additive score.

    Attributes:
        result: the tanh after every function that was applied to it.
        units: (B, L, E) or (B, Q, L, E), the tanh itself.
        depth: how many modules were running.
    """

    result: Any
    units: Tensor
    depth: int


def contracted(units: Tensor, out: Tensor) -> bool:
    """Whether a result has one number for each vector of hidden units."""
    lead = units.shape[:-1]
    return units.shape[-1] > 1 and out.shape in (lead, (*lead, 1))


def pooled_values(
    name: str, flipped: bool, keys: int, given: Sequence, out: Tensor
) -> Tensor | None:
    """The values (B, L, D) that a product with weights (B, L, 1) has; None if it has none."""
    if name not in TIMES or not flipped or out.ndim != 3 or out.shape[-2] != keys:
        return None
    # The weights have one column, so the other factor is the one of the product's shape.
    return next(
        (x for x in given if isinstance(x, Tensor) and x.shape == out.shape and out.shape[-1] > 1),
        None,
    )


def from_flat(name: str, keys: int, out: Tensor, elementwise: bool) -> tuple[bool, bool] | None:
    """Whether weights (B, L) have no dim for their query after a function, and whether it is the last."""
    if out.ndim == 2 and elementwise and out.shape[-1] == keys:
        return True, False
    if name in GIVE_DIM and out.ndim == 3:
        if out.shape[-2:] == (1, keys):
            return False, False
        if out.shape[-2:] == (keys, 1):
            return False, True
    return None
