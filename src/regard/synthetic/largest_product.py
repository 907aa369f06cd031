"""Largest product: find the key with the largest inner product, where lengths count as much as directions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.synthetic.task import ClassificationTask


@dataclass(frozen=True)
class LargestProduct(ClassificationTask):
    """Find the key that has the largest inner product with the query.

    Queries and keys are standard normal. Every key is then multiplied by a random factor whose logarithm
    is normal with standard deviation `spread`.
    Inputs: query (B, dim), keys (B, keys, dim). Target (B,): index of the key.
    """

    dim: int = 16
    keys: int = 8
    spread: float = 1.0

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw examples as the class describes."""
        query = torch.randn(count, self.dim, generator=generator)
        key = torch.randn(count, self.keys, self.dim, generator=generator)
        key = key * (self.spread * torch.randn(count, self.keys, 1, generator=generator)).exp()
        return query, key, (key @ query.unsqueeze(-1)).squeeze(-1).argmax(-1)
