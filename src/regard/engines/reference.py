"""The specification: attention in plain PyTorch, any dtype, every option, no tricks for speed.

Everything other engines promise is defined by what this file computes:

1.  logits[i, j]  = the score of query i and key j (`scale <phi_i, psi_j> + alpha_i + beta_j`, or
    `sum_h v_h f(a_ih + b_jh)`).
2.  logits        = softcap(logits / temperature) + bias, with
    `softcap(x) = cap * tanh(x / cap)`. A bias of -inf hides the key, as a mask does.
3.  Hidden pairs are *selected* away, not added away: whatever a hidden key or value holds, NaN and
    Inf included, it is not read into any sum, forward or backward.
4.  A sink is one more outcome with its own logit and value 0.
5.  weights       = softmax over the visible keys (and the sink). A query that sees nothing has
    weights 0, output 0, LSE -inf and gradient 0.
6.  output        = dropout(weights) @ value.

Temperature 0 is the limit (`one_hot_best`): each query takes the visible key with the best score, and
the lowest index among equals. A finite bias and a soft cap have no effect there, and only the values get
a gradient.

NaN in a visible query, key or value gives NaN in the rows that see it and in no other. Half
precision is computed in fp32 and rounded once, at the end. Every step is differentiable by
autograd, twice where PyTorch's own operations are.

It builds the Q x L logits, and for the pairwise form the Q x L x hidden tensor: memory grows with
the square of the length. That is the price of being plain.

Shape legend: `*` leading dims, H query heads, Q query length, L key length.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.engines.base import (
    Attended,
    Engine,
    jacobian_norm,
    repeat_heads,
    soft_capped,
    with_hard_rows,
)
from regard.forms import Form, Inner
from regard.precision import working_dtype
from regard.problem import Problem


class Reference(Engine):
    """Plain PyTorch; never refuses."""

    name = "reference"
    every_derivative = True

    def refusals(self, problem: Problem) -> list[str]:
        """None: the specification covers everything."""
        return []

    def missing_promises(self, problem: Problem) -> list[str]:
        """None."""
        return []

    def raw_scores(self, problem: Problem) -> Tensor:
        """Raw logits of any form; builds the [Q, L, hidden] tensor of a pairwise score."""
        form = problem.form
        return raw_scores(form, working_dtype(form.query.dtype))

    def run(self, problem: Problem) -> Attended:
        """Steps 1 to 6 of the module's docstring."""
        dtype = working_dtype(problem.dtype)
        visible = problem.visible_pairs()
        scores = raw_scores(problem.form, dtype, visible)
        shape = (*problem.lead, problem.heads, problem.queries, problem.keys)
        if visible is not None:
            visible = visible.expand(shape)
            # A soft cap and a temperature would multiply the 0 of a hidden pair by its NaN in the backward.
            scores = torch.where(visible, scores, 0)
        hard, soft = tempered(scores, problem.temperature)
        if problem.softcap is not None:
            soft = soft_capped(soft, problem.softcap)
        if problem.bias is not None:
            bias = problem.bias.to(dtype)
            # `visible` already hides what has a bias of -inf; added here it would make gradients NaN.
            soft = soft + torch.where(bias == -torch.inf, 0, bias)
        logits = hide(soft.expand(shape), visible)
        sink = None if problem.sink is None else problem.sink.to(dtype).view(-1, 1, 1)
        soft = softmax(logits, visible, sink)
        weights, readable = soft.weights, visible
        # From raw scores: soft cap and finite bias do not matter in the limit of temperature 0.
        best = None if hard is None else one_hot_best(hide(scores.expand(shape), visible))
        if best is not None and visible is not None:
            best = torch.where(visible, best, 0)  # also where the row is NaN
        if hard is not None and best is not None:
            weights = torch.where(hard, best, weights)
            seen = True if visible is None else visible
            readable = torch.where(hard, best != 0, seen)  # a hard look-up reads one value
        kept = F.dropout(weights, problem.dropout) if problem.dropout else weights
        value = repeat_heads(problem.value, problem.heads).to(dtype)
        output = select_matmul(kept, value, readable)
        result = Attended(
            output.to(problem.dtype), **statistics(problem.want, logits, weights, soft)
        )
        if hard is None or best is None:
            return result
        return with_hard_rows(result, hard.squeeze(-1), best.sum(-1))


