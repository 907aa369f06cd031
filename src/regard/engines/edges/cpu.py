"""The CPU's side of the operators over edges: divides nodes into ranges, and calls numba's kernels.

Ranges of nodes follow from the graph and the sizes alone, and what a range adds to a gradient that all share
is added up in their order. The bits of a result therefore do not depend on the number of threads.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from regard.engines.edges.graph import SortedSide
from regard.engines.edges.operators import sides
from regard.engines.native import run

KINDS = {"tanh": 0, "leaky_relu": 1, "inner": 2}
# Ranges: many enough that a thread that is interrupted does not keep the others waiting, and each with work
# for longer than it takes to call a kernel (20 microseconds).
MOST_RANGES = 64
LEAST_WORK = 2**15


@functools.cache
def kernels() -> ModuleType:
    """The module with the kernels, which imports numba."""
    from regard.engines.edges import cpu_kernels

    return cpu_kernels


def ranges(side: SortedSide, width: int) -> list[tuple[int, int]]:
    """Ranges of nodes with about as many edges and nodes each; `width` numbers are read for an edge."""
    starts = side.starts.numpy()
    load = starts + np.arange(len(starts))
    count = min(max(int(load[-1]) * width // LEAST_WORK, 1), MOST_RANGES)
    ends = np.searchsorted(load, np.linspace(0, load[-1], count + 1)[1:-1]).tolist()
    bounds = [0, *ends, len(starts) - 1]
    return [(low, high) for low, high in itertools.pairwise(bounds) if low < high]


def each(parts: Sequence[tuple[int, int]], work: Callable[[int, int, int], None]) -> None:
    """Call `work(number, low, high)` for every range, on several threads."""
    run(lambda number: work(number, *parts[number]), len(parts))


def array(x: Tensor) -> np.ndarray:
    """The numbers of a tensor in fp32, in order."""
    return x.detach().to(torch.float32).contiguous().numpy()


def new(*size: int) -> Tensor:
    """A tensor in fp32 that is not filled: from PyTorch, so that its memory is counted with PyTorch's."""
    return torch.empty(size, dtype=torch.float32)


def forms(
    query: Tensor, key: Tensor, v: Tensor | None, value: Tensor | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys, v and values as kernels take them; v is not read where there is none."""
    b = array(key)
    w = np.empty((1, 1), np.float32) if v is None else array(v)
    return array(query), b, w, b if value is None else array(value)


def edges_forward(
    query: Tensor,
    key: Tensor,
    v: Tensor | None,
    value: Tensor | None,
    graph: Sequence[Tensor],
    kind: str,
    number: float,
) -> tuple[Tensor, Tensor]:
    """Output and LSE; see `operators`."""
    into, _ = sides(graph)
    a, b, w, x = forms(query, key, v, value)
    output, lse = new(*a.shape[:2], x.shape[2]), new(*a.shape[:2])
    score = (KINDS[kind], np.float32(number))
    given = (
        into.starts.numpy(),
        into.other.numpy(),
        a,
        b,
        w,
        x,
        value is None,
        output.numpy(),
        lse.numpy(),
    )
    forward = kernels().forward

    each(
        ranges(into, a[0:1].size + x[0:1].size),
        lambda _, low, high: forward(*score, low, high, *given),
    )
    return output, lse


def edges_backward(
    query: Tensor,
    key: Tensor,
    v: Tensor | None,
    value: Tensor | None,
    graph: Sequence[Tensor],
    kind: str,
    number: float,
    output: Tensor,
    lse: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, v and value; see `operators`."""
    into, out = sides(graph)
    a, b, w, x = forms(query, key, v, value)
    dy, score = array(grad), (KINDS[kind], np.float32(number))
    width = a[0:1].size + x[0:1].size
    factor = np.full(a.shape[1:], number, np.float32) if v is None else w
    share, slope = (new(into.other.shape[0], a.shape[1]).numpy() for _ in range(2))

    da, db, targets = new(*a.shape), new(*b.shape), ranges(into, width)
    dv = np.zeros((len(targets), *w.shape), np.float32)
    given = (into.starts.numpy(), into.other.numpy(), a, b, w, factor, x, value is None)
    given = (*given, output.numpy(), lse.numpy(), dy)
    da_numbers, of_targets = da.numpy(), kernels().backward_targets
    each(
        targets,
        lambda n, low, high: of_targets(*score, low, high, *given, share, slope, da_numbers, dv[n]),
    )

    dx = db if value is None else new(*x.shape)
    given = (
        *(t.numpy() for t in out[:3]),
        a,
        b,
        factor,
        dy,
        share,
        slope,
        db.numpy(),
        dx.numpy(),
        value is None,
    )
    of_sources = kernels().backward_sources
    each(ranges(out, width), lambda _, low, high: of_sources(*score, low, high, *given))

    none = new(0)
    vector = none if v is None else torch.from_numpy(dv.sum(0))
    return da, db, vector, none if value is None else dx


def sort_edges(
    edge_index: Tensor, sources: int, targets: int, loops: int, hide: bool, kind: torch.dtype
) -> tuple[SortedSide, SortedSide]:
    """The edges by target and by source; see `graph.sorted_edges`, whose order this is.

    It counts, on one thread: PyTorch's sort and gathers take six times as long, and far longer beside other
    busy processes, since their threads wait for one another.
    """
    edges = edge_index.shape[1] + loops
    sizes = (targets + 1, edges, edges, sources + 1, edges, edges)
    found = [torch.empty(size, dtype=kind) for size in sizes]
    arrays = (x.numpy() for x in found)
    kernels().sort_edges(edge_index.contiguous().numpy(), loops, hide, *arrays)
    return sides(found)
