"""The parts of a block around attention: the feed-forward layer, norms and residual connections.

Shape legend: B batch, L tokens.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from regard.arguments import check_given_sizes, check_one_of, check_sizes
from regard.nn.linear import Linear
from regard.norms import make_norm, normalize

FEEDFORWARD_ACTIVATIONS = {"gelu": gelu, "relu": relu, "swiglu": silu}


class FeedForward(nn.Module):
    """Two linear layers and an activation for each token: `W_2 f(W_1 x)`.

    Args:
        dim: width of the tokens.
        hidden: width between the layers; default 4 * dim.
        activation: "gelu", "relu", or "swiglu": `W_2 (silu(W_g x) * W_1 x)`, a third matrix.
        bias: add biases.
        dropout: of the hidden units, while training.

    Weights start normal with variance 1 / fan-in, biases 0.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        activation: str = "gelu",
        *,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_given_sizes(dim=dim)
        check_sizes(hidden=hidden)
        check_one_of("activation", activation, FEEDFORWARD_ACTIVATIONS)
        hidden = 4 * dim if hidden is None else hidden
        self.activation = activation
        self.enter, self.leave = Linear(dim, hidden, bias), Linear(hidden, dim, bias)
        self.gate = Linear(dim, hidden, bias) if activation == "swiglu" else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, dim) to (B, L, dim)."""
        function = FEEDFORWARD_ACTIVATIONS[self.activation]
        if self.gate is None:
            hidden = function(self.enter(x))
        else:
            hidden = function(self.gate(x)) * self.enter(x)
        return self.leave(self.dropout(hidden))

    def extra_repr(self) -> str:
        """The activation."""
        return f"activation={self.activation!r}"


class Residual(nn.Module):
    """A norm and a residual connection around a layer f: `x + f(norm(x))` (pre) or `norm(x + f(x))` (post)."""

    def __init__(self, dim: int, norm: str, norm_type: str, dropout: float) -> None:
        super().__init__()
        check_one_of("norm", norm, ("pre", "post"))
        self.pre = norm == "pre"
        self.norm = make_norm(norm_type, dim, name="norm_type")
        self.dropout = nn.Dropout(dropout)

    def enter(self, x: Tensor) -> Tensor:
        """The input of the layer."""
        return normalize(self.norm, x) if self.pre else x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum of x and the layer's output y, with dropout on y."""
        x = x + self.dropout(y)
        return x if self.pre else normalize(self.norm, x)

    def extra_repr(self) -> str:
        """The place of the norm."""
        return "pre" if self.pre else "post"
