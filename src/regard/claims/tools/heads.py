"""Models with several heads, and what each head does.

B batch, n keys, H heads, C criteria of D dims each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

import regard
from regard import Score
from regard.claims.tools.learning import Trained
from regard.synthetic.criteria import Criteria

# From heads, input dim and width of all heads together to a score that makes the heads.
MakeScore = Callable[[int, int, int], Score]


def scaled_dot(heads: int, dim: int, width: int) -> Score:
    """As in a transformer: each head projects to its share of the width."""
    return regard.Projected(regard.ScaledDot(), dim, dim, width=width // heads, heads=heads)


def additive(heads: int, dim: int, width: int) -> Score:
    """As many hidden units in all as the other has dims, shared out to the heads."""
    return regard.Projected(regard.Additive(width // heads, heads, bias=True), dim, dim)


SCORES: dict[str, MakeScore] = {"scaled dot": scaled_dot, "additive": additive}


class HeadedReader(nn.Module):
    """Attention with heads over the keys, read out by one linear layer for all answers.

    Args:
        score: makes the heads from one shared query and key.
        task: whose sizes it takes.
        values: width of the values of all heads together; each head has its share.
    """

    def __init__(self, score: Score, task: Criteria, values: int = 16) -> None:
        super().__init__()
        self.score, self.heads = score, score.heads
        self.value = nn.Linear(task.labels, values, bias=False)
        self.out = nn.Linear(values, task.spaces * task.labels)
        self.labels = task.labels

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(B, C D), (B, n, C D), (B, n, labels) to (B, C, labels)."""
        told = self.value(value).unflatten(-1, (self.heads, -1)).movedim(-2, -3)
        asked = query.unsqueeze(-2).unsqueeze(-3)
        read = regard.attention(asked, key.unsqueeze(-3), told, self.score, engine="reference")
        return self.out(read.flatten(-3)).unflatten(-1, (-1, self.labels))

    def logits(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores of each head, (B, H, n)."""
        asked = query.unsqueeze(-2).unsqueeze(-3)
        return regard.score(asked, key.unsqueeze(-3), self.score).squeeze(-2)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Attention of each head, (B, H, n)."""
        return self.logits(query, key).softmax(-1)


def members(trained: Trained) -> Iterator[HeadedReader]:
    """The trained reader of each seed by itself."""
    for number in range(len(trained.quality)):
        model = cast(HeadedReader, copy.deepcopy(trained.model))
        model.load_state_dict(trained.member(number))
        yield model


def sensitivity(model: HeadedReader, query: Tensor, key: Tensor, bases: Tensor) -> Tensor:
    """How much of each head's response to a key goes to each space: (H, C), rows sum to 1.

    The mean over pairs of |P_c d logit_h / d key|^2, where P_c projects on space c.
    """
    key = key.clone().requires_grad_()
    logits = model.logits(query, key)
    found = []
    for head in range(logits.shape[1]):
        (slope,) = torch.autograd.grad(logits[:, head].sum(), key, retain_graph=True)
        found.append(torch.einsum("bnw,cdw->bncd", slope, bases).square().mean((0, 1, 3)))
    power = torch.stack(found)
    return power / power.sum(-1, keepdim=True)
