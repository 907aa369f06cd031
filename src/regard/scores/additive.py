"""The additive score of Bahdanau et al. (2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.arguments import check_given_sizes, check_one_of
from regard.forms import PairwiseKey, PairwiseQuery
from regard.scores.base import PairwiseScore, check_dim, check_heads, is_as_written
from regard.scores.cosine import unit
from regard.sine.activation import row_of
from regard.sine.series import KINDS

# E[tanh(x)^2] for x ~ N(0, 2), the sum of two unit-variance projections.
TANH_POWER = 0.5200
# The methods that a subclass may override to lower in another way.
LOWERING = ("direction", "join", "key", "lower", "query")


class Additive(PairwiseScore):
    """The additive score: a network with one hidden layer on each pair (Bahdanau, Luong's *concat*).

    Formula: `s(q, k) = sum_h v_h tanh(a_h + b_h + bias_h)`

    Its inputs are already projected, `a = W_q q` and `b = W_k k`. `Projected(Additive(hidden, heads),
    query_dim, key_dim)` has the projections as well.

    Args:
        hidden: hidden units for each head.
        heads: query heads.
        bias: learn a bias inside tanh; without it the score is odd in (q, k).
        weight_norm: write v as `gain * v / |v|`, so that length and direction are learned separately.
        activation: "tanh", or "sine": the sine series of tanh as the score itself, which engine "sine"
            runs as a matrix product without further approximation.
        reach: with "sine", the largest |a + b| up to which the series follows tanh; default 8. Beyond
            that it deviates from tanh, but stays bounded.
        series: the kind of series that replaces tanh: "matched" (values and gradients within twice the
            error of exact bf16), "fast" (values alone, in half the time), "uniform" (the smallest
            largest error) or "normal" (for standard normal a and b). A series that is named here is the
            one that runs, as if `engine="sine"` were given, or the call raises an error that says why
            not; `error=` and `engine=` come before it. None: engine "sine" takes "matched". See
            docs/sine.md.

    Parameters: heads * hidden for v, as many for the bias, heads for the gain.
    Dims: any pair, through `Projected`.
    Cost for each pair: hidden tanh and multiply-adds. |s| is at most the 1-norm of v.

    v starts normal, scaled so that scores have variance 1 for unit-variance a and b.
    """

    name = "additive"
    activation = "tanh"
    power = TANH_POWER
    heads: int  # type: ignore[override] # always known here

    def __init__(
        self,
        hidden: int,
        heads: int = 1,
        *,
        bias: bool = False,
        weight_norm: bool = False,
        activation: str = "tanh",
        reach: float | None = None,
        series: str | None = None,
    ) -> None:
        super().__init__()
        check_given_sizes(hidden=hidden, heads=heads)
        check_one_of("activation", activation, ("tanh", "sine"))
        if series is not None:
            check_one_of("series", series, KINDS)
        self.series = series or ""
        if activation == "sine":
            reach = 8.0 if reach is None else reach
            row_of(reach)  # raises if there is no series for this reach
            self.activation, self.parameter = activation, reach
        elif reach is not None:
            raise ValueError(
                f'reach={reach} is for activation="sine"; leave it out for activation={activation!r}'
            )
        self.hidden, self.heads, self.width = hidden, heads, hidden
        self.v = nn.Parameter(torch.empty(heads, hidden))
        self.bias = nn.Parameter(torch.empty(heads, hidden)) if bias else None
        self.gain = nn.Parameter(torch.empty(heads)) if weight_norm else None
        self.reset_parameters()

    @classmethod
    def for_width(cls, width: int, heads: int, key_heads: int) -> Additive:
        """A score with as many hidden units as the projections are wide."""
        return cls(width, heads)

    def arguments(self) -> dict[str, object]:
        """Sizes, and which parameters there are."""
        series: dict[str, object] = {}
        if self.activation == "sine":
            series = {"activation": "sine", "reach": self.parameter}
        if self.series:
            series["series"] = self.series
        return {
            "hidden": self.hidden,
            "heads": self.heads,
            "bias": self.bias is not None,
            "weight_norm": self.gain is not None,
            **series,
        }

    def reset_parameters(self) -> None:
        """Draw a new v; the bias starts at 0, the gain at the length of v."""
        nn.init.normal_(self.v, std=(self.hidden * self.power) ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.gain is not None:
            with torch.no_grad():
                self.gain.copy_(self.v.norm(dim=-1))

    def direction(self) -> Tensor:
        """The v of the formula, after weight norm: (heads, hidden)."""
        if self.gain is None:
            return self.v
        return unit(self.v) * self.gain.unsqueeze(-1)

    def bare(self) -> Tensor | None:
        """The v, or None with a bias, weight norm or overridden lowering; see `PairwiseScore`."""
        if self.bias is not None or self.gain is not None or not is_as_written(self, AS_WRITTEN):
            return None
        # None if v is parametrized: it is then no parameter, but computed at each access.
        return self._parameters.get("v")

    def query(self, q: Tensor) -> PairwiseQuery:
        """`a`, with the bias added."""
        check_dim(q, self.hidden, "query", self, _PROJECT_HINT.format(type(self).__name__))
        check_heads(q, self.heads, "query", self)
        if self.bias is not None:
            q = q + self.bias.unsqueeze(-2).to(q.dtype)
        return PairwiseQuery(q, self.direction())

    def key(self, k: Tensor) -> PairwiseKey:
        """`b`."""
        check_dim(k, self.hidden, "key", self, _PROJECT_HINT.format(type(self).__name__))
        return PairwiseKey(k)

    @torch.no_grad()
    def rescale_(self, factor: Tensor) -> None:
        """Logits are linear in v."""
        if self.gain is not None:
            self.gain.mul_(factor)
        else:
            self.v.mul_(factor.unsqueeze(-1))


# Taken when the class is defined, so that a method patched later is noticed.
AS_WRITTEN = {name: getattr(Additive, name) for name in LOWERING}


_PROJECT_HINT = (
    "it takes projected queries and keys: Projected({}(hidden, heads), query_dim, key_dim) "
    "projects them"
)
