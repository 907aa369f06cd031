"""The dot product."""

from __future__ import annotations

from regard.scores.base import InnerScore


class Dot(InnerScore):
    """The dot product (Luong's *dot*).

    Formula: `s(q, k) = <q, k>`

    Parameters: none. Dims: query dim == key dim.
    Cost for each pair: d multiply-adds, as a matrix product.

    For unit-variance inputs its variance is d; use `ScaledDot` unless you want that.
    """

    name = "dot"

    @classmethod
    def without_parameters(cls) -> Dot:
        """The score itself, which has no parameters."""
        return cls()
