"""`EqualWeights`: a mean over neighbours in place of attention, the control of the recipes on graphs."""

from __future__ import annotations

from torch import Tensor

from regard import InnerScore
from regard.forms import InnerKey, InnerQuery

MEAN = "mean"  # the name of the control: equal weights in place of a score


class EqualWeights(InnerScore):
    """A score of 0 for every pair: the mean over neighbours, the control of a comparison of scores.

    Formula: `s(q, k) = 0`. Parameters: none.
    """

    name = "equal_weights"

    def query(self, q: Tensor) -> InnerQuery:
        """One feature of 0 for each query."""
        return InnerQuery(q.new_zeros(*q.shape[:-1], 1))

    def key(self, k: Tensor) -> InnerKey:
        """One feature of 0 for each key."""
        return InnerKey(k.new_zeros(*k.shape[:-1], 1))
