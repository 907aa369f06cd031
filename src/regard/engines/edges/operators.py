"""The kernels over edges as registered operators, and their autograd.

Both operators take the same first operands:

    query (T, H, W), key (S, H, W)      contiguous, of any float dtype
    v (H, W)                            None for inner products
    value (S, H, C)                     None where the key is the value
    graph                               see `flat`
    kind                                "tanh", "leaky_relu" or "inner"
    number                              the slope of LeakyReLU; for "inner" the factor of the product

`edges_forward` returns the output (T, H, C) and the LSE (T, H), +inf where a node sees nothing, so that
`exp(logit - lse)` is 0. `edges_backward` returns the gradients of query, key, v and value, empty for None.
All results are fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.engines.edges.call import EdgeCall
from regard.engines.edges.graph import EdgePieces, SortedEdges, SortedSide
from regard.engines.edges.plain import attend_edges
from regard.observed import is_plain

OPERANDS = (
    "Tensor query, Tensor key, Tensor? v, Tensor? value, Tensor[] graph, str kind, float number"
)
SIGNATURES = {
    "edges_forward": f"({OPERANDS}) -> (Tensor, Tensor)",
    "edges_backward": (
        f"({OPERANDS}, Tensor output, Tensor lse, Tensor grad) -> (Tensor, Tensor, Tensor, Tensor)"
    ),
}
LIBRARY = torch.library.Library("regard", "FRAGMENT")


def flat(edges: SortedEdges) -> list[Tensor]:
    """The sorted graph as a list: 3 tensors for each side, or 10 where it has pieces."""
    found: list[Tensor] = []
    for side in (edges.into, edges.out):
        found += side[:3]
    if edges.into.pieces is not None and edges.out.pieces is not None:
        found += [*edges.into.pieces, *edges.out.pieces]
    return found


def sides(graph: Sequence[Tensor]) -> tuple[SortedSide, SortedSide]:
    """The two sides of a graph that `flat` laid out."""
    into, out = SortedSide(graph[0], graph[1], graph[2]), SortedSide(graph[3], graph[4], graph[5])
    if len(graph) > 6:
        into, out = (
            into._replace(pieces=EdgePieces(*graph[6:13])),
            out._replace(pieces=EdgePieces(*graph[13:])),
        )
    return into, out


def forward_fake(
    query: Tensor,
    key: Tensor,
    v: Tensor | None,
    value: Tensor | None,
    graph: Sequence[Tensor],
    kind: str,
    number: float,
) -> tuple[Tensor, Tensor]:
    """Shapes of what `edges_forward` returns."""
    width = (key if value is None else value).shape[-1]
    shape = query.shape[:2]
    return query.new_empty(*shape, width, dtype=torch.float32), query.new_empty(
        shape, dtype=torch.float32
    )


def backward_fake(
    query: Tensor,
    key: Tensor,
    v: Tensor | None,
    value: Tensor | None,
    *rest: object,
) -> tuple[Tensor, ...]:
    """Shapes of what `edges_backward` returns."""
    return tuple(
        query.new_empty(0 if x is None else x.shape, dtype=torch.float32)
        for x in (query, key, v, value)
    )


def contiguous(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors as kernels read them."""
    return [None if x is None else x.contiguous() for x in tensors]


def on_cpu(name: str) -> Callable:
    """The kernel for tensors on the CPU: numba, or Triton's interpreter where tests ask for it."""

    def run(*operands: object) -> object:
        from regard.engines.edges import cpu, gpu

        return getattr(gpu if gpu.INTERPRETS else cpu, name)(*operands)

    return run


def on_gpu(name: str) -> Callable:
    """The Triton kernel."""

    def run(*operands: object) -> object:
        from regard.engines.edges import gpu

        return getattr(gpu, name)(*operands)

    return run


def register() -> None:
    """Register both operators."""
    fakes = {"edges_forward": forward_fake, "edges_backward": backward_fake}
    for name, signature in SIGNATURES.items():
        LIBRARY.define(name + signature)
        LIBRARY.impl(name, on_cpu(name), "CPU")
        LIBRARY.impl(name, on_gpu(name), "CUDA")
        torch.library.register_fake(f"regard::{name}", fakes[name], lib=LIBRARY)


register()


class EdgeAttention(torch.autograd.Function):
    """`edges_forward` and its gradient; further derivatives in PyTorch's own operations."""

    @staticmethod
    def forward(ctx, query, key, v, value, edges, kind, number):  # type: ignore[override]
        """The output (T, H, C) in fp32."""
        operands = (query, key, v, value)
        graph = flat(edges)
        output, lse = torch.ops.regard.edges_forward(*operands, graph, kind, number)
        ctx.save_for_backward(*operands, output, lse)
        ctx.call = edges, graph, kind, number
        return output

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override] # fixed arity
        """Gradients in the dtypes of the inputs."""
        *operands, output, lse = ctx.saved_tensors
        edges, graph, kind, number = ctx.call
        wanted = ctx.needs_input_grad[:4]
        if torch.is_grad_enabled() or not is_plain(grad):
            # Derivatives of these gradients are wanted, or many gradients at once.
            found = plain_gradients(operands, wanted, edges, kind, number, grad)
        else:
            found = torch.ops.regard.edges_backward(
                *operands, graph, kind, number, output, lse, grad.contiguous()
            )
        grads = [
            x.to(given.dtype) if given is not None and want and x is not None else None
            for x, given, want in zip(found, operands, wanted, strict=True)
        ]
        return (*grads, None, None, None)


def plain_gradients(
    operands: Sequence[Tensor | None],
    wanted: Sequence[bool],
    edges: SortedEdges,
    kind: str,
    number: float,
    grad: Tensor,
) -> list[Tensor | None]:
    """The gradients of the wanted operands in PyTorch's operations, themselves differentiable."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that each gradient is that of one operand and not of what several were made from.
        own = [
            None if x is None else x.view_as(x) if x.requires_grad else x.detach() for x in operands
        ]
        asked = [x for x, want in zip(own, wanted, strict=True) if x is not None and want]
        query, key, v, value = own
        assert query is not None and key is not None
        output = attend_edges(query, key, v, value, edges, kind, number)
        found = iter(
            torch.autograd.grad(output, asked, grad, create_graph=again, allow_unused=True)
        )
    return [
        next(found) if x is not None and want else None for x, want in zip(own, wanted, strict=True)
    ]


def attend(
    query: Tensor,
    key: Tensor,
    v: Tensor | None,
    value: Tensor | None,
    edges: SortedEdges,
    kind: str,
    number: float,
) -> Tensor:
    """The output (T, H, C) in fp32, by the kernels of the tensors' device."""
    query, key, v, value = contiguous(query, key, v, value)  # type: ignore[assignment]
    given = (query, key, v, value)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        return EdgeAttention.apply(*given, edges, kind, number)  # type: ignore[return-value]
    return torch.ops.regard.edges_forward(*given, flat(edges), kind, number)[0]


def attend_by_kernels(call: EdgeCall) -> Tensor:
    """The output (T, H, C) in fp32 of a call that kernels serve."""
    query, key, v, value, kind, number = call.operands()
    return attend(query, key, v, value, call.sorted(), kind, number)
