"""Hosts that are written by hand: a small transformer in many layouts, recurrent decoders, pooling.

Shape legend: B samples, T tokens, H heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .faults import attend, merged

DIM, HEADS, WORDS = 32, 4, 40


def turned(x: Tensor, start: int = 0) -> Tensor:
    """Rotary positions on (B, H, T, D)."""
    t, d = x.shape[-2:]
    angle = torch.arange(start, start + t)[:, None] / 10 ** (torch.arange(d // 2) * 2 / d)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Attention(nn.Module):
    """Self-attention or, with `memory`, cross-attention."""

    def __init__(self, fault: str, how: str, causal: bool, positions: str) -> None:
        super().__init__()
        self.fault, self.how, self.causal, self.positions = fault, how, causal, positions
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(
        self, x: Tensor, real: Tensor | None = None, memory: Tensor | None = None
    ) -> Tensor:
        source = x if memory is None else memory
        q, k, v = (
            f(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for f, y in ((self.q, x), (self.k, source), (self.v, source))
        )
        bias = None
        if self.positions == "rotary" and self.fault != "rotary-lost":
            q, k = turned(q), k if self.fault == "rotary-on-queries-only" else turned(k)
        if self.positions == "alibi":
            places = torch.arange(x.shape[1])
            slopes = 2.0 ** -torch.arange(1, HEADS + 1)
            bias = -slopes[:, None, None] * (places[:, None] - places).abs()
        out = attend(
            q, k, v, causal=self.causal, real=real, fault=self.fault, how=self.how, bias=bias
        )
        return self.o(merged(out, self.fault))


class Block(nn.Module):
    def __init__(
        self, fault: str, how: str, causal: bool, positions: str, cross: bool = False
    ) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(DIM), Attention(fault, how, causal, positions)
        self.mlp = nn.Sequential(
            nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM)
        )

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm(x), real)
        return x + self.mlp(x)


class Small(nn.Module):
    """A decoder or encoder over token ids or vectors.

    Args:
        faults: by layer.
        causal, how, positions: as in `Attention`; "table" adds learned positions, "none" has none.
        vectors: whether inputs are vectors.
        pooled: whether the output is one answer for each sample.
        form: of the output: "tensor", "tuple" or "dict".
    """

    def __init__(
        self,
        faults: Mapping[int, str],
        *,
        causal: bool,
        how: str = "sdpa",
        positions: str = "table",
        vectors: bool = False,
        pooled: bool = False,
        form: str = "tensor",
        layers: int = 3,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(DIM, DIM) if vectors else nn.Embedding(WORDS, DIM)
        self.lost = "positions-lost" in faults.values()
        self.pos_embed = nn.Parameter(torch.randn(64, DIM)) if positions == "table" else None
        self.blocks = nn.ModuleList(
            Block(faults.get(i, ""), how, causal, positions) for i in range(layers)
        )
        self.head, self.pooled, self.form = nn.Linear(DIM, WORDS), pooled, form

    def forward(self, x: Tensor, attention_mask: Tensor | None = None):
        x = self.embed(x)
        if self.pos_embed is not None and not self.lost:
            x = x + self.pos_embed[: x.shape[1]]
        real = None if attention_mask is None else attention_mask.bool()
        for block in self.blocks:
            x = block(x, real)
        if self.pooled:
            share = torch.ones(x.shape[:2]) if real is None else real.float()
            x = (x * share.unsqueeze(-1)).sum(1) / share.sum(1, keepdim=True)
        out = self.head(x)
        return {"tensor": out, "tuple": (out, x), "dict": {"logits": out, "hidden": x}}[self.form]


class Whole(nn.Module):
    """A decoder whose attention is written in the model itself, without modules of its own."""

    def __init__(self, faults: Mapping[int, str], layers: int = 2) -> None:
        super().__init__()
        self.faults, self.layers = faults, layers
        self.embed, self.wpe = nn.Embedding(WORDS, DIM), nn.Embedding(64, DIM)
        self.qkv = nn.ModuleList(nn.Linear(DIM, 3 * DIM) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(layers))
        self.head = nn.Linear(DIM, WORDS)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.embed(idx) + self.wpe(torch.arange(idx.shape[1]))
        for i in range(self.layers):
            q, k, v = (
                y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv[i](x).chunk(3, -1)
            )
            fault = self.faults.get(i, "")
            x = x + self.out[i](
                merged(attend(q, k, v, causal=True, fault=fault, how="matmul"), fault)
            )
        return self.head(x)


class Bahdanau(nn.Module):
    """A GRU encoder, and a decoder that attends at each step by an additive score."""

    def __init__(self, faults: Mapping[int, str]) -> None:
        super().__init__()
        self.fault = faults.get(0, "")
        self.source, self.words = nn.Embedding(WORDS, DIM), nn.Embedding(WORDS, DIM)
        self.encoder = nn.GRU(DIM, DIM, batch_first=True)
        self.cell = nn.GRUCell(2 * DIM, DIM)
        self.score = Additive(self.fault)
        self.head = nn.Linear(2 * DIM, WORDS)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        memory, _ = self.encoder(self.source(source))
        real = torch.arange(source.shape[1]) < lengths[:, None]
        state = memory[:, 0]
        words, outputs = self.words(target), []
        for step in range(target.shape[1]):
            context = self.score(state, memory, real)
            state = self.cell(torch.cat([words[:, step], context], -1), state)
            outputs.append(self.head(torch.cat([state, context], -1)))
        return torch.stack(outputs, 1)


class Additive(nn.Module):
    """tanh(W q + U k) v, a softmax over the source, and a sum: by a product or a sum."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.query, self.key = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM, bias=False)
        self.v = nn.Linear(DIM, 1, bias=False)

    def forward(self, state: Tensor, memory: Tensor, real: Tensor) -> Tensor:
        query = self.query(state)
        query = query.detach() if self.fault == "detached-queries" else query
        key = self.key(memory)
        if self.fault == "detached-keys":
            key = key.detach()
        logits = self.v((query.unsqueeze(1) + key).tanh()).squeeze(-1)
        if self.fault == "zero-queries":
            logits = logits * 0.0
        if self.fault == "inverted-padding":
            real = ~real | real.all(1, keepdim=True)
        late = self.fault == "mask-after-softmax"
        if self.fault != "no-padding-mask" and not late:
            logits = logits.masked_fill(~real, -1e9)
        weights = logits.softmax(0 if self.fault == "softmax-over-batch" else -1)
        weights = weights.masked_fill(~real, 0.0) if late else weights
        if self.fault == "weights-without-gradient":
            weights = weights.detach()
        if self.fault == "dropout-left-on":
            weights = nn.functional.dropout(weights, 0.3)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1)


