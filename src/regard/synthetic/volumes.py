"""Matching across volumes: every key is as loud as it likes, and only its direction counts."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.synthetic.task import WORLD_SEEDS, ClassificationTask


@dataclass(frozen=True)
class Volumes(ClassificationTask):
    """A latent vector is seen twice, by a query and by one of n keys, each by its own linear map.

    Inputs: query (B, query_dim), keys (B, n, key_dim). Target (B,): which key. Every key is
    multiplied by its own volume, `scale * exp(spread * z)` with z standard normal.

    Attributes:
        latent: dim of what both see.
        query_dim: of the query; equal to `latent` and `key_dim`, both see the latent itself.
        key_dim: of a key.
        keys: n.
        noise: added to the latent of the query.
        spread: standard deviation of the log volume.
        scale: of all keys against queries.
        world: which two maps.
    """

    latent: int = 8
    query_dim: int = 8
    key_dim: int = 8
    keys: int = 16
    noise: float = 0.1
    spread: float = 0.0
    scale: float = 1.0
    world: int = 0

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """See the class."""
        latent = torch.randn(count, self.keys, self.latent, generator=generator)
        latent = nn.functional.normalize(latent, dim=-1) * self.latent**0.5
        right = torch.randint(self.keys, (count,), generator=generator)
        asked = latent[torch.arange(count), right]
        asked = asked + self.noise * torch.randn(asked.shape, generator=generator)
        volume = torch.randn(count, self.keys, 1, generator=generator)
        volume = self.scale * torch.exp(self.spread * volume)
        if self.latent == self.query_dim == self.key_dim:
            return asked, volume * latent, right
        to_query, to_key = maps(self.latent, self.query_dim, self.key_dim, self.world)
        return asked @ to_query, volume * (latent @ to_key), right


@functools.cache
def maps(latent: int, query_dim: int, key_dim: int, world: int) -> tuple[Tensor, Tensor]:
    """How the two sides see the latent: random isometries, scaled to features of unit variance."""
    generator = torch.Generator().manual_seed(WORLD_SEEDS + world)

    def isometry(dim: int) -> Tensor:
        columns = torch.linalg.qr(torch.randn(dim, latent, generator=generator)).Q
        return columns.mT * (dim / latent) ** 0.5

    return isometry(query_dim), isometry(key_dim)
