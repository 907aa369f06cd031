"""The score of the first graph attention network."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.arguments import check_finite, check_given_sizes
from regard.forms import PairwiseKey, PairwiseQuery
from regard.scores.base import PairwiseScore, check_dim, check_heads


class GAT(PairwiseScore):
    """The graph attention score of Velickovic et al. (2018).

    Formula: `s(q, k) = LeakyReLU(<u, q> + <w, k>)`, the pairwise form with one hidden unit.

    LeakyReLU is increasing, so every query ranks the keys in the same order, by `<w, k>`. Use `GATv2`
    unless you have to match an old model.

    Args:
        hidden: width of the projected queries and keys for each head.
        heads: query heads.
        negative_slope: of the LeakyReLU; any number, 0 for ReLU, -1 for the absolute value.
        edge: learn a third vector for projected edge features, added inside the LeakyReLU.

    Parameters: 2 * heads * hidden, half as many more with `edge`. Dims: query dim == key dim.
    Cost for each query and key: hidden multiply-adds once; for each pair: one comparison.

    The vectors start normal, scaled so that scores have variance 1 for unit-variance inputs.
    """

    name = "gat"
    activation = "leaky_relu"

    def __init__(
        self, hidden: int, heads: int = 1, *, negative_slope: float = 0.2, edge: bool = False
    ) -> None:
        super().__init__()
        check_given_sizes(hidden=hidden, heads=heads)
        check_finite(negative_slope=negative_slope)
        self.hidden, self.heads, self.width = hidden, heads, hidden
        self.parameter = negative_slope
        self.query_vector = nn.Parameter(torch.empty(heads, hidden))
        self.key_vector = nn.Parameter(torch.empty(heads, hidden))
        self.edge_vector = nn.Parameter(torch.empty(heads, hidden)) if edge else None
        self.reset_parameters()

    @classmethod
    def for_width(cls, width: int, heads: int, key_heads: int) -> GAT:
        """Vectors as wide as the projections."""
        return cls(width, heads)

    def arguments(self) -> dict[str, object]:
        """Sizes, slope, and whether there is a vector for edges."""
        return {
            "hidden": self.hidden,
            "heads": self.heads,
            "negative_slope": self.parameter,
            "edge": self.edge_vector is not None,
        }

    def reset_parameters(self) -> None:
        """Draw new vectors."""
        # Var[f(x)] for x ~ N(0, 2): the second moment less the square of the mean.
        power = 1 + self.parameter**2 - (1 - self.parameter) ** 2 / math.pi
        for vector in self.parameters(recurse=False):
            nn.init.normal_(vector, std=(self.hidden * power) ** -0.5)

    def query(self, q: Tensor) -> PairwiseQuery:
        """`a = <u, q>`, one number for each query."""
        a = self._inner(q, self.query_vector, "query")
        return PairwiseQuery(a, a.new_ones(self.query_vector.shape[0], 1))

    def key(self, k: Tensor) -> PairwiseKey:
        """`b = <w, k>`, one number for each key; grouped keys get the heads of the queries."""
        heads, given = self.key_vector.shape[0], k.shape[-3]
        if 1 < given < heads and heads % given == 0:
            k = k.repeat_interleave(heads // given, -3)
        return PairwiseKey(self._inner(k, self.key_vector, "key"))

    def edge(self, e: Tensor) -> Tensor:
        """The term (*, H, edges, 1) that projected edge features (*, H, edges, hidden) add to b."""
        assert self.edge_vector is not None
        return self._inner(e, self.edge_vector, "edge")

    def _inner(self, x: Tensor, vector: Tensor, side: str) -> Tensor:
        check_dim(x, self.hidden, side, self)
        check_heads(x, vector.shape[0], side, self)
        # At least fp32: unlike a projection, the sum is a logit and may be large.
        dtype = torch.promote_types(x.dtype, torch.float32)
        return (x.to(dtype) * vector.unsqueeze(-2).to(dtype)).sum(-1, keepdim=True)

    @torch.no_grad()
    def rescale_(self, factor: Tensor) -> None:
        """Scale every vector: LeakyReLU of a positive multiple is that multiple of LeakyReLU."""
        for vector in self.parameters(recurse=False):
            vector.mul_(factor.unsqueeze(-1))
