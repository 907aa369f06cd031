"""Recall: after the last token, name the class of the first."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from regard.synthetic.task import ClassificationTask


@dataclass(frozen=True)
class Recall(ClassificationTask):
    """Tokens are random classes, one-hot. The first one carries a mark, and its class is the answer.

    Inputs: tokens (B, length, classes + 1), the mark as the last feature. Target (B,): class.
    """

    length: int = 32
    classes: int = 4

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw examples as the class describes."""
        tokens = torch.randint(self.classes, (count, self.length), generator=generator)
        mark = torch.zeros(count, self.length, 1)
        mark[:, 0] = 1
        return torch.cat([one_hot(tokens, self.classes).float(), mark], -1), tokens[:, 0]
