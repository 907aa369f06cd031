"""Stand-ins for what the operators of the sine engine call, so that they run without a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.engines.wide.reference import visible


def weights(q: Tensor, k: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Softmax weights (B, H, Q, L) and LSE (B, H, Q)."""
    logits = q @ k.mT
    if causal:
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        logits = logits.masked_fill(hidden, -torch.inf)
    return logits.softmax(-1), logits.logsumexp(-1)


class PlainFused:
    """Fused attention in plain PyTorch, rounding to fp16 where tensor cores do."""

    def forward(self, q, k, v, causal):
        assert q.dtype == k.dtype == v.dtype == torch.float16
        assert q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
        p, lse = weights(q.float(), k.float(), causal)
        return (p.half().float() @ v.float()).half(), lse

    def backward(self, grad, q, k, v, out, lse, causal):
        assert grad.stride() == out.stride() and grad.dtype == torch.float16
        p, _ = weights(q.float(), k.float(), causal)
        along = (grad.float() * out.float()).sum(-1, keepdim=True)
        by_logit = p * (grad.float() @ v.float().mT - along)
        by_logit = by_logit.half().float()
        return (
            (by_logit @ k.float()).half(),
            (by_logit.mT @ q.float()).half(),
            (p.half().float().mT @ grad.float()).half(),
        )


def textbook(a, b, v, value, rate, causal, seen=None):
    """Exact additive attention (B, H, Q, D), in the dtype given; `seen` (Z, Q, L) hides pairs."""
    groups = a.shape[1] // b.shape[1]
    b, value = (x.repeat_interleave(groups, 1) for x in (b, value))
    pairs = torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3))
    logits = rate * (pairs * v[:, None, None]).sum(-1)
    if causal:
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        logits = logits.masked_fill(hidden, -torch.inf)
    if seen is not None:
        seen = seen.view(logits.shape)
        logits = torch.where(seen, logits, -torch.inf)
        logits = torch.where(seen.any(-1, keepdim=True), logits, 0)
        return torch.where(seen, logits.softmax(-1), 0) @ value
    return logits.softmax(-1) @ value


def seen_by(hiding, a, b):
    """Which pairs (Z, Q, L) are seen."""
    return torch.stack(
        [visible(hiding, z, a.shape[2], b.shape[2]) for z in range(a.shape[0] * a.shape[1])]
    )


class PlainExact:
    """Exact attention behind a flag; it counts how often it had to answer."""

    def __init__(self) -> None:
        self.answers = 0

    def attend(self, skip, a, b, weight, value, hiding, output):
        if not skip[0]:
            self.answers += 1
            v = weight.view(a.shape[1], a.shape[-1])
            wide = (x.double() for x in (a, b, v, value))
            output.copy_(textbook(*wide, 1.0, False, seen_by(hiding, a, b)))

    def backward(self, skip, grad, a, b, weight, value, rate, hiding, *found):
        if skip[0]:
            return
        self.answers += 1
        v = weight.view(a.shape[1], a.shape[-1]) / rate
        with torch.enable_grad():
            leaves = [x.detach().double().requires_grad_() for x in (a, b, v, value)]
            out = textbook(*leaves, rate, False, seen_by(hiding, a, b))
            grads = torch.autograd.grad(out, leaves, grad.double())
        for into, g in zip(found, grads, strict=True):
            into.copy_(g)
