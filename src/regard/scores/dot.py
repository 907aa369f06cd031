"""The dot product."""

from __future__ import annotations

from regard.scores.base import InnerScore


class Dot(InnerScore):
    """The dot product (Luong's *dot*).

    Formula: `s(q, k) = <q, k>`

    Parameters: none. Dims: query dim == key dim.
    Cost for each pair: d multiply-adds, as a matrix product.

    Its variance grows with d for unit-variance inputs; use `ScaledDot` unless that is wanted.
    """

    name = "dot"

    @classmethod
    def without_parameters(cls) -> Dot:
        """It never has any."""
        return cls()
