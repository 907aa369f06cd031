"""Graphs and calls that the tests of attention over edges share.

Shape legend: S sources, T targets, H heads, W width of queries and keys, C width of values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard import SortedEdges
from regard.engines.edges import operators
from regard.engines.edges.graph import divided
from regard.engines.edges.plain import attend_edges


class Shape(NamedTuple):
    """Sizes of a call; the value is the key where `columns` is None."""

    kind: str
    heads: int = 2
    width: int = 5
    columns: int | None = 3


SHAPES = {
    "GATv2": Shape("leaky_relu", 3, 4, None),
    "GATv2, own values": Shape("leaky_relu"),
    "GAT": Shape("leaky_relu", 2, 1, 7),
    "additive": Shape("tanh"),
    "dot": Shape("inner", 1, 8, 8),
}


def random(sources: int, targets: int, edges: int) -> Tensor:
    return torch.stack([torch.randint(sources, (edges,)), torch.randint(targets, (edges,))])


def made(edge_index: Tensor, nodes: int | tuple[int, int], self_loops: bool = False) -> SortedEdges:
    return SortedEdges.of(edge_index, nodes, self_loops=self_loops)


# Isolated nodes are in most of them.
GRAPHS: dict[str, Callable[[], SortedEdges]] = {
    "one set": lambda: made(random(9, 9, 30), 9),
    "two sets": lambda: made(random(5, 12, 30), (5, 12)),
    "two sets, more sources": lambda: made(random(12, 5, 30), (12, 5)),
    "self-loops added": lambda: made(random(6, 6, 40), 6, True),
    "self-loops added between two sets": lambda: made(random(4, 7, 30), (4, 7), True),
    "self-loops given": lambda: made(torch.arange(6).repeat(2, 2), 6),
    "multi-edges": lambda: made(torch.tensor([[1], [2]]).repeat(1, 50), 4),
    "a large target": lambda: made(torch.stack([torch.arange(200) % 7, torch.full((200,), 3)]), 7),
    "a large source": lambda: made(torch.stack([torch.full((200,), 3), torch.arange(200) % 7]), 7),
    "no edges": lambda: made(torch.zeros(2, 0, dtype=torch.long), 5),
    "no edges, self-loops added": lambda: made(torch.zeros(2, 0, dtype=torch.long), 5, True),
    "no targets": lambda: made(torch.zeros(2, 0, dtype=torch.long), (5, 0)),
    "no nodes": lambda: made(torch.zeros(2, 0, dtype=torch.long), 0),
}


def in_pieces(edges: SortedEdges, most: int = 16) -> SortedEdges:
    """The graph with nodes of more than `most` edges divided, as a GPU has it from 1024 on."""
    return replace(edges, into=divided(edges.into, most), out=divided(edges.out, most))


def inputs(
    edges: SortedEdges, shape: Shape, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> list[Tensor | None]:
    """Query, key, v and value."""
    s, h, w = shape, shape.heads, shape.width
    sizes = [(edges.targets, h, w), (edges.sources, h, w), (h, w), (edges.sources, h, s.columns)]
    given = (True, True, s.kind != "inner", s.columns is not None)
    return [
        torch.randn(size).to(device, dtype).requires_grad_() if there else None
        for size, there in zip(sizes, given, strict=True)
    ]


def results(
    tensors: list[Tensor | None], edges: SortedEdges, kind: str, grad: Tensor, run: Callable
) -> list[Tensor]:
    """Output and gradients."""
    output = run(*tensors, edges, kind, 0.3)
    wanted = [x for x in tensors if x is not None]
    return [output.detach(), *torch.autograd.grad(output, wanted, grad.to(output.dtype))]


def output_gradient(tensors: list[Tensor | None], shape: Shape) -> Tensor:
    query = tensors[0]
    assert query is not None
    return torch.randn(*query.shape[:2], shape.columns or shape.width).to(query.device)


def check(
    edges: SortedEdges,
    shape: Shape,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    terms: float = 1.0,
) -> list[Tensor]:
    """The kernels' results, compared with the plain formulas in fp64; `terms` is as large as what cancels."""
    tensors = inputs(edges, shape, dtype, device)
    grad = output_gradient(tensors, shape)
    found = results(tensors, edges, shape.kind, grad, operators.attend)
    exact = [None if x is None else x.detach().double().requires_grad_() for x in tensors]
    wanted = results(exact, edges, shape.kind, grad, attend_edges)
    for x, y in zip(found, wanted, strict=True):
        # Gradients are rounded once to the dtype of their input; terms of several units may cancel in them.
        eps = max(torch.finfo(x.dtype).eps, 8e-6)
        size = float(y.abs().max()) if y.numel() else 0.0
        torch.testing.assert_close(x.double(), y, rtol=0, atol=eps * max(size, terms))
    return found
