"""The model of sequences and tables: tokens that attend to one another. B batch, L tokens, D width, H heads."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

import regard
from regard import Score
from regard.choosing.tasks.models import SMALL, key_mask

Embedding = Literal["tokens", "frames", "columns"]


class SequenceModel(nn.Module):
    """One block of a transformer whose attention has the given score, and a linear readout.

    Args:
        score: the score; its heads are the model's heads.
        embed: what the input is. "tokens" are ids (B, L), "frames" vectors (B, L, size): both get sine
            positions. "columns" are numbers (B, L, 1) of which each position has a meaning of its own, such
            as the columns of a table: each has its own direction and offset.
        size: number of ids, numbers of a frame, or number of columns.
        outputs: classes or numbers of an answer.
        width: D.
        tags: an answer for each token, in place of one for the whole sequence.
    """

    def __init__(
        self,
        score: Score,
        embed: Embedding,
        size: int,
        outputs: int,
        width: int = 32,
        tags: bool = False,
    ) -> None:
        super().__init__()
        self.score, self.embed, self.tags, self.heads = score, embed, tags, score.heads or 1
        if embed == "tokens":
            self.inside: nn.Module = nn.Embedding(size, width)
        elif embed == "frames":
            self.inside = nn.Linear(size, width)
        else:
            self.inside = ColumnEmbedding(size, width)
        self.before = nn.LayerNorm(width)
        self.value = nn.Linear(width, max(width // self.heads, 1) * self.heads, bias=False)
        self.after = nn.Linear(self.value.out_features, width)
        self.wide = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outputs))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Tokens (B, L) or (B, L, size) and which are real (B, L), to (B, outputs) or (B, L, outputs)."""
        found = self.inside(x)
        if self.embed != "columns":
            found = found + sine_positions(found)
        found = found + self.after(self.attend(self.before(found), mask))
        found = found + self.wide(found)
        if self.tags:
            return self.out(found)
        if mask is None:
            return self.out(found.mean(1))
        real = mask.unsqueeze(-1).to(found.dtype)
        return self.out((found * real).sum(1) / real.sum(1).clamp(min=1))

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of all tokens (B, L, D) to one another."""
        told = self.value(x).unflatten(-1, (self.heads, -1)).movedim(-2, -3)
        pairs = x.shape[0] * x.shape[1] ** 2 * self.heads
        # Pairwise scores in plain PyTorch take (B, H, L, L, hidden) numbers.
        small = pairs * x.shape[-1] <= SMALL
        read = regard.attention(
            x.unsqueeze(-3),
            x.unsqueeze(-3),
            told,
            self.score,
            mask=key_mask(mask),
            engine="reference" if small else None,
        )
        return read.movedim(-3, -2).flatten(-2)


class ColumnEmbedding(nn.Module):
    """Each column of a table as a token: its number times a direction, plus an offset, both its own."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        # The scale of `nn.Linear` with one input would make all tokens alike; that of an embedding tells
        # columns apart from the start.
        self.direction = nn.Parameter(torch.randn(columns, width) / math.sqrt(width))
        self.offset = nn.Parameter(torch.randn(columns, width) / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, 1) to (B, L, D)."""
        return x * self.direction + self.offset


def sine_positions(x: Tensor) -> Tensor:
    """Sines and cosines of the positions (L, D), with wavelengths from 2 pi to 10,000 * 2 pi."""
    length, width = x.shape[-2:]
    half = (width + 1) // 2
    place = torch.arange(length, device=x.device, dtype=x.dtype).unsqueeze(1)
    rate = torch.exp(
        -math.log(10000.0) * torch.arange(half, device=x.device, dtype=x.dtype) / max(half, 1)
    )
    return torch.stack([(place * rate).sin(), (place * rate).cos()], -1).flatten(1)[:, :width]
