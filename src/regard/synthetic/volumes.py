"""Matching across volumes: keys have random lengths, and only their directions carry information."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.synthetic.task import WORLD_SEEDS, ClassificationTask


@dataclass(frozen=True)
class Volumes(ClassificationTask):
    """Find the key that shows the same latent vector as the query; each side has its own linear map.

    Every key is multiplied by its own volume, `scale * exp(spread * z)` with z standard normal.
    Inputs: query (B, query_dim), keys (B, n, key_dim). Target (B,): index of the key.

    Attributes:
        latent: dims of the latent vector.
        query_dim: dims of the query. When it equals `latent` and `key_dim`, there are no maps: both
            sides show the latent vector itself.
        key_dim: dims of a key.
        keys: n, the number of keys.
        noise: standard deviation of the noise on the query's latent vector.
        spread: standard deviation of the log volume.
        scale: common factor of all keys.
        world: seed of the two maps.
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
        """Draw examples as the class describes."""
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
    """The maps of query and key: random isometries, scaled to features of unit variance on average."""
    generator = torch.Generator().manual_seed(WORLD_SEEDS + world)

    def isometry(dim: int) -> Tensor:
        columns = torch.linalg.qr(torch.randn(dim, latent, generator=generator)).Q
        return columns.mT * (dim / latent) ** 0.5

    return isometry(query_dim), isometry(key_dim)
