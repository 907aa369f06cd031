"""Gradients of keys and values that all steps over a memory share: added up where steps write them.

Autograd would keep the gradient of each step, as large as the keys themselves, and add them afterwards: three
times the traffic. Here a step's backward adds to one tensor for all steps, and returns nothing; the node behind
them, which autograd runs when all steps are done, returns that tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from regard.engines import step_plan
from regard.forms import PairwiseKey
from regard.nn.seq2seq.memory import Memory
from regard.observed import is_observed

# Backward passes whose sums are kept: one is at work, more only where passes are nested. A pass that wants no
# gradient of the memory leaves its sums behind, and they must not pile up.
MOST_PASSES = 4


class Gathering:
    """The sums of the steps over one memory, by backward pass."""

    def __init__(self) -> None:
        self.sums: dict[int, tuple[Tensor, Tensor]] = {}
        self.sides: Callable[[], Tensor | None] | None = None
        self.values: Callable[[], Tensor | None] | None = None

    def watch(self, b: Tensor, value: Tensor) -> None:
        """Remember the tensors of the memory; weakly, since their graph holds this object."""
        self.sides, self.values = weakref.ref(b), weakref.ref(value)

    def is_of(self, b: Tensor, value: Tensor) -> bool:
        """Whether these are the tensors of the memory, and not what a term or the caller made of them."""
        if self.sides is None or self.values is None:
            return False
        return self.sides() is b and self.values() is value

    def memory(
        self, make: Callable[[], tuple[Tensor, Tensor]]
    ) -> tuple[tuple[Tensor, Tensor], bool]:
        """The sums of the backward pass at work, and whether they hold anything yet."""
        task = torch._C._current_graph_task_id()
        if task in self.sums:
            return self.sums[task], True
        if len(self.sums) >= MOST_PASSES:
            del self.sums[next(iter(self.sums))]
        self.sums[task] = found = make()
        return found, False

    def take(self) -> tuple[Tensor | None, Tensor | None]:
        """The sums of the backward pass at work, which are given away."""
        return self.sums.pop(torch._C._current_graph_task_id(), (None, None))


class Shared(torch.autograd.Function):
    """Keys and values as they are; the gradient is what the steps have added up, and what else arrives."""

    @staticmethod
    def forward(ctx, gathering, b, value) -> tuple[Tensor, Tensor]:
        """Views of both."""
        ctx.gathering = gathering
        ctx.set_materialize_grads(False)
        return b.view_as(b), value.view_as(value)

    @staticmethod
    def backward(ctx, *given):  # type: ignore[override] # fixed arity
        """The gradients of keys and values."""
        found = ctx.gathering.take()
        sums = [
            x if y is None else y if x is None else x + y for x, y in zip(found, given, strict=True)
        ]
        return None, *sums


def gathered(memory: Memory) -> Memory:
    """The memory with a place for the gradients of its steps, where kernels add to it; else as it is."""
    side, value = memory.side, memory.value
    if not torch.is_grad_enabled() or not isinstance(side, PairwiseKey):
        return memory
    if not (side.b.requires_grad or value.requires_grad) or side.b.shape[1] != 1:
        return memory
    if is_observed((side.b, value)) or not step_plan.serves(side.b, value):
        return memory
    gathering = Gathering()
    b, value = Shared.apply(gathering, side.b, value)  # type: ignore[not-iterable] # untyped
    gathering.watch(b, value)
    return memory._replace(side=PairwiseKey(b), value=value, gathering=gathering)
