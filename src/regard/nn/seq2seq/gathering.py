"""Gradients that all steps over a memory share, added up where steps write them.

Autograd would keep the gradients of keys and values of each step, each as large as the keys themselves, and add
them afterwards: three times the traffic. Here a step's backward adds to one tensor for all steps, and returns
nothing; the node behind them, which autograd runs when all steps are done, returns that tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Sums = tuple[Tensor, Tensor, Tensor]
# Backward passes whose sums are kept: one is at work, more only where passes are nested. A pass that wants no
# gradient of the memory leaves its sums behind, and they must not pile up.
MOST_PASSES = 4


class Gathering:
    """The sums of the steps over one memory, by backward pass: of keys, values, and copies of v.

    Args:
        finish: makes the gradient of v of its copies.
    """

    def __init__(self, finish: Callable[[Tensor], Tensor]) -> None:
        self.finish, self.sums = finish, {}  # type: dict[int, Sums]

    def memory(self, make: Callable[[], Sums]) -> tuple[Sums, bool]:
        """The sums of the backward pass at work, and whether they hold anything yet."""
        task = torch._C._current_graph_task_id()
        if task in self.sums:
            return self.sums[task], True
        if len(self.sums) >= MOST_PASSES:
            del self.sums[next(iter(self.sums))]
        self.sums[task] = found = make()
        return found, False

    def take(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients of the backward pass at work, which are given away."""
        found = self.sums.pop(torch._C._current_graph_task_id(), None)
        if found is None:
            return None, None, None
        of_keys, of_values, copies = found
        return of_keys, of_values, self.finish(copies)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have none: they are of other tensors."""
        return (type(None), ())


class SharedMemory(torch.autograd.Function):
    """Keys, values and v as they are; the gradient is what the steps have added up, and what else arrives."""

    @staticmethod
    def forward(ctx, gathering, *given: Tensor) -> tuple[Tensor, ...]:
        """Views of all."""
        ctx.gathering = gathering
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in given)

    @staticmethod
    def backward(ctx, *given):  # type: ignore[override] # fixed arity
        """The gradients of keys, values and v."""
        sums = zip(ctx.gathering.take(), given, strict=True)
        return None, *(x if y is None else y if x is None else x + y for x, y in sums)
