"""Inputs for a shape, and `Workload`: a candidate bound to inputs, with the passes to time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.attention import attention, explain
from regard.choosing.cost.candidates import CostCandidate
from regard.choosing.cost.shape import Shape
from regard.engines.plan import Plan
from regard.mask import Mask
from regard.measuring import textbook
from regard.scores import Score


@dataclass
class WorkloadInputs:
    """Standard normal input tensors for a shape, the same for every candidate and device."""

    shape: Shape
    query: Tensor
    key: Tensor
    value: Tensor
    grad: Tensor

    @cached_property
    def keep(self) -> Tensor | None:
        """The causal mask as a boolean tensor, for the textbook formula; None without a mask."""
        s = self.shape
        if not s.causal:
            return None
        ones = torch.ones(s.len_q, s.len_k, dtype=torch.bool, device=self.query.device)
        return ones.tril(s.len_k - s.len_q)

    @property
    def mask(self) -> Mask | None:
        """The causal mask as a `Mask`, for the library; None without a mask."""
        return Mask.causal() if self.shape.causal else None


def make_inputs(shape: Shape, device: torch.device, seed: int) -> WorkloadInputs:
    """The inputs, drawn on the CPU so that every device gets the same numbers."""
    s, generator = shape, torch.Generator().manual_seed(seed)

    def draw(*size: int, grad: bool = True) -> Tensor:
        x = torch.randn(s.batch, *size, generator=generator)
        return x.to(device, s.torch_dtype).requires_grad_(grad)

    return WorkloadInputs(
        shape,
        draw(s.heads, s.len_q, s.d_q),
        draw(s.key_heads, s.len_k, s.d_k),
        draw(s.key_heads, s.len_k, s.d_v),
        draw(s.heads, s.len_q, s.d_v, grad=False),
    )


def make_score(candidate: CostCandidate, device: torch.device, seed: int) -> Score:
    """The candidate's score, whose initial weights depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return candidate.make().to(device, candidate.shape.torch_dtype)


class Workload:
    """One candidate bound to one set of inputs."""

    def __init__(self, candidate: CostCandidate, inputs: WorkloadInputs, seed: int) -> None:
        self.candidate, self.inputs = candidate, inputs
        self.score = make_score(candidate, inputs.query.device, seed)
        self.leaves = [inputs.query, inputs.key, inputs.value, *self.score.parameters()]

    def plan(self) -> Plan:
        """The library's plan for this call; raises ValueError if the score refuses the inputs."""
        x = self.inputs
        return explain(x.query, x.key, x.value, self.score, mask=x.mask)

    def run(self, query: Tensor | None = None) -> Tensor:
        """The output; `query` may hold fewer rows, to estimate the cost of a full call."""
        x = self.inputs
        if self.candidate.textbook:
            # Partial queries are the last rows, so they need the last rows of the mask.
            keep = x.keep if query is None or x.keep is None else x.keep[-query.shape[-2] :]
            q = x.query if query is None else query
            return textbook.attention(self.score, q, x.key, x.value, keep)
        q = x.query if query is None else query
        return attention(q, x.key, x.value, self.score, mask=x.mask)

    def forward(self) -> None:
        """Run a forward pass without gradients, as in inference."""
        with torch.no_grad():
            self.run()

    def both(self) -> None:
        """Run a forward and a backward pass to the inputs and the parameters."""
        torch.autograd.grad(self.run(), self.leaves, self.inputs.grad)
