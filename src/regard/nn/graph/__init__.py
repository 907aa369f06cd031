"""Attention over the edges of a graph.

This folder covers softmax and sums over edges, edge features and self-loops. The scores GAT and GATv2
are in `regard.scores`.
"""

from regard.nn.graph.given import GraphAttended
from regard.nn.graph.layer import GraphAttention

__all__ = ["GraphAttended", "GraphAttention"]
