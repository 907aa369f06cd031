"""Applies FlexAttention's two functions of scalars to many pairs at once, as torch itself does.

Shape legend: `*` leading dims, B batch, H query heads, R queries, L keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.doctor.seen import SeenFlex

# `in_dims` of (batch, head, query, key) for one vmap over each dim, from the last to the first.
PAIRS = ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None))
# The same where each sequence and head has a single key, so that there is no dim of keys.
ONE_KEY = ((None, None, 0, None), (None, 0, None, 0), (0, None, None, 0))


def flex_logits(flex: SeenFlex, products: Tensor, rows: Tensor) -> Tensor:
    """Logits from products (*, B, H, R, L) of the queries `rows`; -inf where hidden.

    Leading dims hold several products of the same pair, as c50 needs them.
    """
    batch, heads, _, keys = products.shape[-4:]
    device = products.device
    each = [
        torch.arange(flex.entry, flex.entry + batch, device=device),
        torch.arange(flex.head, flex.head + heads, device=device),
        rows,
        torch.arange(keys, device=device) if flex.key is None else flex.key,
    ]
    single = flex.key is not None
    scores = products.squeeze(-1) if single else products
    dims: Sequence[tuple[int | None, ...]] = ONE_KEY if single else PAIRS
    with indexing():
        if flex.score is not None:
            ahead = ((None, None, None, None),) * (products.ndim - 4)
            by_pair = mapped(flex.score, [(0, *x) for x in (*dims, *ahead)])
            scores = by_pair(scores, *each).to(products.dtype)
        if flex.mask is not None:
            scores = scores.masked_fill(~mapped(flex.mask, dims)(*each), -torch.inf)
    return scores.unsqueeze(-1) if single else scores


def mapped(
    function: Callable[..., Tensor], dims: Sequence[tuple[int | None, ...]]
) -> Callable[..., Tensor]:
    """A function of scalars vectorised over its arguments, by one vmap for each entry of `dims`."""
    for each in dims:
        function = torch.vmap(function, in_dims=each)
    return function


def indexing() -> torch.overrides.TorchFunctionMode:
    """A mode in which `x[i]` accepts an i that vmap maps over; without it torch needs a number."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    return TransformGetItemToIndex()
