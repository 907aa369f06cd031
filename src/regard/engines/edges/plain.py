"""Attention over edges in PyTorch's own operations: gathers at the ends of edges, sums at their targets.

This is the specification of the kernels, in any dtype, differentiable as often as wanted. No tensor is
larger than (E, H, D), and no shape depends on the contents of a tensor. Everything therefore compiles
with a dynamic number of edges, and the host never waits for a GPU.

Shape legend: E edges, N nodes, H heads, D width for each head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.engines.edges.graph import SortedEdges
from regard.forms import Form, Inner, Pairwise
from regard.precision import working_dtype


def edge_logits(form: Form, target: Tensor, source: Tensor | None) -> Tensor:
    """The score of every edge, (E, H), from a form whose tensors are (H, nodes, width).

    With `source` None the form has one key for each edge, in the order of the edges. Half precision
    is computed in fp32.
    """
    if isinstance(form, Inner):
        logits = (ends(form.phi, target) * ends(form.psi, source)).sum(-1) * form.scale
        for term, index in ((form.alpha, target), (form.beta, source)):
            if term is not None:
                logits = logits + ends(term, index)
        return logits
    units = form.function.value(ends(form.a, target) + ends(form.b, source), form.parameter)
    return (units * form.v.squeeze(-2).to(units.dtype)).sum(-1)


def ends(x: Tensor, index: Tensor | None) -> Tensor:
    """X (H, N, ...) gathered at the nodes `index`: (E, H, ...)."""
    return at(x.transpose(0, 1), index)


def at(x: Tensor, index: Tensor | None) -> Tensor:
    """X (N, ...) gathered at the nodes `index`, None for all: (E, ...) in the working dtype.

    The cast comes before the gather, so that backward also sums in the working dtype.
    """
    x = x.to(working_dtype(x.dtype))
    return x if index is None else x.index_select(0, index)


def edge_softmax(logits: Tensor, target: Tensor, nodes: int) -> Tensor:
    """Softmax of (E, H) over the edges that share a target, separately for each head.

    The largest logit of each node is subtracted, so the sum of a node with a visible edge is at
    least 1 and needs no epsilon. -inf hides an edge; a node with only hidden edges has weights 0.
    NaN stays with its node and head. Half precision is computed and returned in fp32.
    """
    logits = logits.to(working_dtype(logits.dtype))
    index = target.unsqueeze(-1).expand_as(logits)
    # Softmax does not depend on what is subtracted, so no gradient needs to flow through the peak.
    fixed = logits.detach()
    peak = fixed.new_full((nodes, fixed.shape[-1]), -torch.inf)
    peak = peak.scatter_reduce(0, index, fixed, "amax")
    # Only hidden edges, or none: -inf - (-inf) would be NaN.
    peak = torch.where(peak == -torch.inf, 0, peak)
    share = torch.exp(logits - peak.index_select(0, target))
    total = sum_at(share, target, nodes)
    total = torch.where(total == 0, 1, total)
    return share / total.index_select(0, target)


def sum_at(x: Tensor, target: Tensor, nodes: int) -> Tensor:
    """Sum (E, ...) over the edges of each target: (nodes, ...), 0 for a node without edges."""
    return x.new_zeros(nodes, *x.shape[1:]).index_add(0, target, x)


def attend_edges(
    query: Tensor,
    key: Tensor,
    v: Tensor | None,
    value: Tensor | None,
    edges: SortedEdges,
    kind: str,
    number: float,
) -> Tensor:
    """What the operator `edges_forward` returns first, in these operations: (T, H, C).

    The arguments are those of the operator; see `operators`.
    """
    a, b = query.transpose(0, 1), key.transpose(0, 1)
    inner = v is None
    form = Inner(a, b, scale=number) if inner else Pairwise(a, b, v.unsqueeze(-2), kind, number)
    target = edges.ends()
    hidden = (target == edges.targets).unsqueeze(-1)
    known = target.clamp(max=max(edges.targets - 1, 0))
    source = edges.into.other
    logits = edge_logits(form, known, source).masked_fill(hidden, -torch.inf)
    weights = edge_softmax(logits, known, edges.targets)
    message = at(key if value is None else value, source) * weights.unsqueeze(-1)
    return sum_at(message.masked_fill(hidden.unsqueeze(-1), 0), known, edges.targets)
