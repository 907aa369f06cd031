"""What is done to one attention call, or to one module around it, and which one it is.

Shape legend: `...` leading dims, H query heads, K key heads, Q queries, L keys, D and V width of a
head and of its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

# The route of a change to a whole module.
WHOLE = "module"
# Those at which something can be changed.
ROUTES = ("sdpa", "flex", "softmax", "regard", "torch", WHOLE)


@dataclass(frozen=True)
class ChangePlace:
    """Where a `Change` is put: one attention call of a model, or the forward of one module.

    `locate` finds it. It is plain data, which a config can hold.

    Attributes:
        module: the path of the module that makes it; "" for the model itself.
        route: "sdpa", "flex", "softmax", "regard", or "torch" for `nn.MultiheadAttention`, which
            goes one way or another as it is asked for weights; `WHOLE` for the forward of a module.
        index: of the call among those of this route in one forward of the module, from 0.
        product: for "softmax", the index of the product of two tensors that makes its logits; None
            where the product is unknown, and query and key with it.
        heads: H.
        key_heads: K; equal to H where it is not known.
    """

    module: str
    route: str
    index: int
    product: int | None
    heads: int
    key_heads: int


# Models that were treated and pickled whole refer to the class by this name.
Place = ChangePlace


def whole(module: str) -> ChangePlace:
    """The forward of the module of this path."""
    return ChangePlace(module, WHOLE, 0, None, 0, 0)


def by_head(values: Tensor, x: Tensor) -> Tensor:
    """(h,) for the heads of x (..., H, T, D): each several times where x repeats its heads."""
    heads = x.shape[-3]
    if values.shape[0] not in (1, heads):
        values = values.repeat_interleave(heads // values.shape[0])
    return values.to(x.dtype).view(-1, 1, 1)


class Change(nn.Module):
    """What is done to one attention call, or one module. Subclasses override what they need.

    Attributes:
        place: which call or module, set by `put`.
        softcap: bounds the logits to `softcap * tanh(logits / softcap)`, None for no bound.
        mask: what is done to its mask, by name: see `masking.py`; None for nothing.
        pairwise: whether `change_sides` is for a and b of a pairwise score of regard's.
        reconnects: whether `detach` and `no_grad` are passed over while the module runs.
    """

    place: ChangePlace
    pairwise: ClassVar[bool] = False
    reconnects: ClassVar[bool] = False
    softcap: float | None = None
    mask: str | None = None

    def change_sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Query (..., H, Q, D) and key (..., K, L, D) in place of those given."""
        rate = self.rate()
        if rate is None:
            return query, key
        return query * by_head(rate, query), key

    def rate(self) -> Tensor | None:
        """(H,) or (1,): what logits are multiplied with; None where that is not all it does."""
        return None

    def change_value(self, value: Tensor) -> Tensor:
        """Value (..., K, L, V) in place of the one given."""
        return value

    def before(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """What the whole module is given in place of these arguments."""
        return args, kwargs

    def after(self, output: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What the whole module gives in place of this output, which it made of these arguments."""
        return output

    def arguments(self) -> dict[str, Any]:
        """Plain data that builds it again, before its parameters are loaded."""
        return {}
