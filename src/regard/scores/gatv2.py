"""The score of GATv2."""

from __future__ import annotations

from regard.arguments import check_finite
from regard.scores.additive import Additive


class GATv2(Additive):
    """The graph attention score of Brody, Alon and Yahav (2022): additive with LeakyReLU.

    Formula: `s(q, k) = sum_h v_h LeakyReLU(a_h + b_h + bias_h)`

    Args:
        hidden: hidden units for each head.
        heads: query heads.
        negative_slope: of the LeakyReLU; any number, 0 for ReLU, -1 for the absolute value.
        bias: learn a bias inside the activation.
        weight_norm: write v as `gain * v / |v|`.

    Parameters, dims and cost as `Additive`, with a comparison in place of tanh; unbounded.
    """

    name = "gatv2"
    activation = "leaky_relu"

    def __init__(
        self,
        hidden: int,
        heads: int = 1,
        *,
        negative_slope: float = 0.2,
        bias: bool = False,
        weight_norm: bool = False,
    ) -> None:
        check_finite(negative_slope=negative_slope)
        # E[f(x)^2] for x ~ N(0, 2): half of the variance from each side of 0.
        self.power = 1 + negative_slope**2
        super().__init__(hidden, heads, bias=bias, weight_norm=weight_norm)
        self.parameter = negative_slope

    def arguments(self) -> dict[str, object]:
        """As `Additive`, and the slope."""
        return {**super().arguments(), "negative_slope": self.parameter}
