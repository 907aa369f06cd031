"""Attention over the edges of a graph.

Here belong edges as masks and edge features. The scores GAT and GATv2 are in `regard.scores`.
"""

from regard.nn.graph.layer import GraphAttended, GraphAttention

__all__ = ["GraphAttended", "GraphAttention"]
