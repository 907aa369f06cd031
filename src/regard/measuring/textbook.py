"""Every score by its textbook formula, in plain PyTorch.

Comparisons use these formulas in two ways. In fp64 they are the truth that errors are measured against. In
the dtype of the inputs they are the plain PyTorch baseline for errors, time and memory; the additive one
builds the whole [Q, L, hidden] tensor, as the usual implementation does. They read the parameters of the
library's scores and share no code with them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.scores import Additive, Bilinear, Cosine, GATv2, Gaussian, LowRank, Projected, Score


def attention(
    score: Score, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None
) -> Tensor:
    """`softmax(scores) @ value`. `keep` is boolean (Q, L), True = attend; grouped heads are repeated."""
    group = query.shape[-3] // key.shape[-3]
    if group > 1:
        key, value = (x.repeat_interleave(group, -3) for x in (key, value))
    scores = raw(score, query, key)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    return torch.softmax(scores, -1) @ value


def raw(score: Score, q: Tensor, k: Tensor) -> Tensor:
    """Scores (batch, heads, Q, L) of queries and keys with the same number of heads."""
    if isinstance(score, Projected):
        heads, group = score.heads, score.heads // score.key_heads
        w_q = score.query_weight.unflatten(0, (heads, -1))
        w_k = score.key_weight.unflatten(0, (score.key_heads, -1))
        q, k = q @ w_q.mT, k @ w_k.repeat_interleave(group, 0).mT
        score = score.score
    return FORMULAS[score.name](score, q, k)


def dot(score: Score, q: Tensor, k: Tensor) -> Tensor:
    """`<q, k>`."""
    return q @ k.mT


def scaled_dot(score: Score, q: Tensor, k: Tensor) -> Tensor:
    """`<q, k> / sqrt(d)`."""
    return q @ k.mT / q.shape[-1] ** 0.5


def cosine(score: Cosine, q: Tensor, k: Tensor) -> Tensor:
    """`gain sqrt(d) <q, k> / |q| |k|`."""
    angle = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    gain = 1.0 if score.gain is None else score.gain.view(-1, 1, 1)
    return gain * q.shape[-1] ** 0.5 * angle


def gaussian(score: Gaussian, q: Tensor, k: Tensor) -> Tensor:
    """`-|q - k|^2 / (2 h^2)`, the square expanded so that no [Q, L, d] tensor is built."""
    bandwidth = torch.full((1, 1, 1), q.shape[-1] ** 0.25, dtype=q.dtype, device=q.device)
    if score.log_factor is not None:
        factor = score.log_factor.exp()
        bandwidth = bandwidth * factor.repeat_interleave(q.shape[-3] // len(factor)).view(-1, 1, 1)
    square = q.square().sum(-1).unsqueeze(-1) - 2 * q @ k.mT + k.square().sum(-1).unsqueeze(-2)
    return -square / (2 * bandwidth**2)


def bilinear(score: Bilinear, q: Tensor, k: Tensor) -> Tensor:
    """`q' W k`."""
    return q @ score.weight @ k.mT


def low_rank(score: LowRank, q: Tensor, k: Tensor) -> Tensor:
    """`<P' q, Q' k> / sqrt(rank)`."""
    group = q.shape[-3] // score.key_heads
    p = score.query_factor.unflatten(0, (-1, score.rank))
    r = score.key_factor.unflatten(0, (-1, score.rank)).repeat_interleave(group, 0)
    return (q @ p.mT) @ (k @ r.mT).mT / score.rank**0.5


def additive(score: Additive, q: Tensor, k: Tensor) -> Tensor:
    """`sum_h v_h tanh(a_h + b_h)`: builds the [Q, L, hidden] tensor."""
    pairs = torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3))
    return (pairs @ score.v[:, None, :, None]).squeeze(-1)


def gatv2(score: GATv2, q: Tensor, k: Tensor) -> Tensor:
    """`sum_h v_h LeakyReLU(a_h + b_h)`: builds the [Q, L, hidden] tensor."""
    pairs = F.leaky_relu(q.unsqueeze(-2) + k.unsqueeze(-3), score.parameter)
    return (pairs @ score.v[:, None, :, None]).squeeze(-1)


FORMULAS: dict[str, Callable[..., Tensor]] = {
    "dot": dot,
    "scaled_dot": scaled_dot,
    "cosine": cosine,
    "gaussian": gaussian,
    "bilinear": bilinear,
    "low_rank": low_rank,
    "additive": additive,
    "gatv2": gatv2,
}
