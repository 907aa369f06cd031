"""The models of the built-in tasks and of `--data`: one query, n keys, and a score between them.

B batch, n keys, D_q and D_k dims of a query and of a key, D_v of a value, H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import regard
from regard import Mask, Score
from regard.engines.reference import raw_scores

# Up to this many numbers of keys over all heads, plain PyTorch is faster than a kernel.
SMALL = 2**21
# The logit of a hidden key. Finite, because a listwise loss multiplies its log probability by 0.
HIDDEN = -1e9


def key_mask(mask: Tensor | None) -> Mask | None:
    """The mask of an attention call from the keys (B, n) that are real."""
    return None if mask is None else Mask.dense(mask[:, None, None])


class Match(nn.Module):
    """Picks the matching key: the scores, averaged over heads, are the logits."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """Query (B, D_q), keys (B, n, D_k) and which of them are real (B, n), to logits (B, n)."""
        # The logits are the scores before softmax, so `raw_scores` is used instead of an attention call,
        # and the soft cap is applied here.
        form = self.score.lower(query[:, None, None], key.unsqueeze(-3))
        logits = raw_scores(form, query.dtype).squeeze(-2).mean(-2)
        cap = self.score.softcap
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        return logits if mask is None else logits.masked_fill(~mask, HIDDEN)

    def attending(self) -> nn.Module:
        """A model that attends with the same score, for the doctor, which only sees attention calls."""
        return Attending(self.score)


class Attending(nn.Module):
    """Attention with a score, in which the keys are also the values."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """Query (B, D_q), keys (B, n, D_k) and which of them are real (B, n), to (B, H, 1, D_k)."""
        return regard.attention(
            query[:, None, None],
            key.unsqueeze(-3),
            key.unsqueeze(-3),
            self.score,
            mask=key_mask(mask),
        )


class ReadValue(nn.Module):
    """Attention over n keys, whose output a linear layer turns into the answer.

    Args:
        score: the score; its heads are the model's heads.
        value_dim: D_v.
        outputs: classes or numbers of one answer.
        answers: number of answers; with 1 the output has no dim for them.
        width: width of the projected values over all heads.
    """

    def __init__(
        self, score: Score, value_dim: int, outputs: int, answers: int = 1, width: int = 16
    ) -> None:
        super().__init__()
        self.score, self.heads = score, score.heads or 1
        self.value = nn.Linear(value_dim, max(width // self.heads, 1) * self.heads, bias=False)
        self.out = nn.Linear(self.value.out_features, answers * outputs)
        self.answers, self.outputs = answers, outputs

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """(B, D_q), (B, n, D_k), (B, n, D_v), real keys (B, n) to (B, outputs) or (B, answers, outputs)."""
        told = self.value(value).unflatten(-1, (self.heads, -1)).movedim(-2, -3)
        pairs = key.shape[0] * key.shape[1] * self.heads * key.shape[2]
        read = regard.attention(
            query[:, None, None],
            key.unsqueeze(-3),
            told,
            self.score,
            mask=key_mask(mask),
            engine="reference" if pairs <= SMALL else None,
        )
        found = self.out(read.flatten(-3))
        return found if self.answers == 1 else found.unflatten(-1, (self.answers, self.outputs))
