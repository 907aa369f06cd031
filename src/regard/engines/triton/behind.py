"""Exact additive attention behind a flag on the device, for engine "sine" to fall back to.

Every kernel looks at the flag first. Where the series holds, a call costs a few empty launches; where
it does not, the exact result is written over the approximate one. Nothing waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.engines.tiled import Arguments


class Behind:
    """What `regard.engines.sine.parts.Exact` asks for, by the kernels of this folder."""

    def attend(
        self,
        skip: Tensor,
        a: Tensor,
        b: Tensor,
        v: Tensor,
        value: Tensor,
        rate: float,
        causal: bool,
        output: Tensor,
    ) -> None:
        """The output (B, H, Q, D), in place."""
        from regard.engines.triton import calls

        args = arguments(a, b, v, value, rate, causal)
        rows = [a.new_empty(output.shape[:3], dtype=torch.float32) for _ in range(3)]
        calls.launch_forward(args, False, output.flatten(0, 1), *rows, skip=skip)

    def backward(
        self,
        skip: Tensor,
        grad: Tensor,
        a: Tensor,
        b: Tensor,
        v: Tensor,
        value: Tensor,
        rate: float,
        causal: bool,
        grad_a: Tensor,
        grad_b: Tensor,
        grad_v: Tensor,
        grad_value: Tensor,
    ) -> None:
        """The gradients, in place; its own forward is computed again."""
        from regard.engines.triton import calls, flagged
        from regard.engines.triton.structs import Rows

        args = arguments(a, b, v, value, rate, causal)
        (batch, heads, queries, units), (keys, dims) = a.shape, value.shape[-2:]
        groups = heads // b.shape[1]
        output = a.new_empty((batch * heads, queries, dims), dtype=torch.float32)
        tail, spread, peak, shift = (
            a.new_empty((batch * heads, queries), dtype=torch.float32) for _ in range(4)
        )
        calls.launch_forward(args, False, output, tail, spread, peak, skip=skip)
        grad = grad.contiguous()
        flagged.negated_products(grad, output, shift, skip)
        known = Rows(grad=grad, peak=peak, tail=tail, shift=shift)
        found = calls.launch_backward(args, known, False, skip)
        assert found.v is not None and found.value is not None
        # Heads before hidden units before lengths; heads that share keys are summed.
        flagged.collect(found.q, (units * queries, 1, queries), 1, 0, grad_a, skip)
        by_unit = (groups * units * keys, 1, keys)
        flagged.collect(found.k, by_unit, groups, units * keys, grad_b, skip)
        by_key = (groups * keys * dims, dims, 1)
        flagged.collect(found.value, by_key, groups, keys * dims, grad_value, skip)
        # The gradient of v is still one number for each key: (batch, heads, units, keys).
        of_v = found.v.view(batch, heads, units, keys).sum((0, 3)) * rate
        torch.where(skip, grad_v, of_v, out=grad_v)


def arguments(
    a: Tensor, b: Tensor, v: Tensor, value: Tensor, rate: float, causal: bool
) -> Arguments:
    """The call as operators take it: query heads in groups that share a key head."""
    (batch, heads, queries, _), (_, groups, keys, _) = a.shape, b.shape
    shared = heads // groups
    stop = None
    if causal:
        stop = torch.arange(1, queries + 1, device=a.device).view(1, 1, 1, -1, 1)
    return Arguments(
        q=a.unflatten(1, (groups, shared)),
        k=b.unsqueeze(2),
        value=value.unsqueeze(2),
        v=(v * rate).view(1, groups, shared, 1, -1),
        alpha=None,
        beta=None,
        rate=None,
        bias=None,
        dense=None,
        start=None,
        stop=stop,
        query_segment=None,
        key_segment=None,
        seed=None,
        numbers=torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64),
        sizes=[batch, groups, shared, queries, keys],
        activation="tanh",
    )
