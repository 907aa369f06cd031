"""Attention with one planted fault: a mask, an axis, a reshape or a gradient that is wrong.

`attend` is what the hosts call. A fault changes one step of it, as a slip in code would.

Shape legend: B samples, H heads, Q queries, L keys, D width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Fault(NamedTuple):
    """One fault.

    Attributes:
        law: the law that it breaks.
        needs: what a host must have for the fault to be one: "causal", "padding", "rotary".
        also: laws that it may break as well, because one slip can break two relations.
    """

    law: str
    needs: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


WHO, PAD, ONE = "who-may-see-whom", "padding-is-not-read", "one-sample-one-answer"
SUM, OWN, ORDER = "distribution-over-keys", "own-token", "order-is-seen"
GRAD, EVAL, MATTER = "gradients-arrive", "evaluation-is-a-function", "queries-and-keys-matter"
STEPS, EXACT = "steps-are-the-whole", "precision-is-enough"

FAULTS = {
    "shifted-mask": Fault(WHO, ("causal",)),
    "no-causal-mask": Fault(WHO, ("causal",)),
    "inverted-causal": Fault(WHO, ("causal",)),
    "one-head-unmasked": Fault(WHO, ("causal",)),
    "last-key-always-seen": Fault(WHO, ("causal",)),
    "no-padding-mask": Fault(PAD, ("padding",)),
    "inverted-padding": Fault(PAD, ("padding",)),
    "padding-of-wrong-side": Fault(PAD, ("padding",)),
    "padding-of-one-head": Fault(PAD, ("padding",)),
    "softmax-over-queries": Fault(SUM, (), (WHO, PAD)),
    "softmax-over-heads": Fault(SUM, (), (WHO, PAD)),
    "softmax-over-batch": Fault(SUM, (), (ONE, WHO, PAD)),
    "mask-after-softmax": Fault(SUM, ("masked",), (WHO, PAD)),
    "heads-by-view": Fault(OWN, (), (WHO, PAD)),
    "queries-by-view": Fault(OWN, (), (WHO, PAD)),
    "result-by-view": Fault(OWN, (), (WHO, PAD)),
    "batch-and-time-mixed": Fault(ONE, (), (WHO, PAD, OWN)),
    "statistics-over-batch": Fault(ONE, (), ()),
    "detached-queries": Fault(GRAD),
    "detached-keys": Fault(GRAD),
    "weights-without-gradient": Fault(GRAD),
    "dropout-left-on": Fault(EVAL),
    "zero-queries": Fault(MATTER, (), (GRAD, ORDER)),
    "same-query": Fault(MATTER, ("own-queries",), (OWN, WHO, PAD)),
    "rotary-on-queries-only": Fault(ORDER, ("rotary",)),
    "rotary-lost": Fault(ORDER, ("rotary",)),
    "positions-lost": Fault(ORDER, ("table",)),
    "positions-restart": Fault(STEPS, ("own-cache",)),
    "cache-turned": Fault(STEPS, ("cache",)),
    "newest-key-hidden": Fault(STEPS, ("cache",)),
    "weights-in-half": Fault(EXACT),
    "sums-in-half": Fault(EXACT),
}
# Faults of the weights and the order of steps, which only attention that is written out can have.
WRITTEN = ("softmax-over-queries", "softmax-over-heads", "softmax-over-batch", "mask-after-softmax",
           "weights-without-gradient", "weights-in-half", "sums-in-half")  # fmt: skip
# Planted by the host, outside of `attend`.
OUTSIDE = (
    "rotary-on-queries-only",
    "rotary-lost",
    "positions-lost",
    "result-by-view",
    "positions-restart",
)


def visible_pairs(
    fault: str, q: Tensor, keys: int, causal: bool, real: Tensor | None
) -> Tensor | None:
    """(B or 1, 1 or H, Q, L), True = may see; None for everything."""
    queries, heads = q.shape[-2], q.shape[1]
    shape = (1, 1, queries, keys)
    decoding = queries < keys
    band = torch.ones(shape, dtype=torch.bool).tril(keys - queries) if causal else None
    if fault == "shifted-mask":
        band = torch.ones(shape, dtype=torch.bool).tril(1)
    elif fault == "no-causal-mask":
        band = None
    elif fault == "inverted-causal":
        band = torch.ones(shape, dtype=torch.bool).triu()
    elif fault == "last-key-always-seen":
        band = band.clone()
        band[..., -1] = True
    elif fault == "one-head-unmasked":
        band = band.expand(1, heads, -1, -1).clone()
        band[:, 0] = True
    elif fault == "newest-key-hidden" and decoding:
        band = torch.ones(shape, dtype=torch.bool)
        band[..., -1] = False
    if real is None:
        return band
    hides = real[:, None, None, :]
    if fault == "no-padding-mask":
        return band
    if fault == "inverted-padding":
        hides = ~hides | ~hides.any(-1, keepdim=True) | real.all(1)[:, None, None, None]
    elif fault == "padding-of-wrong-side":
        hides = hides.flip(-1)
    elif fault == "padding-of-one-head":
        hides = hides.expand(-1, heads, -1, -1).clone()
        hides[:, 0] = True
    return hides if band is None else band & hides


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    real: Tensor | None = None,
    fault: str = "",
    how: str = "sdpa",
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attention (B, H, Q, D) with a fault; `how` is "sdpa", "matmul" or "einsum"."""
    q, k, v = changed_sides(fault, q, k, v)
    visible = visible_pairs(fault, q, k.shape[-2], causal, real)
    if how == "sdpa" and fault not in WRITTEN:
        mask = visible if bias is None else with_bias(bias, visible)
        on = 0.5 if fault == "dropout-left-on" else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=on, scale=scale)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if how == "einsum":
        logits = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
    else:
        logits = q @ k.transpose(-1, -2) * scale
    logits = logits if bias is None else logits + bias
    weights = weights_of(fault, logits, visible)
    weights = F.dropout(weights, 0.5) if fault == "dropout-left-on" else weights
    if fault == "weights-in-half":
        weights = weights.half().float()
    elif fault == "sums-in-half":
        return (weights.half() @ v.half()).float()
    return torch.einsum("bhqk,bhkd->bhqd", weights, v) if how == "einsum" else weights @ v


