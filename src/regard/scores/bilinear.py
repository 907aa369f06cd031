"""The bilinear score with a full matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.arguments import check_given_sizes
from regard.forms import InnerQuery
from regard.scores.base import InnerScore, check_dim, check_heads


class Bilinear(InnerScore):
    """The bilinear form of query and key with a learned matrix (Luong's *general*).

    Formula: `s(q, k) = q' W k`, a `W` for each query head.

    Parameters: heads * query_dim * key_dim. Dims: any pair.
    Cost for each query: query_dim * key_dim once; for each pair: key_dim multiply-adds.

    `W` starts normal with variance 1 / (query_dim * key_dim): scores have variance 1 for
    unit-variance inputs.
    """

    name = "bilinear"
    heads: int  # type: ignore[override] # always known here
    query_dim: int  # type: ignore[override] # always known here
    key_dim: int  # type: ignore[override] # always known here

    def __init__(self, query_dim: int, key_dim: int, heads: int = 1) -> None:
        super().__init__()
        check_given_sizes(query_dim=query_dim, key_dim=key_dim, heads=heads)
        self.query_dim, self.key_dim, self.heads = query_dim, key_dim, heads
        self.weight = nn.Parameter(torch.empty(heads, query_dim, key_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a new `W`."""
        nn.init.normal_(self.weight, std=(self.query_dim * self.key_dim) ** -0.5)

    @classmethod
    def for_width(cls, width: int, heads: int, key_heads: int) -> Bilinear:
        """A score with a square matrix for each query head."""
        return cls(width, width, heads)

    @classmethod
    def how_to_build(cls) -> str:
        """The code that builds the score."""
        return "Bilinear(query_dim, key_dim, heads)"

    def arguments(self) -> dict[str, object]:
        """Both dims and heads."""
        return {"query_dim": self.query_dim, "key_dim": self.key_dim, "heads": self.heads}

    def query(self, q: Tensor) -> InnerQuery:
        """`phi = q W`, as wide as the key."""
        check_dim(q, self.query_dim, "query", self)
        check_heads(q, self.heads, "query", self)
        return InnerQuery(q @ self.weight)

    def key(self, k: Tensor):
        """The key itself."""
        check_dim(k, self.key_dim, "key", self)
        return super().key(k)

    @torch.no_grad()
    def rescale_(self, factor: Tensor) -> None:
        """Scale `W`: logits are linear in it."""
        self.weight.mul_(factor.view(-1, 1, 1))
