"""A model with several heads, and measures of what each head responds to.

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

# (heads, input dim, total width of all heads) -> a score with that many heads.
MakeScore = Callable[[int, int, int], Score]


def scaled_dot(heads: int, dim: int, width: int) -> Score:
    """Scaled dot product as in a transformer: each head projects to `width // heads` dims."""
    return regard.Projected(regard.ScaledDot(), dim, dim, width=width // heads, heads=heads)


def additive(heads: int, dim: int, width: int) -> Score:
    """Additive score with `width // heads` hidden units in each head, to match `scaled_dot`."""
    return regard.Projected(regard.Additive(width // heads, heads, bias=True), dim, dim)


SCORES: dict[str, MakeScore] = {"scaled dot": scaled_dot, "additive": additive}


class HeadedReader(nn.Module):
    """Multi-head attention over the keys, followed by one linear layer for all answers.

    Args:
        score: computes every head from the same query and keys.
        task: supplies the sizes.
        values: total width of the values, divided equally among the heads.
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
        """Attention weights of each head, (B, H, n)."""
        return self.logits(query, key).softmax(-1)


def members(trained: Trained) -> Iterator[HeadedReader]:
    """The trained model of each seed."""
    for number in range(len(trained.quality)):
        model = cast(HeadedReader, copy.deepcopy(trained.model))
        model.load_state_dict(trained.member(number))
        yield model


def sensitivity(model: HeadedReader, query: Tensor, key: Tensor, bases: Tensor) -> Tensor:
    """Fraction of each head's response to a key that falls in each space: (H, C), rows sum to 1.

    The response is the mean over pairs of |P_c d logit_h / d key|^2, where P_c projects onto space c.
    """
    key = key.clone().requires_grad_()
    logits = model.logits(query, key)
    found = []
    for head in range(logits.shape[1]):
        (slope,) = torch.autograd.grad(logits[:, head].sum(), key, retain_graph=True)
        found.append(torch.einsum("bnw,cdw->bncd", slope, bases).square().mean((0, 1, 3)))
    power = torch.stack(found)
    return power / power.sum(-1, keepdim=True)
