"""Attention as a textbook writes it, in the dtype of its inputs.

In fp64 it is the oracle that engines are measured against. In the dtype of a case it is what a user
would write without the library, and its error is the yardstick. Nothing here uses an engine, a form
or `Mask`: the visibility of each pair is computed from the definition. The formulas of the scores are in
`scores.py` and `wrappers.py`.

Shape legend: B batch, H query heads, K key heads (K divides H), Q query length, L key length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Band = tuple[int | None, int | None, Literal["bottom_right", "top_left"]]
Formula = Callable[[Any, Tensor, Tensor], Tensor]


def grouped(x: Tensor, heads: int, dim: int = -3) -> Tensor:
    """The tensor with a copy of its shared head for every query head."""
    return x.repeat_interleave(heads // x.shape[dim], dim)


def pairs(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Queries (B, H, Q, 1, d) and keys (B, H, 1, L, d), for formulas of each pair."""
    return q.unsqueeze(-2), grouped(k, q.shape[-3]).unsqueeze(-3)


def for_heads(parameter: Tensor, heads: int) -> Tensor:
    """A parameter of each head as (H, 1, 1); if there are fewer, a group of heads shares each."""
    return grouped(parameter, heads, 0)[:, None, None]


@dataclass(frozen=True)
class MaskParts:
    """A mask by its parts: a query sees a key if every part allows it.

    There is one length for each sequence. Bands are (left, right, alignment). Segments are the ids of
    queries and of keys for each sequence. Dense parts broadcast to (B, H, Q, L).
    """

    key_lengths: list[int] | None = None
    query_lengths: list[int] | None = None
    bands: list[Band] = field(default_factory=list)
    segments: list[tuple[list[list[int]], list[list[int]]]] = field(default_factory=list)
    dense: list[Tensor] = field(default_factory=list)


def sees(parts: MaskParts, b: int, i: int, j: int, queries: int, keys: int) -> bool:
    """Whether query i of sequence b may see key j, apart from the dense parts."""
    real_keys = keys if parts.key_lengths is None else parts.key_lengths[b]
    real_queries = queries if parts.query_lengths is None else parts.query_lengths[b]
    if j >= real_keys or i >= real_queries:
        return False
    for left, right, alignment in parts.bands:
        own = i if alignment == "top_left" else i + real_keys - real_queries
        if (left is not None and j < own - left) or (right is not None and j > own + right):
            return False
    return all(q[b][i] >= 0 and q[b][i] == k[b][j] for q, k in parts.segments)


def visible(parts: MaskParts | None, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    """The whole mask as booleans (B, H, Q, L), True = attend."""
    seen = torch.ones(batch, heads, queries, keys, dtype=torch.bool)
    if parts is None:
        return seen
    for b in range(batch):
        for i in range(queries):
            for j in range(keys):
                seen[b, :, i, j] = sees(parts, b, i, j, queries, keys)
    for allowed in parts.dense:
        seen &= allowed
    return seen


@dataclass
class Textbook:
    """Everything that `attend` can return, and the intermediate results.

    `tempered` are the scores divided by the temperature. `outcomes` are the final logits of the keys, -inf
    if hidden, followed by that of the sink. `chances` are their softmax. `soft` (B, H, Q, 1) is False for
    hard look-ups, which use none of these.
    """

    output: Tensor
    lse: Tensor
    entropy: Tensor
    max_logit: Tensor
    max_weight: Tensor
    weights: Tensor
    tempered: Tensor
    outcomes: Tensor
    chances: Tensor
    soft: Tensor

    @property
    def jacobian(self) -> Tensor:
        """Frobenius norm of `diag(p) - p p'`, (B, H, Q)."""
        p = self.weights.detach()
        return (torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)).norm(dim=(-2, -1))


def textbook(
    scores: Tensor,
    value: Tensor,
    seen: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    keep: Tensor | None = None,
) -> Textbook:
    """Attention from raw scores (B, H, Q, L), step by step, in their dtype.

    Args:
        scores: raw logits (B or 1, H, Q, L).
        value: (B, V, L, value dim).
        seen: (B, H, Q, L) booleans, True = attend.
        temperature: a number, or a tensor (H,) or (B, H, Q, 1); 0 is a hard look-up.
        softcap: bounds the logits.
        bias: added to the logits; -inf hides.
        sink: (H,) or (1,), the logit of one more outcome, whose value is 0.
        keep: dropout's factors for each weight, 0 or 1 / (1 - p).
    """
    scores = scores.expand(seen.shape)
    if bias is not None:
        seen = seen & (bias != -torch.inf)
        bias = bias.masked_fill(bias == -torch.inf, 0)
    hard, t = _temperature(temperature, scores)
    logits = tempered = scores / t
    if softcap is not None:
        logits = softcap * torch.tanh(tempered / softcap)
    if bias is not None:
        logits = logits + bias
    some = seen.any(-1, keepdim=True)
    extra = [] if sink is None else [sink.view(-1, 1, 1).expand(*scores.shape[:-1], 1)]
    # A row that sees nothing stays unmasked here and is zeroed below: its softmax would be NaN.
    open_ = seen if extra else seen | ~some
    hidden = logits.masked_fill(~open_, -torch.inf)
    outcomes = torch.cat([hidden, *extra], -1)
    lse = outcomes.logsumexp(-1)
    chances = outcomes.softmax(-1)
    surprise = (lse.unsqueeze(-1) - outcomes).masked_fill(outcomes == -torch.inf, 0)
    entropy = (chances * surprise).sum(-1)
    weights = chances[..., : scores.shape[-1]]
    if not extra:
        weights = weights.masked_fill(~some, 0)
        entropy = entropy.masked_fill(~some[..., 0], 0)
        lse = lse.masked_fill(~some[..., 0], -torch.inf)
    max_logit = logits.masked_fill(~seen, -torch.inf).amax(-1)
    weights = torch.where(hard, _best(scores, seen), weights)
    rows = hard[..., 0].expand(lse.shape)
    value = grouped(value, scores.shape[-3])
    kept = weights if keep is None else weights * keep
    return Textbook(
        output=kept @ value,
        lse=lse.masked_fill(rows, torch.nan),
        entropy=entropy.masked_fill(rows, 0),
        max_logit=max_logit.masked_fill(rows, torch.nan),
        max_weight=weights.amax(-1),
        weights=weights,
        tempered=tempered,
        outcomes=outcomes,
        chances=chances,
        soft=~hard,
    )


def _temperature(temperature: float | Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows are hard look-ups, and temperatures that broadcast to (B, H, Q, 1), 1 for those."""
    t = torch.as_tensor(temperature, dtype=scores.dtype, device=scores.device)
    t = t[:, None, None] if t.ndim == 1 else t
    hard = (t == 0).expand(*scores.shape[:-1], 1)
    return hard, torch.where(t == 0, 1, t)


def _best(scores: Tensor, seen: Tensor) -> Tensor:
    """Weights that are 1 at the best visible key, the first if several are equal, and 0 elsewhere."""
    masked = scores.detach().masked_fill(~seen, -torch.inf)
    best = seen & (masked == masked.amax(-1, keepdim=True))
    return (best & (best.cumsum(-1) == 1)).to(scores.dtype)
