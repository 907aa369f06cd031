"""Look-up: the query is a noisy copy of one key, whose content has nothing to do with its address."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.synthetic.task import ClassificationTask


@dataclass(frozen=True)
class Lookup(ClassificationTask):
    """Keys are random directions, each with one of `labels` random contents; say the content.

    Inputs: query (B, dim), keys (B, keys, dim), values (B, keys, labels) one-hot. Target (B,).
    """

    dim: int = 16
    keys: int = 8
    labels: int = 8
    noise: float = 0.2

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """See the class."""
        key = torch.randn(count, self.keys, self.dim, generator=generator)
        right = torch.randint(self.keys, (count,), generator=generator)
        content = torch.randint(self.labels, (count, self.keys), generator=generator)
        rows = torch.arange(count)
        query = key[rows, right] + self.noise * torch.randn(count, self.dim, generator=generator)
        value = torch.nn.functional.one_hot(content, self.labels).to(key.dtype)
        return query, key, value, content[rows, right]
