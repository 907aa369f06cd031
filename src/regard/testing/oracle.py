"""Attention as in a textbook, in whatever dtype it is given.

In fp64 this is the oracle that engines are measured against; in the dtype of a case it is what a
user would write without the library, and its error is the yardstick. Nothing here calls an engine,
a form or a `Mask`: formulas read a score's parameters, and masks are worked out pair by pair.

Shape legend: B batch, H query heads, K key heads (K divides H), Q query length, L key length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Band = tuple[int | None, int | None, Literal["bottom_right", "top_left"]]
Formula = Callable[[Any, Tensor, Tensor], Tensor]


def grouped(x: Tensor, heads: int, dim: int = -3) -> Tensor:
    """Give every query head its own copy of the head it shares."""
    return x.repeat_interleave(heads // x.shape[dim], dim)


def pairs(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Queries (B, H, Q, 1, d) and keys (B, H, 1, L, d), for formulas of each pair."""
    return q.unsqueeze(-2), grouped(k, q.shape[-3]).unsqueeze(-3)


def for_heads(parameter: Tensor, heads: int) -> Tensor:
    """A number for each head, shared by a group where there are fewer, as (H, 1, 1)."""
    return grouped(parameter, heads, 0)[:, None, None]


def dot(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`<q, k>`."""
    return q @ grouped(k, q.shape[-3]).mT


def scaled_dot(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`<q, k> / sqrt(d)`."""
    return dot(score, q, k) / math.sqrt(q.shape[-1])


def cosine(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`gain scale <q, k> / (|q| |k|)`."""
    scale = score.scale or math.sqrt(q.shape[-1])
    cosines = dot(score, F.normalize(q, dim=-1), F.normalize(k, dim=-1))
    gain = 1 if score.gain is None else for_heads(score.gain, q.shape[-3])
    return gain * scale * cosines


def gaussian(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`-|q - k|^2 / (2 h^2)`."""
    q_pair, k_pair = pairs(q, k)
    width = score.bandwidth or q.shape[-1] ** 0.25
    if score.log_factor is not None:
        width = width * for_heads(score.log_factor, q.shape[-3]).exp()
    return -(q_pair - k_pair).square().sum(-1) / (2 * width**2)


def bilinear(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`q' W k`."""
    return q @ score.weight @ grouped(k, q.shape[-3]).mT


def low_rank(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`<P' q, Q' k> / sqrt(rank)`."""
    p = score.query_factor.unflatten(0, (-1, score.rank))
    q_factor = score.key_factor.unflatten(0, (-1, score.rank))
    return dot(score, q @ p.mT, k @ q_factor.mT) / math.sqrt(score.rank)


def hidden_units(score: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """`a + b + bias` of each pair (B, H, Q, L, hidden), and v (H, 1, 1, hidden)."""
    q_pair, k_pair = pairs(q, k)
    hidden, v = q_pair + k_pair, score.v
    if score.bias is not None:
        hidden = hidden + score.bias[:, None, None, :]
    if score.gain is not None:
        v = score.gain[:, None] * v / v.norm(dim=-1, keepdim=True)
    return hidden, v[:, None, None, :]


def additive(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`sum_h v_h tanh(a_h + b_h + bias_h)`."""
    hidden, v = hidden_units(score, q, k)
    return (v * torch.tanh(hidden)).sum(-1)


def gatv2(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`sum_h v_h LeakyReLU(a_h + b_h + bias_h)`."""
    hidden, v = hidden_units(score, q, k)
    return (v * F.leaky_relu(hidden, score.parameter)).sum(-1)


def gat(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`LeakyReLU(<u, q> + <w, k>)`."""
    k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    a = (q * score.query_vector.unsqueeze(-2)).sum(-1)
    b = (k * score.key_vector.unsqueeze(-2)).sum(-1)
    return F.leaky_relu(a.unsqueeze(-1) + b.unsqueeze(-2), score.parameter)


def projected(formula: Formula) -> Formula:
    """A score on `W_q q` and `W_k k`."""

    def both(score: Any, q: Tensor, k: Tensor) -> Tensor:
        return formula(
            score.score,
            _project(q, score.query_weight, score.query_bias, score.heads),
            _project(k, score.key_weight, score.key_bias, score.key_heads),
        )

    return both


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    y = x @ weight.unflatten(0, (heads, -1)).mT
    return y if bias is None else y + bias.unflatten(0, (heads, 1, -1))


def tempered(formula: Formula) -> Formula:
    """A score divided by a temperature."""

    def cooler(score: Any, q: Tensor, k: Tensor) -> Tensor:
        t = score.temperature
        if score.log_factor is not None:
            t = t * for_heads(score.log_factor, q.shape[-3]).exp()
        return formula(score.score, q, k) / t

    return cooler


def rms_normalized(formula: Formula) -> Formula:
    """A score of queries and keys over their root mean squares, times learned gains."""

    def norm(x: Tensor, part: Any) -> Tensor:
        return part.weight * x / (x.square().mean(-1, keepdim=True) + part.eps).sqrt()

    return lambda s, q, k: formula(s.score, norm(q, s.query_norm), norm(k, s.key_norm))


def layer_normalized(formula: Formula) -> Formula:
    """A score of queries and keys without their mean, over their deviation; learned gains."""

    def norm(x: Tensor, part: Any) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        spread = (centered.square().mean(-1, keepdim=True) + part.eps).sqrt()
        return part.weight * centered / spread + part.bias

    return lambda s, q, k: formula(s.score, norm(q, s.query_norm), norm(k, s.key_norm))


def unit_keys(formula: Formula) -> Formula:
    """A score of keys of norm 1."""
    return lambda s, q, k: formula(s.score, q, k / k.norm(dim=-1, keepdim=True))


def clipped_keys(formula: Formula) -> Formula:
    """A score of keys no longer than a limit."""

    def clip(score: Any, q: Tensor, k: Tensor) -> Tensor:
        factor = (score.max_norm / k.norm(dim=-1, keepdim=True)).clamp(max=1)
        return formula(score.score, q, k * factor)

    return clip


def inside(formula: Formula) -> Formula:
    """The score inside a wrapper that acts elsewhere."""
    return lambda s, q, k: formula(s.score, q, k)


@dataclass(frozen=True)
class MaskParts:
    """A mask by its parts: a key is seen where every part allows it.

    Lengths are for each sequence; bands are (left, right, alignment); segments are ids of the
    queries and of the keys, for each sequence; dense parts broadcast to (B, H, Q, L).
    """

    key_lengths: list[int] | None = None
    query_lengths: list[int] | None = None
    bands: list[Band] = field(default_factory=list)
    segments: list[tuple[list[list[int]], list[list[int]]]] = field(default_factory=list)
    dense: list[Tensor] = field(default_factory=list)


def sees(parts: MaskParts, b: int, i: int, j: int, queries: int, keys: int) -> bool:
    """Whether query i of sequence b may see its key j, the dense parts left aside."""
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
    """The whole mask, (B, H, Q, L) booleans."""
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
    """Everything `attend` can return, and what it came from.

    `tempered` are the scores over the temperature; `outcomes` the final logits of the keys, -inf
    where hidden, and of the sink; `chances` their softmax; `soft` (B, H, Q, 1) is False for hard
    look-ups, which use none of these.
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
        sink: (H,) or (1,), one more outcome.
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
    # A row that sees nothing is left unmasked and zeroed after: -inf - -inf would be NaN.
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
    """Which rows are hard look-ups, and the temperature of the others, (H, 1, 1) or alike."""
    t = torch.as_tensor(temperature, dtype=scores.dtype, device=scores.device)
    t = t[:, None, None] if t.ndim == 1 else t
    hard = (t == 0).expand(*scores.shape[:-1], 1)
    return hard, torch.where(t == 0, 1, t)


def _best(scores: Tensor, seen: Tensor) -> Tensor:
    """1 at the best visible key, the first among equals."""
    masked = scores.detach().masked_fill(~seen, -torch.inf)
    best = seen & (masked == masked.amax(-1, keepdim=True))
    return (best & (best.cumsum(-1) == 1)).to(scores.dtype)
