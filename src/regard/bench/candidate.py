"""The interface of a benchmark candidate, and `Work`: a candidate bound to inputs.

B batch, H heads, Q queries, L keys, N hidden or dot dim, E value dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from regard.bench.settings import Setting
from regard.bench.tensors import Tensors

Family = Literal["ours", "textbook", "peer", "dot"]
FORWARD, BOTH = "forward", "forward+backward"
PASSES = (FORWARD, BOTH)
Step = Callable[[Tensor, Tensor, Tensor], Tensor]


class Prepared(NamedTuple):
    """A candidate ready to be called.

    Args:
        step: (queries, keys, values) to the output (B, H, Q, E).
        parameters: further leaf tensors that need gradients: v, in the shape the candidate stores it.
    """

    step: Step
    parameters: list[Tensor]


class Stated(NamedTuple):
    """The relative error that an approximate candidate declares for these inputs."""

    output: float = 0.0
    gradient: float = 0.0


class Held(NamedTuple):
    """The query-by-key tensors that a candidate holds at once in a backward pass.

    Args:
        tensors: about how many; 0 for a candidate that never builds one.
        shape: shape of each within one head, for messages.
        numbers: elements in each over all heads; decides whether a setting is large for it.
        itemsize: bytes per element.
    """

    tensors: int
    shape: str
    numbers: int
    itemsize: int

    @property
    def bytes(self) -> int:
        """Bytes of all these tensors together."""
        return self.tensors * self.numbers * self.itemsize

    def __str__(self) -> str:
        """Count and shape, such as `4 tensors [Q, L, hidden]`."""
        return f"{self.tensors} tensors {self.shape}"


class Candidate(ABC):
    """One implementation of attention to measure. A subclass describes it and prepares a call.

    Attributes:
        name: its name on the command line and in the results.
        family: "dot" candidates are the yardstick and compute a different formula.
        what: one line that says what runs, and so what a ratio over it means.
        stated: the error it declares beyond rounding.
        tensors: about how many query-by-key tensors it holds at once in a backward pass; `held`
            describes them.
        heavy: on a GPU, large settings are tried with a few heads first, because all heads may not fit
            or may be slow.
    """

    name: ClassVar[str]
    family: ClassVar[Family]
    what: ClassVar[str]
    stated: ClassVar[Stated] = Stated()
    tensors: ClassVar[int] = 0
    heavy: ClassVar[bool] = False

    def available(self, tensors: Tensors) -> str | None:
        """The reason it cannot run here; None if it can."""
        return None

    def no_backward(self, setting: Setting) -> str | None:
        """The reason it has no backward pass; None if it has one."""
        return None

    def held(self, setting: Setting) -> Held:
        """The tensors it holds: every hidden unit of every pair, unless a subclass overrides this."""
        itemsize = setting.torch_dtype.itemsize
        return Held(self.tensors, "[Q, L, hidden]", setting.numbers, itemsize)

    @abstractmethod
    def prepare(self, tensors: Tensors) -> Prepared:
        """The call with everything that is built once before timing."""

    def context(self) -> AbstractContextManager[object]:
        """A context entered around every call, including its backward pass."""
        return nullcontext()


class Work:
    """One candidate bound to one set of inputs, with functions that run its passes."""

    def __init__(self, candidate: Candidate, tensors: Tensors) -> None:
        self.candidate, self.tensors = candidate, tensors
        # Dot gets vectors of its own: its d=64 does not follow the hidden width of the setting.
        dot = candidate.family == "dot"
        self.query, self.key = (
            (tensors.dot_query, tensors.dot_key) if dot else (tensors.a, tensors.b)
        )
        self.step, parameters = candidate.prepare(tensors)
        self.leaves = [self.query, self.key, tensors.value, *parameters]

    def output(self) -> Tensor:
        """The output for all queries at once, or query by query if the setting is a loop."""
        key, value = self.key, self.tensors.value
        if not self.tensors.setting.loop:
            return self.step(self.query, key, value)
        steps = [self.step(query, key, value) for query in self.query.split(1, -2)]
        return torch.cat(steps, -2)

    def of(self, which: str) -> Callable[[], object]:
        """The function that runs the named pass."""
        return self.forward if which == FORWARD else self.both

    def forward(self) -> Tensor:
        """The output of a forward pass without gradients, as in inference."""
        with torch.no_grad(), self.candidate.context():
            return self.output()

    def both(self, grad: Tensor | None = None) -> tuple[Tensor, ...]:
        """The output and the gradient of every leaf, from a forward and a backward pass."""
        grad = self.tensors.grad if grad is None else grad
        with self.candidate.context():
            output = self.output()
            return (output.detach(), *torch.autograd.grad(output, self.leaves, grad))

    def first_steps(self, count: int) -> tuple[Tensor, ...]:
        """The gradients from both passes of the first `count` steps of a loop."""
        with self.candidate.context():
            queries = self.query.split(1, -2)[:count]
            steps = [self.step(query, self.key, self.tensors.value) for query in queries]
            output = torch.cat(steps, -2)
            return torch.autograd.grad(output, self.leaves, self.tensors.grad[..., :count, :])