class Pooling(nn.Module):
    """Attention pooling over vectors: a learned score, a softmax over time, a weighted sum."""

    def __init__(self, faults: Mapping[int, str]) -> None:
        super().__init__()
        self.fault = faults.get(0, "")
        self.inner = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU())
        self.pool = Pool(self.fault)
        self.head = nn.Linear(DIM, 5)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        return self.head(self.pool(self.inner(x), ~padding_mask))


class Pool(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.score = (
            fault,
            nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, 1)),
        )

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        logits = self.score(x.detach() if self.fault == "detached-keys" else x)
        logits = logits * 0.0 if self.fault == "zero-queries" else logits
        real = real.unsqueeze(-1)
        if self.fault == "inverted-padding":
            real = ~real | real.all(1, keepdim=True)
        late = self.fault == "mask-after-softmax"
        if self.fault != "no-padding-mask" and not late:
            logits = logits.masked_fill(~real, -torch.inf)
        dim = {"softmax-over-batch": 0, "softmax-over-queries": -1}.get(self.fault, 1)
        weights = logits.softmax(dim)
        weights = weights.nan_to_num(0.0) if dim == 0 else weights
        weights = weights * real if late else weights
        if self.fault == "weights-without-gradient":
            weights = weights.detach()
        if self.fault == "dropout-left-on":
            weights = nn.functional.dropout(weights, 0.3)
        return (weights * x).sum(1)


class Torch(nn.Module):
    """torch's own layers, with masks as a user passes them."""

    def __init__(self, faults: Mapping[int, str], *, causal: bool, seq_first: bool = False) -> None:
        super().__init__()
        self.faults, self.causal, self.seq_first = faults, causal, seq_first
        self.embed, self.pos_embed = nn.Embedding(WORDS, DIM), nn.Parameter(torch.randn(64, 1, DIM))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, 0.1, batch_first=not seq_first)
            for _ in range(3)
        )
        self.head = nn.Linear(DIM, WORDS)

    def forward(self, tokens: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        x = self.embed(tokens)
        length = tokens.shape[0 if self.seq_first else 1]
        place = self.pos_embed[:length]
        if "positions-lost" not in self.faults.values():
            x = x + (place if self.seq_first else place.transpose(0, 1))
        for i, layer in enumerate(self.layers):
            x = layer(x, *self.masks(self.faults.get(i, ""), length, src_key_padding_mask))
        return self.head(x)

    def masks(
        self, fault: str, length: int, padding: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        hides = torch.ones(length, length, dtype=torch.bool).triu(1) if self.causal else None
        if fault == "shifted-mask":
            hides = torch.ones(length, length, dtype=torch.bool).triu(2)
        elif fault == "no-causal-mask":
            hides = None
        elif fault == "inverted-causal":
            hides = torch.ones(length, length, dtype=torch.bool).tril(-1)
        if fault == "no-padding-mask":
            return hides, None
        if fault == "inverted-padding":
            return hides, ~padding & padding.any(1, keepdim=True)
        if fault == "padding-of-wrong-side":
            return hides, padding.flip(1)
        return hides, padding
