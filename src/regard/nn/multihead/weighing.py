"""Attention with weights by two matrix products and a softmax between them, in the dtype of the inputs.

It is for a GPU, and for scores that are inner products: what torch's own module computes when it is asked for
weights, but that weights and their mean over heads come from one pass. Other calls go through
`regard.attend`, which computes logits in single precision.

Shape legend: N batch, H query heads, K key heads, G = H / K, L query length, S key length.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout

from regard.engines.weights import mean_weights
from regard.engines.weights.call import KERNEL_ON, MOST_KEYS
from regard.forms import InnerKey, InnerQuery
from regard.mask import Mask
from regard.observed import is_observed
from regard.scores import Score

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def weigh(
    query: Tensor, key: Tensor, value: Tensor, score: Score, mask: Mask | None, bias: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """The output (N, H, L, width) and the mean weights (N, L, S), or None for a call of another kind."""
    tensors = (query, key, value)
    if is_observed(tensors) or not serves(tensors, score):
        return None
    lowered, side = score.query(query), score.key(key)
    if not isinstance(lowered, InnerQuery) or not isinstance(side, InnerKey):
        return None
    # An origin is the mean of the visible keys, which is another one under a mask.
    if side.origin is not None or side.beta is not None:
        return None
    phi, psi = lowered.phi, side.psi
    (batch, heads, queries, width), groups = phi.shape, psi.shape[1]
    keep = None if mask is None else four(mask.visible(queries, psi.shape[2], psi.device))
    # Heads that share keys are rows of one product.
    rows = phi.reshape(batch * groups, heads // groups * queries, width)
    columns = psi.reshape(batch * groups, psi.shape[2], width).mT
    # The sum with nothing is there for its `alpha`, which costs no operation.
    nothing = phi.new_empty(())
    logits = torch.baddbmm(nothing, rows, columns, beta=0, alpha=lowered.scale)
    logits = logits.view(batch, heads, queries, psi.shape[2])
    weights, mean = mean_weights(logits, keep, None if bias is None else four(bias))
    groups = value.shape[1]
    weights = weights.view(batch * groups, heads // groups * queries, psi.shape[2])
    output = torch.bmm(weights, value.reshape(batch * groups, *value.shape[2:]))
    return output.view(batch, heads, queries, value.shape[3]), mean


def serves(tensors: tuple[Tensor, Tensor, Tensor], score: Score) -> bool:
    """Whether these tensors and this score may go this way."""
    query, key, value = tensors
    if query.device.type not in KERNEL_ON or query.dtype not in DTYPES or score.softcap is not None:
        return False
    if not key.dtype == value.dtype == query.dtype or not 0 < key.shape[-2] <= MOST_KEYS:
        return False
    if not query.numel():
        return False
    bare = not score._parameters and not score._modules
    return bare or all(p.dtype == query.dtype for p in score.parameters())


def four(x: Tensor) -> Tensor:
    """A mask or bias with 4 dims."""
    return x.view(*[1] * (4 - x.ndim), *x.shape) if x.ndim < 4 else x


def drop_weights(weights: Tensor, value: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """The output (N, H, L, width) of weights (N, H, L, S) after dropout, and these weights.

    torch returns the weights after dropout. An engine drops them internally and does not return
    them, so this is done here.
    """
    # A value that no query sees may hold anything, NaN included, and 0 * NaN is NaN.
    group = weights.shape[-3] // value.shape[-3]
    seen = (weights != 0).any(-2).unflatten(-2, (value.shape[-3], group)).any(-2)
    value = torch.where(seen.unsqueeze(-1), value, 0)
    if group > 1:
        value = value.repeat_interleave(group, -3)
    weights = dropout(weights, rate)
    return weights.to(value.dtype) @ value, weights
