"""Attention over the edges of a graph: the sorted graph, the plain formulas, and kernels on CPU and GPU.

| file | what it is |
|---|---|
| `graph` | `SortedEdges`: the edges by target and by source, made once by the caller or in the call |
| `plain` | the formulas in PyTorch, edge by edge: the specification, in any dtype |
| `call` | `EdgeCall`: one lowered call; what kernels serve, and why not |
| `operators` | the kernels as registered operators, and their autograd |
| `cpu`, `cpu_kernels` | numba |
| `gpu`, `gpu_kernels` | Triton |

No kernel holds a tensor with a row of features for each edge, and none adds with atomics: each node is
summed by one program, or by several whose parts are added in a fixed order.
"""

from regard.engines.edges.graph import SortedEdges, SortedSide

__all__ = ["SortedEdges", "SortedSide"]
