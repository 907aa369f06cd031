"""The score of a `GraphAttention`: a name or an object, and how wide it wants its nodes."""

from __future__ import annotations

from collections.abc import Callable

from regard.describe import describe
from regard.scores import (
    Additive,
    Bilinear,
    Cosine,
    Dot,
    GATv2,
    Gaussian,
    Projected,
    ScaledDot,
    Score,
)
from regard.scores.gat import GAT

# How a score that was named is built, given the width and number of heads.
BUILD: dict[str, Callable[[int, int], Score]] = {
    "additive": Additive,
    "bilinear": lambda width, heads: Bilinear(width, width, heads),
    "cosine": lambda width, heads: Cosine(heads),
    "dot": lambda width, heads: Dot(),
    "gaussian": lambda width, heads: Gaussian(heads=heads),
    "scaled_dot": lambda width, heads: ScaledDot(),
}


def score_width(score: str | Score, width: int | None, out_dim: int) -> int:
    """The width of queries and keys for each head."""
    own = None
    if isinstance(score, Score):
        own = score.width or score.query_dim
    if own is not None and width is not None and own != width:
        raise ValueError(f"width={width}, but {type(score).__name__} takes width {own}")
    return own or width or out_dim


def make_score(
    score: str | Score, width: int, heads: int, negative_slope: float | None, edge: bool
) -> Score:
    """The score object that compares projected nodes, or an error."""
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
    if isinstance(score, str) and score in BUILD:
        return BUILD[score](width, heads)
    names = ", ".join(map(repr, ["gat", "gatv2", *BUILD]))
    if isinstance(score, str):
        raise ValueError(f"unknown score {score!r}: names are {names}; or give a Score object")
    if not isinstance(score, Score):
        raise TypeError(f"score must be a Score object or one of {names}, got {describe(score)}")
    if isinstance(score.inner, Projected):
        raise ValueError(
            "score is a Projected score, but GraphAttention projects the nodes itself: give the "
            "score inside, score.score"
        )
    if score.heads not in (None, 1, heads):
        raise ValueError(f"heads={heads}, but {type(score).__name__} has {score.heads} heads")
    by_edge = any(isinstance(m, GAT) and m.edge_vector is not None for m in score.modules())
    if by_edge and not (edge and isinstance(score, GAT)):
        raise ValueError(
            "GAT(edge=True) has a vector for edge features that would not be used: give edge_dim=, "
            "and the GAT itself, without a wrapper"
        )
    return score
