"""Small models in plain torch that patients are made of.

Shape legend: B batch, T tokens, D dim, H heads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, DIM, HEADS, LENGTH, BATCH = 32, 64, 4, 32, 4


class Attention(nn.Module):
    """Self-attention through SDPA with projections of its own for q, k and v."""

    def __init__(
        self,
        dim: int = DIM,
        heads: int = HEADS,
        *,
        causal: bool = False,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.causal, self.scale = heads, causal, scale
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.attend(*self.sides(x)).transpose(1, 2).flatten(2))


class Eager(Attention):
    """The same written out."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q @ k.transpose(-2, -1) * (self.scale or q.shape[-1] ** -0.5)
        if self.causal:
            later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
            logits = logits.masked_fill(later, -math.inf)
        return F.softmax(logits, dim=-1) @ v


class Block(nn.Module):
    """Pre-norm attention and a small network."""

    def __init__(self, attention: nn.Module, dim: int = DIM) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = attention
        self.network = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.network(self.between(x))


class Model(nn.Module):
    """Words, sinusoidal positions, blocks, and logits of words."""

    def __init__(
        self, *attentions: nn.Module, dim: int = DIM, words: int = WORDS, position: float = 1.0
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, dim)
        self.register_buffer("positions", position * sinusoid(256, dim))
        self.blocks = nn.ModuleList(Block(x, dim) for x in attentions)
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, words)

    def embed(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.positions[: ids.shape[1]]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def sinusoid(length: int, dim: int) -> Tensor:
    """Vaswani's positions (length, dim)."""
    angle = torch.arange(length)[:, None] * 1e4 ** (-torch.arange(0, dim, 2) / dim)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


def attentions(depth: int = 2, **options: object) -> list[nn.Module]:
    return [Attention(**options) for _ in range(depth)]  # type: ignore[arg-type]


def at(place: int) -> str:
    """The path of an attention layer of `Model`."""
    return f"blocks.{place}.attention"


def head_rows(head: int, dim: int = DIM, heads: int = HEADS) -> slice:
    """The rows of a projection's weight that make one head."""
    return slice(head * dim // heads, (head + 1) * dim // heads)
