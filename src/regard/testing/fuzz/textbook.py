"""Attention as in a textbook, for any leading dims and for empty ones, in the dtype it is given.

Shares no code with the engines or with `regard.Mask`: in fp64 it is what every call is measured against.

Shape legend: `*` leading dims, H query heads, V value heads, Q query length, L key length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Found = dict[str, Tensor]
# The relative error that `noisy` puts into the backward of a softmax, and where its signs come from.
NOISE: list[tuple[float, torch.Generator]] = []


@contextmanager
def noisy(eps: float, generator: torch.Generator) -> Iterator[None]:
    """Err in the backward as one rounding of its terms would.

    The gradient of a logit is `p (x - mean of x)`: with one visible key it is 0, as a difference of numbers that
    are not. What rounding makes of it is as large as eps times `p x`, which no change of the inputs shows.
    """
    NOISE.append((eps, generator))
    try:
        yield
    finally:
        NOISE.pop()


def as_rounded(x: Tensor) -> Tensor:
    """`x` itself; under `noisy` with one rounding error, so that sums err as their terms do."""
    if not NOISE:
        return x
    eps, generator = NOISE[-1]
    return x * (1 + eps * _signs(x, generator))


def _rounded(x: Tensor, terms: Tensor, of: Tensor) -> Tensor:
    """`x` itself, whose gradient by `of` errs by eps times the `terms` of it; both (..., L)."""
    if not NOISE:
        return x
    eps, generator = NOISE[-1]
    signs = _signs(terms, generator)
    still = torch.where(of.isfinite(), of, 0)
    return x + (eps * signs * terms).detach() * (still - still.detach())


class RoundedProduct(torch.autograd.Function):
    """`chances @ value` whose backward errs as one rounding of its terms would.

    With `g` the incoming gradient, `x_l = <g, v_l>` and `m = sum_l p_l x_l`, the gradient of a logit is
    `p_l (x_l - m)`. Engines get `x_l` and `m` from different sums: `m` is `<g, output>` to tiled ones. So each errs on
    its own by eps times the terms of its sum, `X_l = sum_d |g_d| |v_ld|` and `sum_l p_l X_l`, however small the sum
    is. Where the gradient is exactly 0, as with one visible key, this is all that is left of it. A chance that
    is got back as exp(logit - LSE) errs by eps |LSE| too, which multiplies both (`off`).
    """

    @staticmethod
    def forward(ctx: Any, chances: Tensor, value: Tensor, outcomes: Tensor, off: Tensor) -> Tensor:
        """(..., Q, L) and (..., L, value dim); `outcomes` (..., Q, L or L + 1) takes the error."""
        ctx.save_for_backward(chances, value, off)
        ctx.keys = value.shape[-2]
        del outcomes
        return chances[..., : ctx.keys] @ value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The exact gradients of chances and value, each with its error."""
        (grad,) = grads
        chances, value, off = ctx.saved_tensors
        eps, generator = NOISE[-1]
        extra = chances.shape[-1] - ctx.keys
        weights = chances[..., : ctx.keys]
        of_value = weights.mT @ grad
        of_value = of_value + eps * _signs(of_value, generator) * (weights.mT @ grad.abs())
        x = torch.nn.functional.pad(grad @ value.mT, (0, extra))
        terms = torch.nn.functional.pad(grad.abs() @ value.abs().mT, (0, extra))
        mean = (chances * terms).sum(-1, keepdim=True)
        error = eps * off * chances * (terms + mean)
        return x, of_value, _signs(error, generator) * error, None


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """1 or -1 at random."""
    return 2.0 * torch.randint(0, 2, like.shape, generator=generator).to(like) - 1


