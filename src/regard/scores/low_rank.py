"""The bilinear score with a matrix of low rank."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.arguments import check_divides, check_given_sizes, check_sizes
from regard.forms import InnerKey, InnerQuery
from regard.scores.base import InnerScore, check_dim, check_heads
from regard.scores.projected import project


class LowRank(InnerScore):
    """A bilinear score whose matrix is `P Q'` and is never built.

    Formula: `s(q, k) = <P' q, Q' k> / sqrt(rank)`

    Parameters: rank * (heads * query_dim + key_heads * key_dim). Dims: any pair.
    Cost for each query and key: dim * rank once; for each pair: rank multiply-adds.

    `P` and `Q` start normal with variance 1 / dim: scores have variance 1 for unit-variance
    inputs.
    """

    name = "low_rank"
    heads: int  # type: ignore[override] # always known here
    key_heads: int  # type: ignore[override] # always known here
    query_dim: int  # type: ignore[override] # always known here
    key_dim: int  # type: ignore[override] # always known here

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        rank: int,
        heads: int = 1,
        key_heads: int | None = None,
    ) -> None:
        super().__init__()
        key_heads = heads if key_heads is None else key_heads
        check_given_sizes(query_dim=query_dim, key_dim=key_dim, rank=rank, heads=heads)
        check_sizes(key_heads=key_heads)
        check_divides(heads, key_heads)
        self.query_dim, self.key_dim, self.rank = query_dim, key_dim, rank
        self.heads, self.key_heads = heads, key_heads
        self.query_factor = nn.Parameter(torch.empty(heads * rank, query_dim))
        self.key_factor = nn.Parameter(torch.empty(key_heads * rank, key_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new factors."""
        nn.init.normal_(self.query_factor, std=self.query_dim**-0.5)
        nn.init.normal_(self.key_factor, std=self.key_dim**-0.5)

    @classmethod
    def for_width(cls, width: int, heads: int, key_heads: int) -> LowRank:
        """A score whose rank is a quarter of the width."""
        return cls(width, width, max(width // 4, 1), heads, key_heads)

    @classmethod
    def how_to_build(cls) -> str:
        """The code that builds the score."""
        return "LowRank(query_dim, key_dim, rank, heads)"

    def arguments(self) -> dict[str, object]:
        """Dims, rank and heads of both sides."""
        return {
            "query_dim": self.query_dim,
            "key_dim": self.key_dim,
            "rank": self.rank,
            "heads": self.heads,
            "key_heads": self.key_heads,
        }

    def query(self, q: Tensor) -> InnerQuery:
        """`phi = P' q`."""
        check_dim(q, self.query_dim, "query", self)
        check_heads(q, self.heads, "query", self)
        phi = project(q, self.query_factor, None, self.heads)
        return InnerQuery(phi, scale=self.rank**-0.5)

    def key(self, k: Tensor) -> InnerKey:
        """`psi = Q' k`."""
        check_dim(k, self.key_dim, "key", self)
        check_heads(k, self.key_heads, "key", self)
        return InnerKey(project(k, self.key_factor, None, self.key_heads))

    @torch.no_grad()
    def rescale_(self, factor: Tensor) -> None:
        """Scale `P`: logits are linear in it."""
        self.query_factor.unflatten(0, (-1, self.rank)).mul_(factor.view(-1, 1, 1))
