"""`Change` and `ChangePlace`: what is done to one attention call or module, and which one it is.

Shape legend: `...` leading dims, H query heads, K key heads, Q queries, L keys, D and V width of a
head and of its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

# The route of a change to the forward of a whole module, not to an attention call in it.
WHOLE = "module"
# Routes at which something can be changed.
ROUTES = ("sdpa", "flex", "softmax", "regard", "torch", WHOLE)


@dataclass(frozen=True)
class ChangePlace:
    """Where a `Change` is put: one attention call of a model, or the forward of one module.

    `locate` finds it. It is plain data that fits in a config.

    Attributes:
        module: the path of the module that makes the call; "" for the model itself.
        route: "sdpa", "flex", "softmax", "regard", or "torch" for `nn.MultiheadAttention`, which
            calls SDPA or computes a softmax depending on `need_weights`; `WHOLE` for the forward of a
            module.
        index: index of the call among those of this route in one forward of the module, from 0.
        product: for "softmax", the index of the product of two tensors that makes its logits; None
            if the product, and with it query and key, is unknown.
        heads: H.
        key_heads: K; equal to H if it is not known.
    """

    module: str
    route: str
    index: int
    product: int | None
    heads: int
    key_heads: int


# Pickles of whole treated models, made before the class was renamed, refer to it by this name.
Place = ChangePlace


def whole(module: str) -> ChangePlace:
    """The place of the whole forward of a module, given by its path."""
    return ChangePlace(module, WHOLE, 0, None, 0, 0)


def by_head(values: Tensor, x: Tensor) -> Tensor:
    """Values (h,) as (H, 1, 1), to multiply x (..., H, T, D); repeated where x has more heads."""
    heads = x.shape[-3]
    if values.shape[0] not in (1, heads):
        values = values.repeat_interleave(heads // values.shape[0])
    return values.to(x.dtype).view(-1, 1, 1)


class Change(nn.Module):
    """Base class of what is done to an attention call or module; subclasses override what they need.

    Attributes:
        place: which call or module, set by `put`.
        softcap: bounds the logits to `softcap * tanh(logits / softcap)`; None for no bound.
        mask: name of the change to its mask, see `masking.py`; None for none.
        pairwise: whether `change_sides` takes a and b of a pairwise score of regard.
        reconnects: whether `detach` and `no_grad` do nothing while the module runs.
    """

    place: ChangePlace
    pairwise: ClassVar[bool] = False
    reconnects: ClassVar[bool] = False
    softcap: float | None = None
    mask: str | None = None

    def change_sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """The query (..., H, Q, D) and key (..., K, L, D) to use instead."""
        rate = self.rate()
        if rate is None:
            return query, key
        return query * by_head(rate, query), key

    def rate(self) -> Tensor | None:
        """The factor on the logits, (H,) or (1,); None if the change does more than multiply them.

        A pure factor can be applied where query and key are out of reach, such as pairwise scores.
        """
        return None

    def change_value(self, value: Tensor) -> Tensor:
        """The value (..., K, L, V) to use instead."""
        return value

    def before(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments to call the whole module with instead."""
        return args, kwargs

    def after(self, output: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The output that the whole module returns instead; `args` and `kwargs` are its arguments."""
        return output

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments that construct it again, as plain data; its parameters are loaded later."""
        return {}
