"""Reads the gradients that reach queries, keys and values, without changing a bit of them.

In eager mode a hook on the tensor reads its gradient; where one tensor is both query and key, that
is the sum over both uses. A compiled graph takes no such hooks: there an identity is put before the
call, and its backward reads the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.doctor.capture.shapes import as_heads
from regard.doctor.chart import ASKED, DETACHED, NO_GRAD, UNREAD, Chart, Ticket

SIDES = ("query", "key", "value")


class GradientHooks:
    """Hooks on tensors that read their gradients.

    Hooks on leaves are kept, so that they can be removed: they would live as long as the leaf.
    """

    def __init__(self) -> None:
        self._on_leaves: dict[tuple[str, str], Any] = {}

    def read(self, chart: Chart, ticket: Ticket, sides: dict[str, Tensor], heads: int) -> None:
        """Record the gradients of these tensors when backward runs."""
        recording = torch.is_grad_enabled()
        for side, x in sides.items():
            asked = x.requires_grad and recording
            # Whether a side was cut off before the call or after it: only here is that known. A pass
            # without gradients beside those of training, as a validation, says nothing.
            before = ticket.site.asked.get(side)
            if before is None or (recording and before != UNREAD):
                ticket.site.asked[side] = ASKED if asked else DETACHED if recording else NO_GRAD
            if not asked:
                continue
            hook = _Hook(chart, ticket, side, heads)
            if not x.is_leaf:
                x.register_hook(hook)
                continue
            # The leaf still has its hook of the step before: replace it, or hooks would pile up.
            place = (ticket.site.name, side)
            if place in self._on_leaves:
                self._on_leaves[place].remove()
            self._on_leaves[place] = x.register_hook(hook)

    def clear(self) -> None:
        """Remove the hooks on leaves."""
        for handle in self._on_leaves.values():
            handle.remove()
        self._on_leaves.clear()


class _Hook:
    """Reads the gradient of one tensor. Returns None, which leaves the gradient unchanged."""

    def __init__(self, chart: Chart, ticket: Ticket, side: str, heads: int) -> None:
        self.chart, self.ticket, self.side, self.heads = chart, ticket, side, heads

    def __call__(self, gradient: Tensor) -> None:
        self.chart.record_gradient(self.ticket, self.side, as_heads(gradient, self.heads))


class Tap(torch.autograd.Function):
    """The identity; its backward passes the gradient to an operator. For compiled graphs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ticket: Tensor, side: str) -> Tensor:
        """A view of the input."""
        ctx.save_for_backward(ticket)
        ctx.side = side
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient, unchanged."""
        (ticket,) = ctx.saved_tensors
        return torch.ops.regard.doctor_gradient(gradients[0], ticket, ctx.side), None, None


def tapped(query: Tensor, key: Tensor, value: Tensor, ticket: Tensor) -> tuple[Tensor, ...]:
    """Query, key and value with taps that read their gradients; unchanged where two are one tensor.

    A tap on a shared tensor would change the order in which its gradients are summed, and so their
    last bits.
    """
    if query is key or key is value or query is value or not torch.is_grad_enabled():
        return query, key, value
    return tuple(
        Tap.apply(x, ticket, side) if x.requires_grad else x
        for side, x in zip(SIDES, (query, key, value), strict=True)
    )
