"""What the doctor sees of one attention call, whichever way it was caught.

B batch, H query heads, K key heads (H is a multiple), Q queries, L keys, D and Dv dims.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from regard.forms import Pairwise


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
