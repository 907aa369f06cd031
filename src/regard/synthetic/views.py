"""Matching two views: the query shows an object by one linear map, the keys show objects by another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from scipy import special
from torch import Tensor

from regard.synthetic.task import WORLD_SEEDS, ClassificationTask


@dataclass(frozen=True)
class Views(ClassificationTask):
    """Find the key that shows the same object as the query.

    An object is a direction z, uniform on the unit sphere of `shared` dims. A key shows it as
    `k = sqrt(key_dim) A z + noise`, a query as `q = sqrt(query_dim) B z + noise`, where A and B
    have orthonormal columns. On average a feature therefore has variance 1 plus that of the noise.
    Query and key are related by the matrix B A' of rank `shared`, and the best answer is known exactly
    (`log_odds`).

    Inputs: query (B, query_dim), keys (B, keys, key_dim). Target (B,): index of the key.

    Attributes:
        shared: dims of an object, at most those of a query and of a key.
        query_dim: dims of a query.
        key_dim: dims of a key.
        keys: number of keys; one of them is right.
        noise: standard deviation of the noise that each view adds to each feature.
        alike: whether both views are the same, A = B.
        shown: what the query shows of each feature x. "plain": x. "bent": x |x|, which is invertible.
            "folded": |x| minus its mean, which leaves query and key uncorrelated, so that no matrix
            relates them.
        seed: of A and B.
    """

    shared: int = 4
    query_dim: int = 16
    key_dim: int = 16
    keys: int = 8
    noise: float = 1.0
    alike: bool = False
    shown: Literal["plain", "bent", "folded"] = "plain"
    seed: int = 0

    @cached_property
    def views(self) -> tuple[Tensor, Tensor]:
        """sqrt(query_dim) B (query_dim, shared) and sqrt(key_dim) A (key_dim, shared)."""
        generator = torch.Generator().manual_seed(WORLD_SEEDS + self.seed)
        of_key, of_query = (
            dim**0.5 * torch.linalg.qr(torch.randn(dim, self.shared, generator=generator)).Q
            for dim in (self.key_dim, self.query_dim)
        )
        return (of_key if self.alike else of_query), of_key

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw examples as the class describes."""
        of_query, of_key = self.views
        things = torch.randn(count, self.keys, self.shared, generator=generator)
        things = things / things.norm(dim=-1, keepdim=True)
        right = torch.randint(self.keys, (count,), generator=generator)
        key = things @ of_key.T
        query = things[torch.arange(count), right] @ of_query.T
        key = key + self.noise * torch.randn(key.shape, generator=generator)
        query = query + self.noise * torch.randn(query.shape, generator=generator)
        return self.show(query), key, right

    def show(self, query: Tensor) -> Tensor:
        """The query's features transformed as `shown` says."""
        if self.shown == "bent":
            return query * query.abs()
        if self.shown == "folded":
            # E|x| = sqrt(2 / pi) sigma for a normal x; here sigma^2 = 1 + noise^2.
            return query.abs() - (2 / math.pi * (1 + self.noise**2)) ** 0.5
        return query

    def log_odds(self, query: Tensor, key: Tensor) -> Tensor:
        """The optimal logits: log p(q, k) / (p(q) p(k)) of each key, up to a term in q alone.

        Given z, query and key are normal, so p(q, k) is proportional to the integral of exp(<s, z>) over
        the sphere, where s is the sum of the evidence for z in q and in k. That integral is a Bessel
        function of |s|.
        """
        if self.shown == "folded":
            raise ValueError("a folded query has lost its signs: its log odds have no closed form")
        if self.shown == "bent":
            query = query.sign() * query.abs().sqrt()
        of_query, of_key = self.views
        says_key = key @ of_key / self.noise**2
        says_both = says_key + (query @ of_query / self.noise**2).unsqueeze(-2)
        return self.log_integral(says_both) - self.log_integral(says_key)

    def log_integral(self, says: Tensor) -> Tensor:
        """Log of the integral of exp(<s, z>) over the unit sphere, up to a constant."""
        length = says.double().norm(dim=-1)
        order = self.shared / 2 - 1
        # `ive` is I scaled by exp(-|s|), which keeps it finite for long s; the length is added back below.
        bessel = torch.from_numpy(special.ive(order, length.numpy()))
        return bessel.log() + length - order * length.log()

    def ceiling(self, count: int = 4096) -> float:
        """Accuracy of the exact log odds, estimated on `count` examples: the best that any score can reach."""
        query, key, right = self.sample(
            count, torch.Generator().manual_seed(2 * WORLD_SEEDS + self.seed)
        )
        return float(self.quality(self.log_odds(query, key), right))
