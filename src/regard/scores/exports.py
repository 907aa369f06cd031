"""The list of scores, from which `regard` and `regard.scores` export them.

A new score needs three lines here: its import, its name in `__all__`, and its class in `SCORES`.
"""

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
]

# Scores that can be named by a string, in the order in which messages list them.
SCORES: tuple[type[Score], ...] = (
    Dot,
    ScaledDot,
    Cosine,
    Gaussian,
    Bilinear,
    LowRank,
    Additive,
    GAT,
    GATv2,
)
