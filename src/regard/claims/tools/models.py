"""The small models that claims train. Attention runs on engine="reference", which vmap can vectorise.

B batch, n keys, D_q and D_k dims of a query and of a key, D_v of a value.
"""

from __future__ import annotations

from torch import Tensor, nn

import regard
from regard import Score
from regard.engines.reference import raw_scores


class Matcher(nn.Module):
    """Picks one of n keys: the scores of the query with the keys are the logits.

    Args:
        score: any score; its parameters are trained.
        query: module applied to the query first, for example a linear layer.
        key: module applied to the keys first.
    """

    def __init__(
        self, score: Score, query: nn.Module | None = None, key: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.score = score
        self.query = query or nn.Identity()
        self.key = key or nn.Identity()

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Query (B, D_q), keys (B, n, D_k) to logits (B, n)."""
        asked = self.query(query)[:, None, None]
        form = self.score.lower(asked, self.key(key).unsqueeze(-3))
        # Same result as `regard.score`, whose CPU kernel vmap would run for one seed after the other.
        return raw_scores(form, query.dtype).flatten(-3)


class Reader(nn.Module):
    """Reads the value of the matching key: attention of one query over n keys and their values.

    Args:
        score: any score; its parameters are trained.
        query: module applied to the query first.
        key: module applied to the keys first.
        value: module applied to the values first.
        out: module applied to the output of attention.
    """

    def __init__(
        self,
        score: Score,
        query: nn.Module | None = None,
        key: nn.Module | None = None,
        value: nn.Module | None = None,
        out: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.score = score
        self.query, self.key = query or nn.Identity(), key or nn.Identity()
        self.value, self.out = value or nn.Identity(), out or nn.Identity()

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Query (B, D_q), keys (B, n, D_k), values (B, n, D_v) to (B, D_out)."""
        asked = self.query(query).unsqueeze(-2)
        read = regard.attention(
            asked, self.key(key), self.value(value), self.score, engine="reference"
        )
        return self.out(read.squeeze(-2))
