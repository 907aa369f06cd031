"""Every way to score a query against a key, one file each."""

from __future__ import annotations

import difflib

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
    "named_score",
]

# A string can only name a score without parameters: there would be no place to learn them.
NAMED: dict[str, Score] = {
    "dot": Dot(),
    "scaled_dot": ScaledDot(),
    "cosine": Cosine(heads=None),
    "gaussian": Gaussian(heads=None),
}
HOW_TO_BUILD = {
    "bilinear": "Bilinear(query_dim, key_dim, heads)",
    "low_rank": "LowRank(query_dim, key_dim, rank, heads)",
    "additive": "Projected(Additive(hidden, heads), query_dim, key_dim), or Additive(hidden, "
    "heads) where query and key are projected already",
    "gat": "Projected(GAT(hidden, heads), query_dim, key_dim), or GAT(hidden, heads) where query "
    "and key are projected already",
    "gatv2": "Projected(GATv2(hidden, heads), query_dim, key_dim), or GATv2(hidden, heads) where "
    "query and key are projected already",
}


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