def attend(
    scores: Tensor,
    value: Tensor,
    seen: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    want: tuple[str, ...] = (),
) -> Found:
    """Output and statistics from raw scores.

    Args:
        scores: (*, H, Q, L).
        value: (*, V, L, value dim).
        seen: booleans (*, H, Q, L), True = attend; the full shape.
        temperature: a number, or a tensor that broadcasts to (*, H, Q, 1); 0 is a hard look-up.
        softcap: bounds the logits.
        bias: broadcasts to (*, H, Q, L); -inf hides.
        sink: (H,), (1,) or (), the logit of one more outcome.
        want: names of statistics.
    """
    full = seen.shape
    if bias is not None:
        seen = seen & (bias != -torch.inf)
        bias = torch.where(bias == -torch.inf, 0, bias)
    t = torch.as_tensor(temperature, dtype=scores.dtype)
    hard = (t == 0).expand(*full[:-1], 1)
    logits = scores / torch.where(t == 0, 1, t)
    if softcap is not None:
        bare = logits
        logits = _rounded(softcap * torch.tanh(bare / softcap), torch.ones_like(bare), bare)
    if bias is not None:
        logits = logits + bias
    logits = logits.expand(full)
    outcomes, visible = logits, seen
    if sink is not None:
        extra = sink.reshape(-1, 1, 1).expand(*full[:-1], 1)
        outcomes = torch.cat([logits, extra], -1)
        visible = torch.cat([seen, extra != -torch.inf], -1)
    chances, lse, entropy = _softmax(outcomes, visible)
    weights = chances[..., : full[-1]]
    if bool(hard.any()):
        weights = torch.where(hard, best(scores.expand(full), seen), weights)
    heads = full[-3]
    own = value.repeat_interleave(heads // max(value.shape[-3], 1), -3)
    if NOISE:
        own = own.expand(*full[:-2], *own.shape[-2:])
        off = 1 + torch.where(lse.isfinite(), lse, 0).abs().detach().unsqueeze(-1)
        off = torch.where(hard, 0, off)
        chances = torch.cat([weights, chances[..., full[-1] :]], -1)
        still = torch.where(outcomes.isfinite(), outcomes, 0)
        found = {"output": RoundedProduct.apply(chances, own, still, off)}
    else:
        found = {"output": weights @ own}
    if want:
        found |= _statistics(want, logits, seen, weights, lse, entropy, hard)
    return found


def _softmax(outcomes: Tensor, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Chances, log of the total and entropy; 0, -inf and 0 where nothing is visible."""
    if not outcomes.shape[-1]:
        rows = outcomes.sum(-1)
        return outcomes, rows - torch.inf, rows
    masked = torch.where(visible, outcomes.detach(), -torch.inf)
    top = masked.amax(-1, keepdim=True)
    some = top != -torch.inf
    below = torch.where(visible, outcomes - torch.where(some, top, 0), 0)
    exp = torch.where(visible, torch.exp(below), 0)
    total = torch.where(some, exp.sum(-1, keepdim=True), 1)
    chances = exp / total
    lse = torch.where(some, top + total.log(), -torch.inf).squeeze(-1)
    entropy = total.log().squeeze(-1) - (chances * below).sum(-1)
    if not NOISE:
        return chances, lse, entropy
    # Tiled engines get weights back as exp(logit - LSE), which is off by eps |LSE|.
    off = 1 + torch.where(some, lse.unsqueeze(-1), 0).abs().detach()
    chances = _rounded(chances, chances * off, outcomes)
    surprise = total.log() - below
    terms = chances * (1 + surprise)
    # Both are sums and differences of logits, and err by an eps of the largest.
    largest = NOISE[-1][0] * torch.where(visible, outcomes.detach(), 0).abs().amax(-1)
    entropy = _rounded(torch.zeros_like(terms), terms, outcomes).sum(-1) + entropy + largest
    lse = lse + largest
    return chances * (1 + NOISE[-1][0] * off), lse, entropy


def _statistics(
    want: tuple[str, ...],
    logits: Tensor,
    seen: Tensor,
    weights: Tensor,
    lse: Tensor,
    entropy: Tensor,
    hard: Tensor,
) -> Found:
    rows = hard[..., 0]
    found = {"weights": weights, "lse": lse.masked_fill(rows, torch.nan)}
    found["entropy"] = entropy.masked_fill(rows, 0)
    largest = lse.detach() - torch.inf if not logits.shape[-1] else None
    if "max_logit" in want:
        peak = largest
        if peak is None:
            peak = torch.where(seen, logits.detach(), -torch.inf).amax(-1)
        found["max_logit"] = peak.masked_fill(rows, torch.nan)
    p = weights.detach()
    if "max_weight" in want:
        found["max_weight"] = p.amax(-1) if p.shape[-1] else p.sum(-1)
    if "jacobian" in want:
        outer = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
        found["jacobian"] = outer.square().sum((-2, -1)).sqrt()
    return {name: found[name] for name in want}


def best(scores: Tensor, seen: Tensor) -> Tensor:
    """1 at the best visible key, the first among equals; 0 where nothing is seen."""
    if not scores.shape[-1]:
        return scores.detach()
    masked = torch.where(seen, scores.detach(), -torch.inf)
    at = seen & (masked == masked.amax(-1, keepdim=True))
    return (at & (at.cumsum(-1) == 1)).to(scores.dtype)


def unclear(scores: Tensor, seen: Tensor, eps: float) -> Tensor:
    """Rows (*, H, Q) whose best key leads the next by less than rounding may move them."""
    if scores.shape[-1] < 2:
        return torch.zeros(scores.shape[:-1], dtype=torch.bool)
    size = scores.abs().amax(-1) if scores.numel() else scores.sum(-1)
    first, second = torch.where(seen, scores, -torch.inf).topk(2, -1).values.unbind(-1)
    return (second != -torch.inf) & ~(first - second > 32 * eps * (size + 1))
