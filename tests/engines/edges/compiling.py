"""Compiles the kernels over edges for a GPU that need not be there, and says what they take of it.

    python tests/engines/edges/compiling.py 90 "GATv2, 8 x 16"

As `tests/engines/triton/compiling.py`: kernels are compiled and not run. One line of JSON for each kernel.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "triton"))
from compiling import compile_only, taken

FP32, BF16 = torch.float32, torch.bfloat16


class EdgesCall(NamedTuple):
    """One call, forward and backward."""

    kind: str
    heads: int
    width: int
    columns: int
    shared: bool = False
    dtype: torch.dtype = FP32
    divided: bool = False
    wide_index: bool = False  # as with 2**31 edges and more

    def make(self) -> None:
        """Launch its kernels."""
        from regard.engines.edges import gpu
        from regard.engines.edges.graph import SortedEdges, divided
        from regard.engines.edges.operators import attend

        gpu.INTERPRETS = True  # tensors on the CPU go to Triton
        edges = SortedEdges.of(torch.randint(50, (2, 3000)), 50)
        if self.wide_index:
            into, out = (type(s)(*(x.long() for x in s[:3])) for s in (edges.into, edges.out))
            edges = replace(edges, into=into, out=out)
        if self.divided:
            edges = replace(edges, into=divided(edges.into), out=divided(edges.out))
        shapes = [(50, self.heads, self.width)] * 2
        shapes += [] if self.kind == "inner" else [(self.heads, self.width)]
        shapes += [] if self.shared else [(50, self.heads, self.columns)]
        query, key, *rest = (torch.randn(s).to(self.dtype).requires_grad_() for s in shapes)
        v = None if self.kind == "inner" else rest.pop(0)
        attend(
            query, key, v, None if self.shared else rest[0], edges, self.kind, 0.2
        ).sum().backward()


CALLS = {
    "GATv2, 8 x 16": EdgesCall("leaky_relu", 8, 16, 16, shared=True),
    "GATv2, 8 x 16, divided": EdgesCall("leaky_relu", 8, 16, 16, shared=True, divided=True),
    "GATv2, 8 x 16, many edges": EdgesCall(
        "leaky_relu", 8, 16, 16, shared=True, divided=True, wide_index=True
    ),
    "GATv2, 8 x 16, bf16": EdgesCall("leaky_relu", 8, 16, 16, shared=True, dtype=BF16),
    "GATv2, 1 x 7": EdgesCall("leaky_relu", 1, 7, 7, shared=True),
    "GATv2, 4 x 256": EdgesCall("leaky_relu", 4, 256, 256, shared=True),
    "GATv2, 1 x 1024": EdgesCall("leaky_relu", 1, 1024, 1024, shared=True),
    "GAT, 8 x 8": EdgesCall("leaky_relu", 8, 1, 8),
    "GAT, 8 x 16, divided": EdgesCall("leaky_relu", 8, 1, 16, divided=True),
    "additive, 8 x 16": EdgesCall("tanh", 8, 16, 16),
    "additive, 4 x 64, bf16": EdgesCall("tanh", 4, 64, 64, dtype=BF16),
    "additive, 1 x 1024": EdgesCall("tanh", 1, 1024, 1024, divided=True),
    "dot, 8 x 16": EdgesCall("inner", 8, 16, 16),
    "dot, 8 x 64 and 32, divided": EdgesCall("inner", 8, 64, 32, divided=True),
    "dot, 1 x 1024": EdgesCall("inner", 1, 1024, 1024),
}


def main() -> None:
    """Compile what the command line asks for."""
    capability, names = int(sys.argv[1]), sys.argv[2:]
    kernels = compile_only(capability)
    for name in names or CALLS:
        kernels.clear()
        CALLS[name].make()
        for kernel, compiled in kernels:
            print(json.dumps({"call": name, "kernel": kernel, **taken(compiled)}), flush=True)


if __name__ == "__main__":
    main()
