"""The gradient that reaches queries, keys and values, read without touching a bit of it.

In eager mode a hook on the tensor reads its gradient: that of all its uses, where one tensor is
query and key at once. A compiled graph takes no such hooks. There an identity is put before the
call, whose backward reads what passes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.doctor.capture.shapes import as_heads
from regard.doctor.chart import Chart, Ticket

SIDES = ("query", "key", "value")


class GradientHooks:
    """Hooks on tensors; keeps those on leaves in hand, which would live as long as the leaf."""

    def __init__(self) -> None:
        self._on_leaves: dict[tuple[str, str], Any] = {}

    def read(self, chart: Chart, ticket: Ticket, sides: dict[str, Tensor], heads: int) -> None:
        """Record the gradients of these tensors when backward runs."""
        for side, x in sides.items():
            if not (x.requires_grad and torch.is_grad_enabled()):
                continue
            hook = _Hook(chart, ticket, side, heads)
            if not x.is_leaf:
                x.register_hook(hook)
                continue
            place = (ticket.site.name, side)
            if place in self._on_leaves:
                self._on_leaves[place].remove()
            self._on_leaves[place] = x.register_hook(hook)

    def clear(self) -> None:
        """Take the hooks off leaves."""
        for handle in self._on_leaves.values():
            handle.remove()
        self._on_leaves.clear()


class _Hook:
    """Reads the gradient of one tensor and returns nothing: the gradient stays as it is."""

    def __init__(self, chart: Chart, ticket: Ticket, side: str, heads: int) -> None:
        self.chart, self.ticket, self.side, self.heads = chart, ticket, side, heads

    def __call__(self, gradient: Tensor) -> None:
        self.chart.record_gradient(self.ticket, self.side, as_heads(gradient, self.heads))


class Tap(torch.autograd.Function):
    """The identity; its backward tells an operator what passes. For compiled graphs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ticket: Tensor, side: str) -> Tensor:
        """The same numbers in the same memory."""
        ctx.save_for_backward(ticket)
        ctx.side = side
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient as it came."""
        (ticket,) = ctx.saved_tensors
        return torch.ops.regard.doctor_gradient(gradients[0], ticket, ctx.side), None, None


def tapped(query: Tensor, key: Tensor, value: Tensor, ticket: Tensor) -> tuple[Tensor, ...]:
    """The three with their gradients read; as they are where they share a tensor.

    There the order in which its gradients are summed would change, and with it their last bits.
    """
    if query is key or key is value or query is value or not torch.is_grad_enabled():
        return query, key, value
    return tuple(
        Tap.apply(x, ticket, side) if x.requires_grad else x
        for side, x in zip(SIDES, (query, key, value), strict=True)
    )
