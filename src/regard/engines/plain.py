"""The `plain` engine: a small pairwise call in as few PyTorch operations as it takes.

The time of such a call depends on the number of operations, not on their size. Tiles gain little there,
and fused kernels would have to be compiled first. The [Q, L, hidden] tensor is therefore built, as in
textbooks, in working precision.

Shape legend: `*` leading dims, H query heads, K key heads, Q queries, L keys, E hidden units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.engines.base import Attended, Engine, repeat_heads
from regard.engines.sizes import tanh_count
from regard.engines.tiled.eager import apply, differentiated
from regard.forms import Inner, Pairwise
from regard.observed import in_forward_mode
from regard.precision import working_dtype
from regard.problem import Problem

WEIGHTS = frozenset({"weights"})
# On a GPU, calls of up to this many tanh, as in examples and tests, do not wait for kernels to compile.
# Repeated calls are faster with kernels at any size: benchmarks/results/small_h200.json.
FEW_TANH = 2**13
# On a CPU plain PyTorch is faster up to this many tanh. With one query the tiled engine cannot share its
# exponentials between queries, and only saves memory: benchmarks/results/small_cpu.json.
FEW_TANH_ON_CPU = 2**18
FEW_TANH_OF_ONE_QUERY = 2**23


class Plain(Engine):
    """The pairwise form in a dozen PyTorch operations."""

    name = "plain"
    every_derivative = True

    def refusals(self, problem: Problem) -> list[str]:
        """Options that would need more operations than the bare call."""
        p = problem
        if isinstance(p.form, Inner):
            return ["it runs pairwise scores; inner products have SDPA"]
        given = {
            "bias": p.bias,
            "sink": p.sink,
            "soft cap": p.softcap,
            "dropout": p.dropout or None,
        }
        reasons = [f"it has no {name}" for name, x in given.items() if x is not None]
        if isinstance(p.temperature, Tensor) or p.temperature == 0:
            reasons.append("it has one temperature, a number above 0")
        if not p.want <= WEIGHTS:
            more = ", ".join(sorted(p.want - WEIGHTS))
            reasons.append(f"weights are its only statistic; it has no {more}")
        if p.mask is not None and not p.mask.same_for_every_query(p.queries):
            reasons.append("the mask may hide a key from one query and show it to another")
        return reasons

    def comes_first(self, problem: Problem) -> bool:
        """True for small calls, but not on a CPU with `error=`, which requests the series."""
        p = problem
        if not isinstance(p.form, Pairwise) or (p.on_cpu and p.error is not None):
            return False
        if not p.on_cpu:
            return tanh_count(p) <= FEW_TANH
        few = FEW_TANH_OF_ONE_QUERY if p.queries == 1 else FEW_TANH_ON_CPU
        return tanh_count(p) <= few

    def missing_promises(self, problem: Problem) -> list[str]:
        """Memory linear in the length, and one kind of row."""
        return [
            "it builds the [Q, L, hidden] tensor, and keeps it for the backward pass",
            "a query whose scores are all -inf gets NaN",
        ]

    def run(self, problem: Problem) -> Attended:
        """Scores, mask, softmax and weighted sum, each in as few operations as possible."""
        p, form = problem, problem.form
        assert isinstance(form, Pairwise) and not isinstance(p.temperature, Tensor)
        hidden = None if p.mask is None else ~p.mask.visible(p.queries, p.keys, p.device)
        # Keys that no query sees were zeroed before the call was lowered, or are finite. Hiding them here
        # again would take as long as tanh.
        logits = scores(form, None if p.hides_whole(p.key_shape) else hidden)
        if p.temperature != 1:
            logits = logits / p.temperature
        value = repeat_heads(p.value, p.heads)
        if hidden is None:
            weights = torch.softmax(logits, -1)
            output = weighted_sum(weights, value)
        else:
            # Softmax of a row of -inf is NaN, and so would be its gradient. A row that sees nothing is
            # therefore not masked here but set to 0 afterwards, which also drops its incoming gradient.
            empty = hidden.all(-1, keepdim=True)
            weights = torch.softmax(logits.masked_fill(hidden & ~empty, -torch.inf), -1)
            weights = weights.masked_fill(hidden, 0)
            if not p.hides_whole(p.value.shape):
                value = value.masked_fill(hidden.mT, 0)
            output = weighted_sum(weights, value)
            output = output.masked_fill(empty, 0)
        if not p.want:
            return Attended(output)
        return Attended(output, weights=weights.expand(*p.lead, *weights.shape[-3:]))


def scores(form: Pairwise, hidden: Tensor | None) -> Tensor:
    """`sum_e v_e f(a_e + b_e)` in working precision, (*, H, Q, L); hidden keys have a + b = 0."""
    heads, dtype = form.a.shape[-3], working_dtype(form.a.dtype)
    # The sum of fp32 and bf16 is fp32, so that only one side has to be cast.
    total = form.a.to(dtype).unsqueeze(-2) + repeat_heads(form.b, heads).unsqueeze(-3)
    if hidden is not None:  # a hidden key is not read, even if it holds NaN
        total = total.masked_fill(hidden.unsqueeze(-1), 0)
    units, v = form.function.value(total, form.parameter), form.v.to(dtype)
    if heads == 1:  # one matrix-vector product instead of one for each sequence
        return units @ v.reshape(-1)
    return (units @ v.unsqueeze(-1)).squeeze(-1)


def weighted_sum(weights: Tensor, value: Tensor) -> Tensor:
    """`weights @ value` in the precision of the weights, rounded once, to the dtype of the values."""
    if weights.dtype == value.dtype:
        return weights @ value
    if differentiated((weights, value)) and not in_forward_mode():
        return apply(WeightedSum, weights, value)
    return (weights @ value.to(weights.dtype)).to(value.dtype)


class WeightedSum(torch.autograd.Function):
    """`weighted_sum` that saves the values in their own dtype for the backward.

    Autograd would save their copy in working precision, a new one at each step of a decoder.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(weights, value):
        """Multiply."""
        return (weights @ value.to(weights.dtype)).to(value.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Save both inputs."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override] # fixed arity
        """Gradients in the precision of the weights: half precision could not hold <grad, value>."""
        weights, value = ctx.saved_tensors
        grad = grad.to(weights.dtype)
        of_weights = (grad @ value.to(weights.dtype).mT).sum_to_size(weights.shape)
        return of_weights, (weights.mT @ grad).sum_to_size(value.shape).to(value.dtype)
