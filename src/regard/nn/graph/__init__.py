"""Attention over the edges of a graph."""

from regard.nn.graph.layer import GraphAttended, GraphAttention

__all__ = ["GraphAttended", "GraphAttention"]
