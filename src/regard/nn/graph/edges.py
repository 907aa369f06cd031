"""Attention over given pairs only: scores, softmax and sums over the edges of a graph.

Every function here is a gather at the ends of the edges or a sum over the edges of a node. No tensor
is larger than (E, H, D), and no shape depends on the contents of a tensor. Everything therefore
compiles with a dynamic number of edges, and the host never waits for a GPU.

Shape legend: E edges, N nodes, H heads, D width for each head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.forms import Form, Inner
from regard.precision import working_dtype

# Reductions of a node's edge features to the feature of its added self-loop, by PyG's names.
FILLS = ("mean", "add", "min", "max", "mul")


class Edges(NamedTuple):
    """The edges that a layer attends over.

    Args:
        source: (E,) source node of each edge.
        target: (E,) target node of each edge.
        feature: (E, edge dim), or None.
        hidden: (E,), True for edges that are ignored, or None if there are none. Self-loops that were
            given are hidden and not removed, because removing them would make a shape depend on data.
    """

    source: Tensor
    target: Tensor
    feature: Tensor | None = None
    hidden: Tensor | None = None


def with_self_loops(
    edge_index: Tensor, feature: Tensor | None, nodes: int, fill: str | float | Tensor
) -> Edges:
    """Hide the self-loops given and append one for each of the first `nodes` nodes.

    The feature of an appended loop is `fill`, or the reduction of that name over the other edges
    that point to the node; for a node without other edges it is 0, for "mul" 1.
    """
    source, target = edge_index[0], edge_index[1]
    given = source == target
    loops = torch.arange(nodes, device=source.device)
    hidden = torch.cat([given, torch.zeros_like(loops, dtype=torch.bool)])
    if feature is not None:
        # The feature of a hidden edge must not be read: NaN in it would reach the gradients.
        feature = torch.where(given.unsqueeze(-1), 0, feature)
        if isinstance(fill, str):
            filled = _reduced(feature, torch.where(given, -1, target), nodes, fill)
        elif isinstance(fill, Tensor):
            filled = fill.to(feature.dtype).expand(nodes, feature.shape[-1])
        else:
            filled = feature.new_full((nodes, feature.shape[-1]), fill)
        feature = torch.cat([feature, filled])
    return Edges(torch.cat([source, loops]), torch.cat([target, loops]), feature, hidden)


def _reduced(feature: Tensor, target: Tensor, nodes: int, fill: str) -> Tensor:
    """Reduce (E, D) to (nodes, D); edges whose target is not among the nodes are left out."""
    work = feature.to(working_dtype(feature.dtype))
    # Edges that are left out go to an extra row, which is cut off at the end: no shape depends on
    # how many they are.
    row = torch.where((target < 0) | (target >= nodes), nodes, target)
    if fill in ("mean", "add"):
        # index_add has a deterministic mode on a GPU, the sum of scatter_reduce has none.
        total = sum_at(work, row, nodes + 1)
        if fill == "mean":
            total = total / sum_at(torch.ones_like(work[:, :1]), row, nodes + 1).clamp(min=1)
        return total[:nodes].to(feature.dtype)
    start = work.new_full((nodes + 1, work.shape[-1]), 1.0 if fill == "mul" else 0.0)
    row = row.unsqueeze(-1).expand_as(work)
    how = {"min": "amin", "max": "amax", "mul": "prod"}[fill]
    reduced = start.scatter_reduce(0, row, work, how, include_self=False)
    return reduced[:nodes].to(feature.dtype)


def edge_logits(form: Form, target: Tensor, source: Tensor | None) -> Tensor:
    """The score of every edge, (E, H), from a form whose tensors are (H, nodes, width).

    With `source` None the form has one key for each edge, in the order of the edges. Half precision
    is computed in fp32.
    """
    if isinstance(form, Inner):
        logits = (_ends(form.phi, target) * _ends(form.psi, source)).sum(-1) * form.scale
        for term, index in ((form.alpha, target), (form.beta, source)):
            if term is not None:
                logits = logits + _ends(term, index)
        return logits
    units = form.function.value(_ends(form.a, target) + _ends(form.b, source), form.parameter)
    return (units * form.v.squeeze(-2).to(units.dtype)).sum(-1)


def _ends(x: Tensor, index: Tensor | None) -> Tensor:
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


def only_read(x: Tensor, *indices: Tensor) -> Tensor:
    """X (N, D) with rows of 0 for nodes that no edge reads.

    What padding holds, NaN included, then stays out of the gradient of the projections, where
    0 * NaN would be NaN. Sparse features are returned as they are: padding would have no entries.
    """
    if x.layout != torch.strided:
        return x
    read = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
    for index in indices:
        read = read.index_fill(0, index, True)
    return torch.where(read.unsqueeze(-1), x, 0)
