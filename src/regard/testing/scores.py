"""The scores under contract: the textbook formula of each, then its rows.

A new score joins the whole suite with its formula and one `add(...)` here. Scores are measured against
these formulas, so they read a score's parameters but share no code with the library. `wrappers.py` adds
the rows of wrapped scores.

Shape legend: B batch, H query heads, Q query length, L key length.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import regard
from regard.testing.cases import ScoreRow
from regard.testing.oracle import for_heads, grouped, pairs

SCORES: dict[str, ScoreRow] = {}


def add(*arguments: Any, **options: Any) -> None:
    """Put a score under contract; the arguments are those of `ScoreRow`."""
    row = ScoreRow(*arguments, **options)
    SCORES[row.name] = row


def half(dim: int) -> int:
    """Half of a width, and at least 1."""
    return max(dim // 2, 1)


def dot(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`<q, k>`."""
    return q @ grouped(k, q.shape[-3]).mT


add("dot", lambda dq, dk, h, kh: regard.Dot(), dot)


def scaled_dot(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`<q, k> / sqrt(d)`."""
    return dot(score, q, k) / math.sqrt(q.shape[-1])


add("scaled_dot", lambda dq, dk, h, kh: regard.ScaledDot(), scaled_dot)


def cosine(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`gain scale <q, k> / (|q| |k|)`."""
    scale = score.scale or math.sqrt(q.shape[-1])
    cosines = dot(score, F.normalize(q, dim=-1), F.normalize(k, dim=-1))
    gain = 1 if score.gain is None else for_heads(score.gain, q.shape[-3])
    return gain * scale * cosines


add("cosine", lambda dq, dk, h, kh: regard.Cosine(heads=h), cosine)
add("cosine fixed", lambda dq, dk, h, kh: regard.Cosine(heads=None), cosine)


def gaussian(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`-|q - k|^2 / (2 h^2)`."""
    q_pair, k_pair = pairs(q, k)
    width = score.bandwidth or q.shape[-1] ** 0.25
    if score.log_factor is not None:
        width = width * for_heads(score.log_factor, q.shape[-3]).exp()
    return -(q_pair - k_pair).square().sum(-1) / (2 * width**2)


add("gaussian", lambda dq, dk, h, kh: regard.Gaussian(heads=kh), gaussian)
add(
    "gaussian fixed",
    lambda dq, dk, h, kh: regard.Gaussian(bandwidth=1.5, heads=None),
    gaussian,
)


def bilinear(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`q' W k`."""
    return q @ score.weight @ grouped(k, q.shape[-3]).mT


add("bilinear", lambda dq, dk, h, kh: regard.Bilinear(dq, dk, h), bilinear)
add(
    "bilinear unequal",
    lambda dq, dk, h, kh: regard.Bilinear(dq, dk, h),
    bilinear,
    unequal=True,
)


def low_rank(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`<P' q, Q' k> / sqrt(rank)`."""
    p = score.query_factor.unflatten(0, (-1, score.rank))
    q_factor = score.key_factor.unflatten(0, (-1, score.rank))
    return dot(score, q @ p.mT, k @ q_factor.mT) / math.sqrt(score.rank)


add(
    "low_rank",
    lambda dq, dk, h, kh: regard.LowRank(dq, dk, half(dq), h, kh),
    low_rank,
    unequal=True,
)


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


add("additive", lambda dq, dk, h, kh: regard.Additive(dq, h), additive, "pairwise")
add(
    "additive bias norm",
    lambda dq, dk, h, kh: regard.Additive(dq, h, bias=True, weight_norm=True),
    additive,
    "pairwise",
)


def gatv2(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`sum_h v_h LeakyReLU(a_h + b_h + bias_h)`."""
    hidden, v = hidden_units(score, q, k)
    return (v * F.leaky_relu(hidden, score.parameter)).sum(-1)


add(
    "gatv2",
    lambda dq, dk, h, kh: regard.GATv2(dq, h),
    gatv2,
    "pairwise",
    kinked=True,
)
add(
    "gatv2 bias",
    lambda dq, dk, h, kh: regard.GATv2(dq, h, bias=True, negative_slope=0.1),
    gatv2,
    "pairwise",
    kinked=True,
)


def gat(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`LeakyReLU(<u, q> + <w, k>)`."""
    k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    a = (q * score.query_vector.unsqueeze(-2)).sum(-1)
    b = (k * score.key_vector.unsqueeze(-2)).sum(-1)
    return F.leaky_relu(a.unsqueeze(-1) + b.unsqueeze(-2), score.parameter)


add(
    "gat",
    lambda dq, dk, h, kh: regard.GAT(dq, h),
    gat,
    "pairwise",
    kinked=True,
)
