"""What the doctor sees of one attention call, whichever way it was caught.

B batch, H query heads, K key heads (H is a multiple), Q queries, L keys, D and Dv dims.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from regard.forms import Pairwise


class SeenFlex(NamedTuple):
    """What FlexAttention makes of the products: two functions, or what they gave for some queries.

    Attributes:
        changes: whether logits are other than the products, apart from what is hidden.
        score: `(product, batch, head, query, key) -> logit`, of scalars; None leaves them as they are.
        mask: `(batch, head, query, key) -> True = attend`, of scalars; None hides nothing.
        entry: the place in the batch of the first sequence here, where this is a part of a call.
        head: the place of the first query head here.
        key: (B, H), the place of the one key that there is of each sequence and head; None for all.
        rows: (R,), out of a compiled graph, which no function leaves: the queries of `logits`.
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
    """One attention call in tensors: detached, never copied.

    Attributes:
        query: (B, H, Q, D) as the kernel gets it, after rotary positions and norms.
        key: (B, K, L, D).
        value: (B, K, L, Dv).
        scale: logits are `softcap(scale <query, key> + shift) + bias`; the last three may be None.
        bias: added to the logits, broadcasts to (B, H, Q, L); -inf hides.
        visible: True = attend, broadcasts to (B, H, Q, L).
        causal: only keys up to the own place, from the top left as torch's `is_causal` has it.
        logits: (B, H, Q, L), the input of an eager softmax where nothing else was seen of the call.
        pairwise: the lowered form of a pairwise score of ours, in place of query and key.
        shift: a term of the query alone, broadcasts to (B, H, Q): it moves a query's logits and
            changes no weight.
        softcap: bounds the logits to `softcap * tanh(logits / softcap)`, before the bias.
        sink: the logit of one more outcome, without a value; broadcasts to (B, H, Q).
        flex: what becomes of `scale <query, key>`, in place of shift, soft cap, bias and mask.
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
