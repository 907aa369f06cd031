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
from regard.nn.seq2seq.gathering import Gathering
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
    value, visible = memory.value, memory.visible
    # Again: the terms of a step may have made other keys.
    if not step_plan.serves(b, value) or not step_plan.computes(activation, v):
        return None
    steps, heads = step_plan.steps(), (v.shape[0], a.shape[1])
    given = (b, v.dtype, value, visible, activation, parameter)
    launches = steps.launches_for(steps.step_signature(heads, *given))
    over = steps.MemorySteps(launches, b, value, visible)
    before = state.total.to(torch.float32).contiguous()
    return take_step(over, None, a.contiguous(), v.contiguous(), before)


def take_step(
    over: Any, gathering: Gathering | None, a: Tensor, v: Tensor, before: Tensor
) -> AttentionResult:
    """The result of queries a over a memory that was laid out, `MemorySteps`."""
    given = (a, over.b, v, over.value, before)
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        context, shown, weights, total = apply(KernelStep, over, gathering, *given)
    else:
        context, _, shown, weights, total = over.step(a, v, before, False)
    return AttentionResult(context, shown, AttentionState(weights, total))


class KernelStep(torch.autograd.Function):
    """A step with its gradient."""

    @staticmethod
    def forward(ctx, over, gathering, a, b, v, value, before) -> tuple[Tensor, ...]:
        """Context, weights for the caller and for the state, and their total."""
        found = over.step(a, v, before, True)
        ctx.over, ctx.gathering = over, gathering
        ctx.save_for_backward(a, b, v, value, found.output, found.weights)
        ctx.set_materialize_grads(False)
        return found.context, found.shown, found.weights, found.total

    @staticmethod
    def backward(ctx, grad, *of_weights):  # type: ignore[override] # fixed arity
        """Gradients of a, b, v, the values, and the total before the step."""
        *given, output, weights = ctx.saved_tensors
        of_total, grad_weights = of_weights[-1], together(of_weights)
        if grad is None and grad_weights is None:
            return (None,) * 6 + (of_total,)
        if grad is None:
            grad = torch.zeros_like(output)
        rows = [one for one in (grad, grad_weights) if one is not None]
        if torch.is_grad_enabled() or needs_dispatcher(rows):
            return None, None, *recorded(ctx, given, grad, grad_weights), of_total
        over, gathering, (a, _, v, _) = ctx.over, ctx.gathering, given
        known = (grad, output, weights)
        if gathering is None:
            found = over.backward(a, v, known, grad_weights)
        else:
            sums, adds = gathering.memory(lambda: (*over.new_sides(), over.new_copies()))
            found = over.backward(a, v, known, grad_weights, sums, adds)
        found = [
            None if g is None else summed_to(g, one) for g, one in zip(found, given, strict=True)
        ]
        return None, None, *found, of_total


def together(grads: tuple[Tensor | None, ...]) -> Tensor | None:
    """The sum of the gradients that there are."""
    there = [grad for grad in grads if grad is not None]
    return functools.reduce(torch.add, there) if there else None


def summed_to(grad: Tensor, like: Tensor) -> Tensor:
    """The gradient of a tensor that heads share: the sum over them."""
    if grad.shape == like.shape:
        return grad
    if grad.numel() == like.numel():
        return grad.view(like.shape)
    return grad.sum_to_size(like.shape).to(like.dtype)


def recorded(
    ctx: Any, saved: list[Tensor], grad: Tensor, grad_weights: Tensor | None
) -> list[Tensor | None]:
    """The gradients by plain operations, which have derivatives of their own."""
    with torch.enable_grad():
        given = [one.view_as(one) for one in saved]
        found = textbook(given, ctx.over)
        incoming = [grad.to(found[0].dtype), grad_weights]
        ends = [(end, x) for end, x in zip(found, incoming, strict=True) if x is not None]
        wanted = [i for i in range(len(given)) if ctx.needs_input_grad[2 + i]]
        grads = torch.autograd.grad(
            [end for end, _ in ends],
            [given[i] for i in wanted],
            [one for _, one in ends],
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
    of_all: list[Tensor | None] = [None] * len(given)
    for i, one in zip(wanted, grads, strict=True):
        of_all[i] = one
    return of_all


def textbook(given: list[Tensor], over: Any) -> tuple[Tensor, Tensor]:
    """Context (B, H V) and weights (B, H, L) of a, b, v and values in plain operations."""
    a, b, v, value = given
    signature, visible = over.launches.signature, over.visible
    a = a.view(signature.batch, signature.a_heads, 1, signature.units)
    units = ACTIVATIONS[signature.activation].value(widened(a) + b, signature.parameter)
    logits = (units @ widened(v).unsqueeze(-1)).squeeze(-1)
    if visible is not None:
        seen = visible.unsqueeze(1)
        # A row that sees nothing is left unmasked: softmax of all -inf is NaN, and so is its gradient.
        logits = torch.where(seen | ~seen.any(-1, keepdim=True), logits, -torch.inf)
    weights = torch.softmax(logits, -1)
    if visible is not None:
        weights = weights.masked_fill(~visible.unsqueeze(1), 0)
    return weighted_sum(weights, value.squeeze(1)).flatten(1), weights