def hide(logits: Tensor, visible: Tensor | None) -> Tensor:
    """-inf where a pair is not visible."""
    return logits if visible is None else logits.masked_fill(~visible, -torch.inf)


def raw_scores(form: Form, dtype: torch.dtype, visible: Tensor | None = None) -> Tensor:
    """The raw logits (*, H, Q, L); with a mask, those of hidden pairs are undefined.

    A mask applied after a plain product would not keep NaN in a hidden key out of the backward, because
    0 * NaN is NaN. A pairwise score therefore sets hidden pairs to 0 before its non-linearity. An inner
    score multiplies with 0 in place of entries that are not finite; pairs that have such entries then
    get their true logit, without gradient.
    """
    heads = form.query.shape[-3]
    q, k = form.query.to(dtype), repeat_heads(form.key, heads).to(dtype)
    if not isinstance(form, Inner):
        total = q.unsqueeze(-2) + k.unsqueeze(-3)
        if visible is not None:
            total = torch.where(visible.unsqueeze(-1), total, 0)
        hidden = form.function.value(total, form.parameter)
        return (hidden @ form.v.to(dtype).unsqueeze(-1)).squeeze(-1)
    if visible is None:
        logits = form.scale * (q @ k.mT)
    else:
        good_q, good_k = q.isfinite(), k.isfinite()
        logits = form.scale * (torch.where(good_q, q, 0) @ torch.where(good_k, k, 0).mT)
        broken = ~good_q.all(-1).unsqueeze(-1) | ~good_k.all(-1).unsqueeze(-2)
        logits = torch.where(broken, (form.scale * (q @ k.mT)).detach(), logits)
    if form.alpha is not None:
        logits = logits + form.alpha.to(dtype).unsqueeze(-1)
    if form.beta is not None:
        logits = logits + repeat_heads(form.beta, heads, -2).to(dtype).unsqueeze(-2)
    return logits


def tempered(logits: Tensor, temperature: float | Tensor) -> tuple[Tensor | None, Tensor]:
    """Which rows are hard look-ups (None if none can be), and the logits over the temperature."""
    if not isinstance(temperature, Tensor):
        if temperature == 0:
            return torch.ones(1, 1, dtype=torch.bool, device=logits.device), logits
        return None, logits / temperature if temperature != 1 else logits
    temperature = temperature.to(logits.dtype).unsqueeze(-1)
    hard = temperature == 0
    # Divided by 1 in hard rows: the caller replaces them, and inf here would make gradients NaN.
    return hard, logits / torch.where(hard, 1, temperature)


class SoftmaxRows(NamedTuple):
    """The softmax of each row: weights of the keys, weight of the sink if there is one, LSE, entropy.

    With the largest logit subtracted, the sum of exponentials is 1 plus the rest. `log1p` keeps the
    digits of a small rest, which is all the information that a saturated row has.
    """

    weights: Tensor
    sink_weight: Tensor | None
    lse: Tensor
    entropy: Tensor


