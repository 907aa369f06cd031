"""Several criteria: the query asks for one key by each of its feature spaces, and for what each says.

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
    """Keys have an address in each of C orthogonal spaces, turned at random; say C contents.

    Inputs: query (B, C D), keys (B, n, C D), values (B, n, labels) one-hot. Target (B, C).
    With `together` the query copies every address from one key, and every answer is its content.

    Attributes:
        spaces: C, the number of criteria.
        dim: D.
        keys: n.
        labels: contents to tell apart.
        noise: on the addresses of the query.
        together: ask for one key by all criteria at once.
        world: which rotation of the spaces.
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
        """See the class."""
        address = torch.randn(count, self.keys, self.spaces, self.dim, generator=generator)
        # Longer or shorter addresses would be found more or less often.
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
        """Cross entropy, the mean over criteria; output (B, C, labels)."""
        return nn.functional.cross_entropy(output.movedim(-1, 1), target)

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """Share of right answers."""
        return (output.argmax(-1) == target).double().mean()


@functools.cache
def rotation(width: int, world: int) -> Tensor:
    """A random rotation."""
    generator = torch.Generator().manual_seed(WORLD_SEEDS + world)
    return torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
