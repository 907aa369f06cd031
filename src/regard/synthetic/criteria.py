"""Several criteria: in each of several feature spaces the query names one key, and asks for its content.

B batch, n keys, C criteria, D dims of one space.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.synthetic.task import WORLD_SEEDS


@dataclass(frozen=True)
class Criteria:
    """Look up one key's content by each of C addresses.

    Every key has a random address in each of C orthogonal spaces of D dims, which a random rotation hides
    among the features. For each space the query holds a noisy copy of one key's address, of a different
    key for each space, and the answer is that key's content. With `together` all addresses of the query
    come from one key, and every answer is its content.

    Inputs: query (B, C D), keys (B, n, C D), values (B, n, labels) one-hot. Target (B, C): contents.

    Attributes:
        spaces: C, the number of criteria.
        dim: D.
        keys: n.
        labels: number of different contents.
        noise: standard deviation of the noise on the addresses of the query.
        together: whether all criteria ask for the same key.
        world: seed of the rotation of the spaces.
    """

    spaces: int = 2
    dim: int = 4
    keys: int = 8
    labels: int = 4
    noise: float = 0.1
    together: bool = False
    world: int = 0

    def bases(self) -> Tensor:
        """Orthonormal bases of the spaces, (C, D, C D)."""
        return rotation(self.spaces * self.dim, self.world).view(self.spaces, self.dim, -1)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw examples as the class describes."""
        address = torch.randn(count, self.keys, self.spaces, self.dim, generator=generator)
        # All addresses get the same length: a dot product would favour longer ones.
        address = address * (math.sqrt(self.dim) / address.norm(dim=-1, keepdim=True))
        right = torch.rand(count, self.keys, generator=generator).argsort(-1)[:, : self.spaces]
        if self.together:
            right = right[:, :1].expand(-1, self.spaces)
        rows, every = torch.arange(count).unsqueeze(-1), torch.arange(self.spaces)
        asked = address[rows, right, every]
        asked = asked + self.noise * torch.randn(asked.shape, generator=generator)
        content = torch.randint(self.labels, (count, self.keys), generator=generator)
        bases = self.bases()
        query = torch.einsum("bcd,cdw->bw", asked, bases)
        key = torch.einsum("bncd,cdw->bnw", address, bases)
        value = nn.functional.one_hot(content, self.labels).to(key.dtype)
        return query, key, value, content.gather(1, right)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy, averaged over examples and criteria; output (B, C, labels)."""
        return nn.functional.cross_entropy(output.movedim(-1, 1), target)

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """Accuracy: the fraction of right answers."""
        return (output.argmax(-1) == target).double().mean()


@functools.cache
def rotation(width: int, world: int) -> Tensor:
    """A random orthogonal matrix (width, width), the same for each `world`."""
    generator = torch.Generator().manual_seed(WORLD_SEEDS + world)
    return torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
