"""The dot product divided by the square root of the width."""

from __future__ import annotations

from torch import Tensor

from regard.forms import InnerQuery
from regard.scores.base import InnerScore


class ScaledDot(InnerScore):
    """The scaled dot product of the Transformer; the default score.

    Formula: `s(q, k) = <q, k> / sqrt(d)`

    Parameters: none. Dims: query dim == key dim.
    Cost for each pair: d multiply-adds, as a matrix product. Variance 1 for unit-variance inputs.
    """

    name = "scaled_dot"

    @classmethod
    def without_parameters(cls) -> ScaledDot:
        """The score itself, which has no parameters."""
        return cls()

    def query(self, q: Tensor) -> InnerQuery:
        """The query itself; the engine applies the scale."""
        return InnerQuery(q, scale=max(q.shape[-1], 1) ** -0.5)
