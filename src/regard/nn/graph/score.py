"""The score of a `GraphAttention`: its construction, its width, and how edge features enter it."""

from __future__ import annotations

from torch import Tensor

from regard.describe import describe
from regard.engines.edges.plain import at
from regard.forms import Form, PairwiseKey
from regard.scores import GAT, GATv2, Projected, Score, make_score


def score_width(score: str | Score | None, width: int | None, out_dim: int) -> int:
    """The width of queries and keys for each head."""
    own = None
    if isinstance(score, Score):
        own = score.width or score.query_dim
    if own is not None and width is not None and own != width:
        raise ValueError(f"width={width}, but {type(score).__name__} takes width {own}")
    return own or width or out_dim


def make_graph_score(
    score: str | Score | None, width: int, heads: int, negative_slope: float | None, edge: bool
) -> Score:
    """The score object that compares projected nodes, checked."""
    slope = 0.2 if negative_slope is None else negative_slope
    if isinstance(score, str) and score == "gatv2":
        return GATv2(width, heads, negative_slope=slope)
    if isinstance(score, str) and score == "gat":
        return GAT(width, heads, negative_slope=slope, edge=edge)
    if negative_slope is not None:
        raise ValueError(
            f"negative_slope={negative_slope} is for score='gat' and score='gatv2', got score "
            f"{describe(score)}"
        )
    made = make_score(score, width, heads)
    if isinstance(made.inner, Projected):
        raise ValueError(
            "score is a Projected score, but GraphAttention projects the nodes itself: give the "
            "score inside, score.score"
        )
    wrapped = made is not made.inner
    if _has_edge_vector(made.inner) and (wrapped or not edge):
        raise ValueError(
            "GAT(edge=True) has a vector for edge features that would not be used: give edge_dim=, "
            "and the GAT itself, without a wrapper"
        )
    return made


def lower_edges(score: Score, query: Tensor, key: Tensor, edge: Tensor, source: Tensor) -> Form:
    """The form with a key for each edge, from nodes (N, heads, width) and edges (E, heads, width).

    The projected features of an edge are added to the key of its source. A GAT with a vector for
    them lowers keys and features separately, so that keys are lowered once for each node and not for
    each of its edges.
    """
    q = query.transpose(0, 1)
    if isinstance(score, GAT) and _has_edge_vector(score):
        b = score.key(key.transpose(0, 1)).b.index_select(1, source)
        return score.join(score.query(q), PairwiseKey(b + score.edge(edge.transpose(0, 1))))
    by_edge = at(key, source).to(key.dtype) + edge
    return score.lower(q, by_edge.transpose(0, 1))


def _has_edge_vector(score: Score) -> bool:
    return isinstance(score, GAT) and score.edge_vector is not None
