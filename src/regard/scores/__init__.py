"""Every way to score a query against a key, one file each."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from torch import Tensor

from regard.describe import describe
from regard.mask import Mask
from regard.scores.additive import Additive
from regard.scores.base import InnerScore, PairwiseScore, Score
from regard.scores.bilinear import Bilinear
from regard.scores.cosine import Cosine
from regard.scores.dot import Dot
from regard.scores.gat import GAT
from regard.scores.gatv2 import GATv2
from regard.scores.gaussian import Gaussian
from regard.scores.low_rank import LowRank
from regard.scores.projected import Projected
from regard.scores.scaled_dot import ScaledDot

__all__ = [
    "GAT",
    "Additive",
    "Bilinear",
    "Cosine",
    "Dot",
    "GATv2",
    "Gaussian",
    "InnerScore",
    "LowRank",
    "PairwiseScore",
    "Projected",
    "ScaledDot",
    "Score",
    "make_score",
    "named_score",
]

# A string can only name a score without parameters: there would be no place to learn them.
NAMED: dict[str, Score] = {
    "dot": Dot(),
    "scaled_dot": ScaledDot(),
    "cosine": Cosine(heads=None),
    "gaussian": Gaussian(heads=None),
}
# Inside a module there is a place: each name, built for the width, heads and key heads it gets.
SIZED: dict[str, Callable[[int, int, int], Score]] = {
    "dot": lambda width, heads, key_heads: Dot(),
    "scaled_dot": lambda width, heads, key_heads: ScaledDot(),
    "cosine": lambda width, heads, key_heads: Cosine(heads),
    "gaussian": lambda width, heads, key_heads: Gaussian(heads=key_heads),
    "bilinear": lambda width, heads, key_heads: Bilinear(width, width, heads),
    "low_rank": lambda width, heads, key_heads: LowRank(
        width, width, max(width // 4, 1), heads, key_heads
    ),
    "additive": lambda width, heads, key_heads: Additive(width, heads),
    "gat": lambda width, heads, key_heads: GAT(width, heads),
    "gatv2": lambda width, heads, key_heads: GATv2(width, heads),
}
HOW_TO_BUILD = {
    "bilinear": "Bilinear(query_dim, key_dim, heads)",
    "low_rank": "LowRank(query_dim, key_dim, rank, heads)",
    **{
        name: f"Projected({build}(hidden, heads), query_dim, key_dim), or {build}(hidden, heads) "
        "where query and key are projected already"
        for name, build in [("additive", "Additive"), ("gat", "GAT"), ("gatv2", "GATv2")]
    },
}


def make_score(
    score: Score | str | None, width: int, heads: int, key_heads: int | None = None
) -> Score:
    """The score itself, or a fresh one of that name for projections of this width.

    For modules, which have a place for parameters: here every score can be named. None is scaled
    dot.
    """
    if isinstance(score, Score):
        return score
    name = "scaled_dot" if score is None else score
    if not isinstance(name, str):
        raise TypeError(f"score must be a Score object, a name or None, got {describe(score)}")
    if name not in SIZED:
        near = difflib.get_close_matches(name, SIZED, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown score {name!r}: {hint}Names: {', '.join(SIZED)}")
    return SIZED[name](width, heads, heads if key_heads is None else key_heads)


def named_score(score: Score | str | None) -> Score:
    """The score object that `score` stands for; None is scaled dot."""
    if score is None:
        return NAMED["scaled_dot"]
    if isinstance(score, Score):
        return score
    if not isinstance(score, str):
        hint = "; a mask is given as mask=" if isinstance(score, (Tensor, Mask)) else ""
        raise TypeError(
            f"score must be a Score object, a name or None, got {describe(score)}{hint}"
        )
    if score in NAMED:
        return NAMED[score]
    if score in HOW_TO_BUILD:
        raise ValueError(
            f"score={score!r} has parameters, so a name is not enough: build the object and pass "
            f"it, score={HOW_TO_BUILD[score]}"
        )
    near = difflib.get_close_matches(score, [*NAMED, *HOW_TO_BUILD], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(
        f"unknown score {score!r}: {hint}Names of scores without parameters: {', '.join(NAMED)}"
    )
