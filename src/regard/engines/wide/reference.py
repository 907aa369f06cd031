"""The specification: attention over features and its gradients in plain PyTorch, one head after another.

    S = phi psi'      P = softmax(S), over the keys that a query sees      out = (P o M) value
    dP = (grad value') o M      dS = P o (dP - sum_d grad out)
    dphi = dS psi      dpsi = dS' phi      dvalue = (P o M)' grad

with M 0 for weights that are dropped and 1 / (1 - dropout) for others. The kernels compute the same a
tile at a time: the weights of a tile follow from its logits and the LSE of the row, so that the backward
needs no weights of the forward. A query that sees nothing has output 0, gradients 0 and LSE -inf.

Any dtype; it builds the [Q, L] weights of a head, and is for tests.

Shape legend: Z heads, Q queries, L keys, W width of the features, X width of the values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.engines.hiding import Hiding


def visible(hiding: Hiding, z: int, queries: int, keys: int) -> Tensor:
    """Which pairs (Q, L) of head z are seen."""
    row, column = torch.arange(queries).unsqueeze(1), torch.arange(keys)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if hiding.causal:
        seen &= column <= row
    if hiding.start is not None:
        seen &= column >= hiding.start[z % hiding.start.shape[0]].unsqueeze(1)
    if hiding.stop is not None:
        seen &= column < hiding.stop[z % hiding.stop.shape[0]].unsqueeze(1)
    if hiding.query_segment is not None and hiding.key_segment is not None:
        own = hiding.query_segment[z].unsqueeze(1)
        seen &= (own == hiding.key_segment[z]) & (own >= 0)
    return seen


def weights_of(q: Tensor, k: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (Q, L), 0 where nothing is seen, and LSE (Q,) of one head."""
    logits = (q @ k.mT).masked_fill(~seen, -torch.inf)
    lse = logits.logsumexp(-1)
    return (logits - torch.where(lse == -torch.inf, 0, lse).unsqueeze(-1)).exp(), lse


def forward(
    q: Tensor, k: Tensor, v: Tensor, hiding: Hiding, kept: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output (Z, Q, X) and LSE (Z, Q); `kept` (Z, Q, L) says which weights are not dropped."""
    outs, lses = [], []
    for z in range(q.shape[0]):
        p, lse = weights_of(q[z], k[z], visible(hiding, z, q.shape[1], k.shape[1]))
        used = p if kept is None else p * kept[z] / (1 - hiding.dropout)
        outs.append(used @ v[z])
        lses.append(lse)
    return torch.stack(outs), torch.stack(lses)


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, hiding: Hiding, kept: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v by the formulas above."""
    found = []
    for z in range(q.shape[0]):
        p, _ = weights_of(q[z], k[z], visible(hiding, z, q.shape[1], k.shape[1]))
        scale = 1.0 if kept is None else kept[z] / (1 - hiding.dropout)
        used = p * scale
        slope = p * ((grad[z] @ v[z].mT) * scale - (grad[z] * (used @ v[z])).sum(-1, keepdim=True))
        found.append((slope @ k[z], slope.mT @ q[z], used.mT @ grad[z]))
    by_q, by_k, by_v = (torch.stack(parts) for parts in zip(*found, strict=True))
    return by_q, by_k, by_v
