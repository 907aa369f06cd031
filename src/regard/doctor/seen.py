"""`Seen`: the tensors and options of one attention call, in one shape for every route.

Shape legend: B batch, H query heads, K key heads (H is a multiple of K), Q queries, L keys, D width of a
query and key, Dv width of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from regard.forms import Pairwise


class SeenFlex(NamedTuple):
    """How FlexAttention computes logits: its two functions, or their results for some queries.

    A compiled graph hands out tensors only, so there the results stand in for the functions.

    Attributes:
        changes: whether a visible logit may differ from its scaled inner product.
        score: `(product, batch, head, query, key) -> logit`, of scalars; None for the product itself.
        mask: `(batch, head, query, key) -> True = attend`, of scalars; None hides nothing.
        entry: batch index of the first sequence, where this is a slice of a call.
        head: index of the first query head, where this is a slice of a call.
        key: (B, H), the index of the only key kept for each sequence and head; None for all keys.
        rows: (R,), indices of the queries that `logits` holds; None outside compiled graphs.
        logits: (B, H, R, L) of these queries, -inf where hidden.
    """

    changes: bool
    score: Callable[..., Tensor] | None = None
    mask: Callable[..., Tensor] | None = None
    entry: int = 0
    head: int = 0
    key: Tensor | None = None
    rows: Tensor | None = None
    logits: Tensor | None = None


class Seen(NamedTuple):
    """The tensors of one attention call: detached, never copied.

    Attributes:
        query: (B, H, Q, D) as the kernel gets it, after rotary positions and norms.
        key: (B, K, L, D).
        value: (B, K, L, Dv).
        scale: logits are `softcap(scale <query, key> + shift) + bias`, without those that are None.
        bias: added to the logits, broadcasts to (B, H, Q, L); -inf hides.
        visible: True = attend, broadcasts to (B, H, Q, L).
        causal: query i sees keys 0 to i, aligned at the top left like torch's `is_causal`.
        logits: (B, H, Q, L), the input of an eager softmax, where query and key were not seen.
        pairwise: the lowered form of a pairwise score, in place of query and key.
        shift: a term of the query alone, broadcasts to (B, H, Q). It moves all logits of a query alike
            and changes no weight.
        softcap: bounds the logits to `softcap * tanh(logits / softcap)`, before the bias.
        sink: logit of an extra outcome that has no value; broadcasts to (B, H, Q).
        flex: the functions applied to `scale <query, key>`, in place of shift, soft cap, bias and mask.
        made_of: query (B, H, Q, D) and key (B, H, L, D) of `logits`, where their product was seen.
        hidden: (..., E), the tanh of an additive score that is written out, beside `logits`.
    """

    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    scale: float = 1.0
    bias: Tensor | None = None
    visible: Tensor | None = None
    causal: bool = False
    logits: Tensor | None = None
    pairwise: Pairwise | None = None
    shift: Tensor | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    flex: SeenFlex | None = None
    made_of: tuple[Tensor, Tensor] | None = None
    hidden: Tensor | None = None
