"""`EdgeCall`: one lowered call over edges, and what kernels serve of it.

Shape legend: E edges, S sources, T targets, H heads, W width of queries and keys, C width of values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.engines.edges.graph import SortedEdges, sorted_edges
from regard.forms import Form, Inner, Pairwise
from regard.observed import in_forward_mode, is_plain, is_transformed
from regard.precision import widened

KERNEL_ACTIVATIONS = ("tanh", "leaky_relu")
# Beyond this a tile of one edge takes more registers than a thread has.
WIDEST = 1024


@dataclass(frozen=True)
class EdgeCall:
    """A call of attention over edges, lowered.

    Args:
        form: the score; its tensors are (H, nodes, width). None where edge features make a key for each
            edge.
        value: (S, H, C).
        edges: the edges, sorted or as (2, E).
        sources: S.
        targets: T.
        self_loops: whether self-loops are replaced by one for each node.
        softcap: of the score.
        dropout: the probability in force, 0 in evaluation.
        weights: whether the weight of each edge is wanted.
    """

    form: Form | None
    value: Tensor
    edges: SortedEdges | Tensor
    sources: int
    targets: int
    self_loops: bool
    softcap: float | None = None
    dropout: float = 0.0
    weights: bool = False

    @property
    def heads(self) -> int:
        """H."""
        return self.value.shape[1]

    @property
    def count(self) -> int:
        """E, added self-loops included."""
        if isinstance(self.edges, SortedEdges):
            return self.edges.edges
        return self.edges.shape[1] + self.self_loops * min(self.sources, self.targets)

    @property
    def work(self) -> int:
        """Numbers that all edges together read: their number x H x (W + C)."""
        width = 0 if self.form is None else self.form.query.shape[-1]
        return self.count * self.heads * (width + self.value.shape[-1])

    @property
    def device(self) -> torch.device:
        """Of all tensors."""
        return self.value.device

    @property
    def dtype(self) -> torch.dtype:
        """The widest dtype of its tensors."""
        tensors = (
            [self.value] if self.form is None else [self.form.query, self.form.key, self.value]
        )
        return max((x.dtype for x in tensors), key=lambda kind: kind.itemsize)

    def describe(self) -> str:
        """One line for `explain`."""
        form = "features of edges in the keys" if self.form is None else self.form.describe()
        return f"{form}, over {self.count} edges"

    def sorted(self) -> SortedEdges:
        """The edges, sorted now if they were not."""
        if isinstance(self.edges, SortedEdges):
            return self.edges
        return sorted_edges(self.edges, self.sources, self.targets, self.self_loops)

    def operands(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, str, float]:
        """Query (T, H, W), key (S, H, W), v (H, W), value, the kind of score and its number.

        The value is None where it is the key: kernels then read a source once and not twice.
        """
        form, value = self.form, self.value
        if isinstance(form, Pairwise):
            v, kind, number = form.v.squeeze(-2), form.activation, form.parameter
            query, key = (x.transpose(0, 1) for x in (form.a, form.b))
            if is_same_tensor(key, value):
                return query, key, v, None, kind, number
            return query, key, v, value, kind, number
        assert isinstance(form, Inner)
        query, key = form.phi, form.psi
        if form.beta is not None:
            # A term of the key is one more feature, too precise for half precision; the softmax cancels
            # a term of the query.
            query, key = widened(query), widened(key)
            ones = query.new_full((*query.shape[:-1], 1), 1 / form.scale)
            query = torch.cat([query, ones], -1)
            key = torch.cat([key, form.beta.to(key.dtype).expand(key.shape[:-1]).unsqueeze(-1)], -1)
        return query.transpose(0, 1), key.transpose(0, 1), None, value, "inner", form.scale


def is_same_tensor(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are the same numbers in memory."""
    same = (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)
    return same and x.data_ptr() == y.data_ptr()


def common_refusals(call: EdgeCall) -> list[str]:
    """Reasons why no kernel serves the call, whatever the device; empty if one may."""
    form, reasons = call.form, []
    if form is None:
        reasons.append("edge features add to the keys, so that each edge has a key of its own")
    if call.weights:
        reasons.append("the weight of each edge is wanted, which kernels do not keep")
    if call.dropout:
        reasons.append(f"kernels have no dropout of weights, here {call.dropout}")
    if call.softcap is not None:
        reasons.append(f"kernels have no soft cap, here {call.softcap}")
    if form is not None:
        if isinstance(form, Pairwise) and form.activation not in KERNEL_ACTIVATIONS:
            reasons.append(f"kernels have no activation {form.activation!r}")
        if form.query.shape[0] != call.heads or form.key.shape[0] != call.heads:
            reasons.append("the lowered score has another number of heads than the values")
        widest = max(form.query.shape[-1], call.value.shape[-1])
        if widest > WIDEST:
            reasons.append(f"width {widest} for each head is beyond the {WIDEST} of kernels")
    if call.dtype == torch.float64:
        reasons.append("kernels compute in fp32, which float64 inputs are too precise for")
    return reasons + observed(call)


def observed(call: EdgeCall) -> list[str]:
    """Reasons that lie in how the call is made: what transforms and differentiates it."""
    tensors = [call.value, *(() if call.form is None else (call.form.query, call.form.key))]
    if torch.compiler.is_compiling():
        return ["a compiled or exported graph traces PyTorch's own operations"]
    if is_transformed():
        return ["transforms of torch.func and tracers need PyTorch's own operations"]
    if in_forward_mode():
        return ["forward-mode derivatives do not pass through kernels"]
    if not all(map(is_plain, tensors)):
        return ["a subclass of Tensor needs PyTorch's own operations"]
    return []
