"""A decoder with a cache of keys and values, written by hand.

Shape legend: B samples, T tokens, H heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .faults import attend, merged
from .handmade import DIM, HEADS, WORDS, turned

Pairs = list[tuple[Tensor, Tensor]]


class CachedAttention(nn.Module):
    """Self-attention that takes the keys and values before its tokens, and returns all."""

    def __init__(self, fault: str, rotary: bool) -> None:
        super().__init__()
        self.fault, self.rotary = fault, rotary
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(
        self, x: Tensor, before: tuple[Tensor, Tensor] | None, real: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = (
            f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        start = 0 if before is None or self.fault == "positions-restart" else before[0].shape[2]
        if self.rotary:
            q, k = turned(q, start), turned(k, start)
        if before is not None:
            k, v = torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)
        out = attend(q, k, v, causal=True, real=real, fault=self.fault)
        return self.o(merged(out, self.fault)), (k, v)


class CachedDecoder(nn.Module):
    """Returns a dict, or with `pairs` a tuple whose second part is the cache."""

    def __init__(
        self, faults: Mapping[int, str], *, rotary: bool, pairs: bool, layers: int = 3
    ) -> None:
        super().__init__()
        self.faults, self.pairs = set(faults.values()), pairs
        self.embed, self.head = nn.Embedding(WORDS, DIM), nn.Linear(DIM, WORDS)
        self.pos_embed = None if rotary else nn.Parameter(torch.randn(64, DIM))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(layers))
        self.blocks = nn.ModuleList(
            CachedAttention(faults.get(i, ""), rotary) for i in range(layers)
        )

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, cache: Pairs | None = None):
        h = self.embed(x)
        if self.pos_embed is not None:
            restarts = cache is None or "positions-restart" in self.faults
            start = 0 if restarts else cache[0][0].shape[2]
            h = h + self.pos_embed[start : start + x.shape[1]]
        real, kept = None if attention_mask is None else attention_mask.bool(), []
        for i, (block, norm) in enumerate(zip(self.blocks, self.norms, strict=True)):
            out, pair = block(norm(h), None if cache is None else cache[i], real)
            h = h + out
            kept.append(pair)
        return (self.head(h), kept) if self.pairs else {"logits": self.head(h), "cache": kept}
