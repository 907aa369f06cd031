"""The models that `regard choose` builds by itself: one query, n keys, a score between them.

B batch, n keys, D_q and D_k dims of a query and of a key, D_v of a value, H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import regard
from regard import Score
from regard.engines.reference import raw_scores

# Up to this many numbers between queries and keys plain PyTorch is faster than any kernel.
SMALL = 2**21


class Match(nn.Module):
    """Which key matches: the scores are the logits, the mean over heads."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Query (B, D_q), keys (B, n, D_k) to logits (B, n)."""
        form = self.score.lower(query[:, None, None], key.unsqueeze(-3))
        logits = raw_scores(form, query.dtype).squeeze(-2).mean(-2)
        cap = self.score.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def attending(self) -> nn.Module:
        """The same score in an attention call, for the doctor to see."""
        return Attending(self.score)


class Attending(nn.Module):
    """Attention of a score over its own keys."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Query (B, D_q), keys (B, n, D_k) to (B, H, 1, D_k)."""
        return regard.attention(
            query[:, None, None], key.unsqueeze(-3), key.unsqueeze(-3), self.score
        )


class ReadValue(nn.Module):
    """What the matching keys say: attention over n keys, read out by one linear layer.

    Args:
        score: whose heads are the model's.
        value_dim: D_v.
        outputs: classes or numbers of one answer.
        answers: how many answers there are; 1 leaves that dim out.
        width: of the values of all heads together.
    """

    def __init__(
        self, score: Score, value_dim: int, outputs: int, answers: int = 1, width: int = 16
    ) -> None:
        super().__init__()
        self.score, self.heads = score, score.heads or 1
        self.value = nn.Linear(value_dim, max(width // self.heads, 1) * self.heads, bias=False)
        self.out = nn.Linear(self.value.out_features, answers * outputs)
        self.answers, self.outputs = answers, outputs

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(B, D_q), (B, n, D_k), (B, n, D_v) to (B, outputs) or (B, answers, outputs)."""
        told = self.value(value).unflatten(-1, (self.heads, -1)).movedim(-2, -3)
        pairs = key.shape[0] * key.shape[1] * self.heads * key.shape[2]
        read = regard.attention(
            query[:, None, None],
            key.unsqueeze(-3),
            told,
            self.score,
            engine="reference" if pairs <= SMALL else None,
        )
        found = self.out(read.flatten(-3))
        return found if self.answers == 1 else found.unflatten(-1, (self.answers, self.outputs))
