"""Largest product: the lengths of keys count as much as their directions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.synthetic.task import ClassificationTask


@dataclass(frozen=True)
class LargestProduct(ClassificationTask):
    """Which key has the largest inner product with the query?

    Directions are uniform; the logarithm of a key's length has standard deviation `spread`.
    Inputs: query (B, dim), keys (B, keys, dim). Target (B,): which key.
    """

    dim: int = 16
    keys: int = 8
    spread: float = 1.0

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """See the class."""
        query = torch.randn(count, self.dim, generator=generator)
        key = torch.randn(count, self.keys, self.dim, generator=generator)
        key = key * (self.spread * torch.randn(count, self.keys, 1, generator=generator)).exp()
        return query, key, (key @ query.unsqueeze(-1)).squeeze(-1).argmax(-1)
