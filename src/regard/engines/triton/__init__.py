"""Both forms in fused Triton kernels on a GPU: additive and GATv2 attention at hardware speed."""

from regard.engines.triton.behind import Behind
from regard.engines.triton.engine import Triton

__all__ = ["Behind", "Triton"]
