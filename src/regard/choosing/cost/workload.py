"""Inputs of a shape, and a candidate as two functions that can be run and timed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.attention import attention, explain
from regard.choosing.cost.candidates import Candidate
from regard.choosing.cost.shape import Shape
from regard.engines.plan import Plan
from regard.mask import Mask
from regard.measuring import textbook
from regard.scores import Score


@dataclass
class Inputs:
    """Standard normal tensors of a shape, the same for every candidate and device."""

    shape: Shape
    query: Tensor
    key: Tensor
    value: Tensor
    grad: Tensor

    @cached_property
    def keep(self) -> Tensor | None:
        """The causal mask as booleans, which is how the textbook takes it."""
        s = self.shape
        if not s.causal:
            return None
        ones = torch.ones(s.len_q, s.len_k, dtype=torch.bool, device=self.query.device)
        return ones.tril(s.len_k - s.len_q)

    @property
    def mask(self) -> Mask | None:
        """The causal mask as the library takes it."""
        return Mask.causal() if self.shape.causal else None


def make_inputs(shape: Shape, device: torch.device, seed: int) -> Inputs:
    """Draw the inputs on the CPU, so that every device gets the same numbers."""
    s, generator = shape, torch.Generator().manual_seed(seed)

    def draw(*size: int, grad: bool = True) -> Tensor:
        x = torch.randn(s.batch, *size, generator=generator)
        return x.to(device, s.torch_dtype).requires_grad_(grad)

    return Inputs(
        shape,
        draw(s.heads, s.len_q, s.d_q),
        draw(s.key_heads, s.len_k, s.d_k),
        draw(s.key_heads, s.len_k, s.d_v),
        draw(s.heads, s.len_q, s.d_v, grad=False),
    )


def make_score(candidate: Candidate, device: torch.device, seed: int) -> Score:
    """Build the score; its first weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return candidate.make().to(device, candidate.shape.torch_dtype)


class Workload:
    """One candidate on one set of inputs."""

    def __init__(self, candidate: Candidate, inputs: Inputs, seed: int) -> None:
        self.candidate, self.inputs = candidate, inputs
        self.score = make_score(candidate, inputs.query.device, seed)
        self.leaves = [inputs.query, inputs.key, inputs.value, *self.score.parameters()]

    def plan(self) -> Plan:
        """What the library says it would do; raises ValueError where the score refuses."""
        x = self.inputs
        return explain(x.query, x.key, x.value, self.score, mask=x.mask)

    def run(self, query: Tensor | None = None) -> Tensor:
        """The output; `query` may be fewer rows, to see what the rest would cost."""
        x = self.inputs
        if self.candidate.textbook:
            keep = x.keep if query is None or x.keep is None else x.keep[-query.shape[-2] :]
            q = x.query if query is None else query
            return textbook.attention(self.score, q, x.key, x.value, keep)
        q = x.query if query is None else query
        return attention(q, x.key, x.value, self.score, mask=x.mask)

    def forward(self) -> None:
        """A forward pass, as in inference."""
        with torch.no_grad():
            self.run()

    def both(self) -> None:
        """A forward and a backward pass to the inputs and the parameters."""
        torch.autograd.grad(self.run(), self.leaves, self.inputs.grad)
