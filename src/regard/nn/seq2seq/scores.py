"""The scores of recurrent decoders' attention: Luong's three, and one that is given by name."""

from __future__ import annotations

from regard.arguments import check_given_sizes, check_one_of, check_sizes
from regard.scores import (
    HOW_TO_BUILD,
    Additive,
    Bilinear,
    Dot,
    Projected,
    ScaledDot,
    Score,
    make_score,
)


def luong_score(
    query_dim: int, key_dim: int, mode: str, heads: int, scaled: bool, hidden: int | None
) -> Score:
    """The score that `LuongAttention` documents, or an error."""
    check_one_of("mode", mode, ("dot", "general", "concat"))
    check_given_sizes(query_dim=query_dim, key_dim=key_dim, heads=heads)
    check_sizes(hidden=hidden)
    if hidden is not None and mode != "concat":
        raise ValueError(f"hidden={hidden} is for mode='concat', got mode={mode!r}")
    if scaled and mode != "dot":
        raise ValueError(f"scaled=True is for mode='dot'; mode={mode!r} learns its own scale")
    if mode == "concat":
        return Projected(Additive(hidden or query_dim, heads), query_dim, key_dim)
    if mode == "general":
        return Bilinear(query_dim, key_dim, heads)
    if query_dim != key_dim:
        raise ValueError(
            f"mode='dot' needs query_dim == key_dim, got {query_dim} and {key_dim}; use mode='general'"
        )
    if heads != 1:
        raise ValueError(f"mode='dot' has nothing to tell {heads} heads apart; use mode='general'")
    return ScaledDot() if scaled else Dot()


def score_object(score: Score | str | None, width: int | None) -> Score:
    """The score, or the one of that name; a name with parameters needs their width."""
    check_sizes(width=width)
    if isinstance(score, Score) and width is not None:
        raise ValueError(f"width={width} is for a score given by name, got {score.name!r} itself")
    if width is None and isinstance(score, str) and score in HOW_TO_BUILD:
        raise ValueError(
            f"score={score!r} has parameters: give the width of queries and keys, width=..., or "
            f"the object, score={HOW_TO_BUILD[score]}"
        )
    return make_score(score, width or 1, heads=1)
