"""Look-up: the query is a noisy copy of one key and asks for its content, which is independent of the key."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.synthetic.task import ClassificationTask


@dataclass(frozen=True)
class Lookup(ClassificationTask):
    """Keys are standard normal, each with one of `labels` random contents; find that of the copied key.

    `noise` is the standard deviation of what the query adds to its key.
    Inputs: query (B, dim), keys (B, keys, dim), values (B, keys, labels) one-hot. Target (B,): content.
    """

    dim: int = 16
    keys: int = 8
    labels: int = 8
    noise: float = 0.2

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw examples as the class describes."""
        key = torch.randn(count, self.keys, self.dim, generator=generator)
        right = torch.randint(self.keys, (count,), generator=generator)
        content = torch.randint(self.labels, (count, self.keys), generator=generator)
        rows = torch.arange(count)
        query = key[rows, right] + self.noise * torch.randn(count, self.dim, generator=generator)
        value = torch.nn.functional.one_hot(content, self.labels).to(key.dtype)
        return query, key, value, content[rows, right]
