"""Learned projections in front of any score."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.arguments import check_divides, check_given_sizes, check_sizes
from regard.forms import Form, KeySide, QuerySide
from regard.scores.base import Score, check_dim, check_heads, check_score


def project(x: Tensor, weight: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    """Project x (*, 1 or heads, length, dim) by (heads * width, dim): (*, heads, length, width).

    An input head that all heads share takes one matrix product for all of them.
    """
    if heads == 1 or x.shape[-3] == 1:
        y = linear(x, weight, bias).unflatten(-1, (heads, -1))
        return y.movedim(-2, -3).flatten(-4, -3)
    y = x @ weight.view(heads, -1, weight.shape[-1]).mT
    return y if bias is None else y + bias.view(heads, 1, -1)


class Projected(Score):
    """Any score on projected queries and keys: `s(W_q q, W_k k)`.

    Args:
        score: the score that compares the projections.
        query_dim: width of the queries given.
        key_dim: width of the keys given; may differ from `query_dim`.
        width: width of the projections for each head; taken from the score if it has one (the
            hidden width of `Additive`).
        heads: query heads to make; taken from the score if it has them.
        key_heads: key heads to make, a divisor of `heads`; default `heads`.
        bias: add a learned bias to each projection.

    Inputs have one head that all projections share, (*, 1, length, dim), or one for each projection.

    Parameters: heads * width * query_dim + key_heads * width * key_dim, and the score's own.
    Projections start normal with variance 1 / dim, which keeps unit variance.
    """

    heads: int  # type: ignore[override] # always known here
    key_heads: int  # type: ignore[override] # always known here
    query_dim: int  # type: ignore[override] # always known here
    key_dim: int  # type: ignore[override] # always known here

    def __init__(
        self,
        score: Score,
        query_dim: int,
        key_dim: int,
        *,
        width: int | None = None,
        heads: int | None = None,
        key_heads: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_score(score)
        own = score.width
        if own is not None and width is not None and width != own:
            raise ValueError(
                f"width={width}, but {type(score).__name__} takes projections of width {own}"
            )
        width = own if width is None else width
        if width is None:
            raise ValueError(
                f"Projected({type(score).__name__}(), ...) cannot tell how wide its projections "
                "should be: give width=, for example width=64"
            )
        if heads is None:
            heads = score.heads or score.key_heads or 1
        key_heads = heads if key_heads is None else key_heads
        check_given_sizes(query_dim=query_dim, key_dim=key_dim, width=width, heads=heads)
        check_sizes(key_heads=key_heads)
        check_divides(heads, key_heads)
        if score.heads not in (None, 1, heads):
            raise ValueError(f"heads={heads}, but {type(score).__name__} has {score.heads} heads")
        self.heads = heads
        self.key_heads = key_heads
        self.score, self.query_dim, self.key_dim = score, query_dim, key_dim
        self.query_weight = nn.Parameter(torch.empty(heads * width, query_dim))
        self.key_weight = nn.Parameter(torch.empty(key_heads * width, key_dim))
        self.query_bias = nn.Parameter(torch.empty(heads * width)) if bias else None
        self.key_bias = nn.Parameter(torch.empty(key_heads * width)) if bias else None
        self.reset_parameters()

    @property
    def name(self) -> str:  # type: ignore[override] # it depends on the score inside
        """The name of the score inside."""
        return self.score.name

    @property
    def softcap(self) -> float | None:  # type: ignore[override] # it depends on the score inside
        """The soft cap of the score inside."""
        return self.score.softcap

    def reset_parameters(self) -> None:
        """Draw new projections; biases start at 0."""
        nn.init.normal_(self.query_weight, std=self.query_dim**-0.5)
        nn.init.normal_(self.key_weight, std=self.key_dim**-0.5)
        for bias in (self.query_bias, self.key_bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def arguments(self) -> dict[str, object]:
        """Dims, width, heads of both sides, and whether there are biases."""
        return {
            "query_dim": self.query_dim,
            "key_dim": self.key_dim,
            "width": self.query_weight.shape[0] // self.heads,
            "heads": self.heads,
            "key_heads": self.key_heads,
            "bias": self.query_bias is not None,
        }

    def project_query(self, q: Tensor) -> Tensor:
        """`W_q q`, (*, heads, Q, width)."""
        check_dim(q, self.query_dim, "query", self)
        check_heads(q, self.heads, "query", self)
        return project(q, self.query_weight, self.query_bias, self.heads)

    def project_key(self, k: Tensor) -> Tensor:
        """`W_k k`, (*, key_heads, L, width)."""
        check_dim(k, self.key_dim, "key", self)
        check_heads(k, self.key_heads, "key", self)
        return project(k, self.key_weight, self.key_bias, self.key_heads)

    def query(self, q: Tensor) -> QuerySide:
        """Project, then lower by the score inside."""
        return self.score.query(self.project_query(q))

    def key(self, k: Tensor) -> KeySide:
        """Project, then lower by the score inside."""
        return self.score.key(self.project_key(k))

    def query_at(self, q: Tensor, origin: Tensor) -> QuerySide:
        """Project, then lower by the score inside."""
        return self.score.query_at(self.project_query(q), origin)

    def key_at(self, k: Tensor, origin: Tensor | None) -> KeySide:
        """Project, then lower by the score inside."""
        return self.score.key_at(self.project_key(k), origin)

    def join(self, query: QuerySide, key: KeySide) -> Form:
        """As the score inside."""
        return self.score.join(query, key)

    def lower(self, q: Tensor, k: Tensor, real: Tensor | None = None) -> Form:
        """Project, then lower by the score inside."""
        return self.score.lower(self.project_query(q), self.project_key(k), real)

    @torch.no_grad()
    def rescale_(self, factor: Tensor) -> None:
        """Scale the score inside if it has parameters, and else the projections, as QK-clip does.

        With one key head for each query head both projections take the square root of the factor. With
        grouped keys the query projection takes all of it: a key head would have to serve several factors.
        """
        if any(True for _ in self.score.parameters()):
            self.score.rescale_(factor)
            return
        if self.name not in ("dot", "scaled_dot"):
            raise ValueError(
                f"the logits of {self.name!r} are not proportional to its projections, so scaling "
                "the projections does not scale the logits; wrap the score in Tempered(score, heads=...)"
            )
        shared = self.key_heads == self.heads
        on_query = factor.sqrt() if shared else factor
        scaled = [self.query_weight, self.query_bias]
        scaled += [self.key_weight, self.key_bias] if shared else []
        for parameter in scaled:
            if parameter is not None:
                by_head = parameter.unflatten(0, (self.heads, -1))
                by_head.mul_(on_query.view(-1, *[1] * parameter.ndim))