def softmax(logits: Tensor, visible: Tensor | None, sink: Tensor | None) -> SoftmaxRows:
    """Softmax over the visible keys and the sink; rows that see nothing are 0."""
    keys = logits.shape[-1]
    if sink is not None:
        logits = torch.cat([logits, sink.expand(*logits.shape[:-1], 1)], -1)
        visible = None if visible is None else F.pad(visible, (0, 1), value=True)
    elif not keys:
        rows = logits.sum(-1)
        return SoftmaxRows(logits, None, rows - torch.inf, rows)
    top, first = logits.detach().max(-1, keepdim=True)
    # A row that sees nothing: -inf - -inf would be NaN.
    top = torch.where(top == -torch.inf, 0, top)
    below = logits - top
    exp = torch.exp(below)
    if visible is not None:
        exp = torch.where(visible, exp, 0)
    largest, rest = exp.gather(-1, first), exp.scatter(-1, first, 0.0).sum(-1, keepdim=True)
    empty = largest == 0
    weights = exp / torch.where(empty, 1, largest + rest)
    if visible is not None:
        # Again: in a row with NaN the total is NaN, and hidden keys would get NaN too.
        weights = torch.where(visible, weights, 0)
    # `largest` is 1, but it has a gradient that the total needs.
    log_total = torch.log1p(torch.where(empty, 0, rest + (largest - 1)))
    lse = torch.where(empty, -torch.inf, top + log_total).squeeze(-1)
    # A weight of 0 may stand beside -inf, and 0 * inf is NaN.
    expected = (weights * torch.where(weights > 0, below, 0)).sum(-1)
    entropy = log_total.squeeze(-1) - expected
    sink_weight = None if sink is None else weights[..., keys]
    return SoftmaxRows(weights[..., :keys], sink_weight, lse, entropy)


def one_hot_best(logits: Tensor) -> Tensor:
    """One-hot weights of the best visible logit, the lowest index among equals.

    A row that sees nothing is 0; a row that sees NaN is NaN.
    """
    if not logits.shape[-1]:
        return logits
    logits = logits.detach()
    best, index = logits.max(-1, keepdim=True)
    # `max` may return any index among equals. NaN equals nothing, and takes the index of `max`.
    first = (logits == best).to(torch.uint8).argmax(-1, keepdim=True)
    one = torch.zeros_like(logits).scatter(-1, torch.where(best.isnan(), index, first), 1.0)
    return torch.where(best == -torch.inf, 0, torch.where(best.isnan(), torch.nan, one))


def select_matmul(weights: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
    """`weights @ value` that does not read hidden values, whatever they hold."""
    if visible is None:
        return weights @ value
    good = value.isfinite()
    clean = weights @ torch.where(good, value, 0)
    # Only rows that see a value which is not finite take the plain product.
    touched = visible.to(value.dtype) @ (~good).to(value.dtype) > 0
    output = torch.where(touched, weights @ value, clean)
    # Drops the incoming gradient of a row that sees nothing, which may be NaN.
    return torch.where(visible.any(-1, keepdim=True), output, 0)


def statistics(
    want: frozenset[str], logits: Tensor, weights: Tensor, soft: SoftmaxRows
) -> dict[str, Tensor]:
    """The statistics in `want`, by fields of `Attended`."""
    found = {"lse": soft.lse, "entropy": soft.entropy, "weights": weights}
    if "max_logit" in want:
        found["max_logit"] = _peak(logits.detach(), -torch.inf)
    if "max_weight" in want:
        found["max_weight"] = _peak(weights.detach(), 0.0)
    if "jacobian" in want:
        found["jacobian"] = _jacobian(weights.detach(), soft.sink_weight)
    return {name: x for name, x in found.items() if name in want}


def _peak(x: Tensor, empty: float) -> Tensor:
    return x.amax(-1) if x.shape[-1] else x.new_full(x.shape[:-1], empty)


def _jacobian(weights: Tensor, sink_weight: Tensor | None) -> Tensor:
    if not weights.shape[-1]:
        return weights.new_zeros(weights.shape[:-1])
    peak, index = weights.max(-1, keepdim=True)
    others = weights.scatter(-1, index, 0.0)
    rest = others.sum(-1)
    if sink_weight is not None:
        rest = rest + sink_weight.detach()
    return jacobian_norm(peak.squeeze(-1), rest, (others**2).sum(-1), (others**3).sum(-1))