def with_bias(bias: Tensor, visible: Tensor | None) -> Tensor:
    return bias if visible is None else bias.masked_fill(~visible, -torch.inf)


def weights_of(fault: str, logits: Tensor, visible: Tensor | None) -> Tensor:
    late = fault == "mask-after-softmax"
    if visible is not None and not late:
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
    dim = {"softmax-over-queries": -2, "softmax-over-heads": 1, "softmax-over-batch": 0}.get(
        fault, -1
    )
    weights = logits.softmax(dim)
    if visible is not None and (late or dim != -1):
        weights = weights.masked_fill(~visible, 0.0)
    return weights.detach() if fault == "weights-without-gradient" else weights


def changed_sides(fault: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if fault == "heads-by-view":
        q, k, v = (mixed(x) for x in (q, k, v))
    elif fault == "queries-by-view":
        q = mixed(q)
    elif fault == "batch-and-time-mixed":
        k, v = (x.permute(2, 0, 1, 3).reshape(x.shape) for x in (k, v))
    elif fault == "statistics-over-batch":
        k = k - k.mean(0, keepdim=True)
    elif fault == "detached-queries":
        q = q.detach()
    elif fault == "detached-keys":
        k = k.detach()
    elif fault == "zero-queries":
        q = q * 0.0
    elif fault == "cache-turned" and q.shape[-2] < k.shape[-2]:
        k = k.roll(1, -2)
    elif fault == "same-query":
        q = q[:, :, :1].expand_as(q)
    return q, k, v


def mixed(x: Tensor) -> Tensor:
    """Heads split by a view of (B, T, H, D) as (B, H, T, D)."""
    return x.transpose(1, 2).reshape(x.shape)


def merged(out: Tensor, fault: str) -> Tensor:
    """(B, H, T, D) as (B, T, H * D)."""
    b, h, t, d = out.shape
    if fault == "result-by-view":
        return out.reshape(b, t, h * d)
    return out.transpose(1, 2).reshape(b, t, h * d)
