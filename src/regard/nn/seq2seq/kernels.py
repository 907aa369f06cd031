"""A step of a recurrent decoder in two kernels on a GPU, with its gradient.

The textbook's formula takes seven operations, writes the [L, hidden] tensor twice and reads it three times.
Here the keys are read once, and the weights are written by the kernels that need them.

Shape legend: B batch, H heads, K key heads (1 or H), L keys, E hidden units, V value width.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from regard.activations import ACTIVATIONS
from regard.engines import step_plan
from regard.engines.plain import weighted_sum
from regard.engines.tiled.eager import apply
from regard.forms import PairwiseKey
from regard.nn.seq2seq.memory import AttentionResult, AttentionState, Memory
from regard.observed import needs_dispatcher
from regard.precision import widened


def serve(memory: Memory, query: Tensor) -> bool:
    """Whether steps over this memory run in kernels: the score is pairwise, and nothing observes the call."""
    side, value = memory.side, memory.value
    if value.device.type not in step_plan.STEPS_ON or not isinstance(side, PairwiseKey):
        return False
    return step_plan.serves(side.b, value) and not needs_dispatcher((query, side.b, value))


def attend_in_kernels(
    a: Tensor,
    b: Tensor,
    v: Tensor,
    activation: str,
    parameter: float,
    memory: Memory,
    state: AttentionState,
) -> AttentionResult | None:
    """The result of one query for each sequence, a (B, H or 1, 1, E), b (B, K, L, E) and v (H, E).

    None for keys that do not lie in memory as the kernels read them.
    """
    # Again: the terms of a step may have made other keys.
    if not step_plan.serves(b, memory.value) or not step_plan.computes(activation, v):
        return None
    steps, before = step_plan.steps(), state.total.to(torch.float32).contiguous()
    x = steps.StepOperands(a.contiguous(), b, v.contiguous(), memory.value, memory.visible)
    launches = steps.launches_for(steps.step_signature(x, activation, parameter))
    if torch.is_grad_enabled() and any(one.requires_grad for one in (a, b, v, x.value, before)):
        gathering = memory.gathering
        # Only where one head reads keys and values: others have sums over heads left.
        if gathering is not None and not (len(v) == 1 and gathering.is_of(b, x.value)):
            gathering = None
        given = (launches, gathering, x.visible, *x[:4], before)
        context, shown, weights, total = apply(KernelStep, *given)
    else:
        context, _, shown, weights, total = launches.step(x, before, saves=False)
    return AttentionResult(context.flatten(1), shown, AttentionState(weights, total))


class KernelStep(torch.autograd.Function):
    """A step with its gradient."""

    @staticmethod
    def forward(ctx, launches, gathering, visible, *given: Tensor) -> tuple[Tensor, ...]:
        """Context, weights for the caller and for the state, and their total."""
        *sides, before = given
        x = step_plan.steps().StepOperands(*sides, visible)
        found = launches.step(x, before, saves=True)
        ctx.launches, ctx.gathering = launches, gathering
        ctx.save_for_backward(*x, found.output, found.weights)
        ctx.set_materialize_grads(False)
        return found.context, found.shown, found.weights, found.total

    @staticmethod
    def backward(ctx, grad, *of_weights):  # type: ignore[override] # fixed arity
        """Gradients of a, b, v, the values, and the total before the step."""
        *given, visible, output, weights = ctx.saved_tensors
        x, of_total = step_plan.steps().StepOperands(*given, visible), of_weights[-1]
        grad_weights = together(of_weights)
        if grad is None and grad_weights is None:
            return (None,) * 7 + (of_total,)
        if grad is None:
            grad = torch.zeros_like(output)
        rows = [one for one in (grad, grad_weights) if one is not None]
        if torch.is_grad_enabled() or needs_dispatcher(rows):
            found = recorded(ctx, x, grad, grad_weights)
        elif ctx.gathering is None:
            found = ctx.launches.backward(x, grad, output, weights, grad_weights)
            found = [summed_to(g, one) for g, one in zip(found, given, strict=True)]
        else:
            sums, adds = ctx.gathering.memory(lambda: ctx.launches.new_sides(x.b.shape[2]))
            of_a, _, of_v, _ = ctx.launches.backward(
                x, grad, output, weights, grad_weights, into=sums, adds=adds
            )
            found = [of_a, None, of_v, None]
        return None, None, None, *found, of_total


def together(grads: tuple[Tensor | None, ...]) -> Tensor | None:
    """The sum of the gradients that there are."""
    there = [grad for grad in grads if grad is not None]
    return functools.reduce(torch.add, there) if there else None


def summed_to(grad: Tensor, like: Tensor) -> Tensor:
    """The gradient of a tensor that heads share: the sum over them."""
    return grad if grad.shape == like.shape else grad.sum_to_size(like.shape).to(like.dtype)


def recorded(ctx: Any, x: Any, grad: Tensor, grad_weights: Tensor | None) -> list[Tensor | None]:
    """The gradients by plain operations, which have derivatives of their own."""
    with torch.enable_grad():
        given = [one.view_as(one) for one in x[:4]]
        found = textbook(x._make((*given, x.visible)), ctx.launches.signature)
        incoming = [grad.to(found[0].dtype), grad_weights]
        ends = [
            (end, given) for end, given in zip(found, incoming, strict=True) if given is not None
        ]
        wanted = [i for i, one in enumerate(given) if ctx.needs_input_grad[3 + i]]
        grads = torch.autograd.grad(
            [end for end, _ in ends],
            [given[i] for i in wanted],
            [one for _, one in ends],
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
    of_all: list[Tensor | None] = [None] * 4
    for i, one in zip(wanted, grads, strict=True):
        of_all[i] = one
    return of_all


def textbook(x: Any, signature: Any) -> tuple[Tensor, Tensor]:
    """Context (B, H, V) and weights (B, H, L) of `StepOperands` in plain operations."""
    units = ACTIVATIONS[signature.activation].value(widened(x.a) + x.b, signature.parameter)
    logits = (units @ widened(x.v).unsqueeze(-1)).squeeze(-1)
    if x.visible is not None:
        seen = x.visible.unsqueeze(1)
        # A row that sees nothing is left unmasked: softmax of all -inf is NaN, and so is its gradient.
        logits = torch.where(seen | ~seen.any(-1, keepdim=True), logits, -torch.inf)
    weights = torch.softmax(logits, -1)
    if x.visible is not None:
        weights = weights.masked_fill(~x.visible.unsqueeze(1), 0)
    return weighted_sum(weights, x.value.squeeze(1)), weights
