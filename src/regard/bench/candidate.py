"""What a candidate is, and a candidate on inputs as functions that can be run.

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
        parameters: further leaves that want gradients; v, in whatever shape it is held.
    """

    step: Step
    parameters: list[Tensor]


class Stated(NamedTuple):
    """The relative error that an approximate candidate says it makes, at these inputs."""

    output: float = 0.0
    gradient: float = 0.0


class Held(NamedTuple):
    """The tensors of all pairs that a candidate holds at once in a backward pass.

    Args:
        tensors: about how many; 0 for what never builds one.
        shape: of each in one head, for a person.
        numbers: in each, of all heads: by these a setting is large for it.
        itemsize: bytes of a number.
    """

    tensors: int
    shape: str
    numbers: int
    itemsize: int

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return self.tensors * self.numbers * self.itemsize

    def __str__(self) -> str:
        """Such as `4 tensors [Q, L, hidden]`."""
        return f"{self.tensors} tensors {self.shape}"


class Candidate(ABC):
    """One way to compute attention. A subclass says what it is and prepares a call.

    Attributes:
        name: on the command line and in the results.
        family: "dot" candidates are the yardstick and compute another formula.
        what: one line for a person: what runs, and so what a ratio over it is a ratio of.
        stated: the error it says it makes beyond that of rounding.
        tensors: about how many tensors of all pairs it holds at once in a backward pass; what
            tensors those are says `held`.
        heavy: on a GPU a few heads of a large setting are tried first: all may not fit, or be slow.
    """

    name: ClassVar[str]
    family: ClassVar[Family]
    what: ClassVar[str]
    stated: ClassVar[Stated] = Stated()
    tensors: ClassVar[int] = 0
    heavy: ClassVar[bool] = False

    def available(self, tensors: Tensors) -> str | None:
        """Why it cannot run here; None if it can."""
        return None

    def no_backward(self, setting: Setting) -> str | None:
        """Why it has no backward pass; None if it has."""
        return None

    def held(self, setting: Setting) -> Held:
        """What it holds: every hidden unit of every pair, unless a subclass says otherwise."""
        itemsize = setting.torch_dtype.itemsize
        return Held(self.tensors, "[Q, L, hidden]", setting.numbers, itemsize)

    @abstractmethod
    def prepare(self, tensors: Tensors) -> Prepared:
        """Build what is built once."""

    def context(self) -> AbstractContextManager[object]:
        """Entered around every call, its backward pass included."""
        return nullcontext()


class Work:
    """One candidate on one set of inputs."""

    def __init__(self, candidate: Candidate, tensors: Tensors) -> None:
        self.candidate, self.tensors = candidate, tensors
        dot = candidate.family == "dot"
        self.query, self.key = (
            (tensors.dot_query, tensors.dot_key) if dot else (tensors.a, tensors.b)
        )
        self.step, parameters = candidate.prepare(tensors)
        self.leaves = [self.query, self.key, tensors.value, *parameters]

    def output(self) -> Tensor:
        """All queries at once, or one after the other where the setting is a loop."""
        key, value = self.key, self.tensors.value
        if not self.tensors.setting.loop:
            return self.step(self.query, key, value)
        steps = [self.step(query, key, value) for query in self.query.split(1, -2)]
        return torch.cat(steps, -2)

    def of(self, which: str) -> Callable[[], object]:
        """The function that runs a pass."""
        return self.forward if which == FORWARD else self.both

    def forward(self) -> Tensor:
        """A forward pass, as in inference."""
        with torch.no_grad(), self.candidate.context():
            return self.output()

    def both(self, grad: Tensor | None = None) -> tuple[Tensor, ...]:
        """A forward and a backward pass: the output, then the gradient of every leaf."""
        grad = self.tensors.grad if grad is None else grad
        with self.candidate.context():
            output = self.output()
            return (output.detach(), *torch.autograd.grad(output, self.leaves, grad))

    def first_steps(self, count: int) -> tuple[Tensor, ...]:
        """Both passes of the first steps of a loop."""
        with self.candidate.context():
            queries = self.query.split(1, -2)[:count]
            steps = [self.step(query, self.key, self.tensors.value) for query in queries]
            output = torch.cat(steps, -2)
            return torch.autograd.grad(output, self.leaves, self.tensors.grad[..., :count, :])
