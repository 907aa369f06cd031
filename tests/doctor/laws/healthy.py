"""Healthy models, which no law may accuse above a note."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.doctor.laws.checking import check
from regard.doctor.laws.result import Checked

from . import huggingface, kept_apart
from .families import families, family
from .handmade import DIM, HEADS, WORDS, Small, Torch
from .hosts import HOSTS, B, T, ids_and_mask, real, tokens


class Healthy(NamedTuple):
    """A healthy model with its batch, and what is declared."""

    name: str
    build: Callable[[], tuple[nn.Module, Any]]
    options: dict[str, Any] = {}  # noqa: RUF012
    apart: bool = False

    def examined(self) -> Checked:
        torch.manual_seed(0)
        model, batch = self.build()
        return check(model, batch, **self.options)


def trained(model: nn.Module, batch: Any, steps: int = 20) -> nn.Module:
    """A little: on predicting the batch itself."""
    rate = torch.optim.Adam([x for x in model.parameters() if x.requires_grad], 3e-3)
    for _ in range(steps):
        rate.zero_grad()
        out = model(**batch) if isinstance(batch, dict) else model(batch)
        out = out if isinstance(out, Tensor) else out["logits"]
        ids = batch.get("input_ids", batch.get("x")) if isinstance(batch, dict) else batch
        F.cross_entropy(out[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        rate.step()
    return model


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter that starts at zero, over a frozen base."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def with_adapters() -> tuple[nn.Module, Any]:
    model = Small({}, causal=True).requires_grad_(False)
    for block in model.blocks:
        block.attention.q, block.attention.v = (
            Adapted(block.attention.q),
            Adapted(block.attention.v),
        )
    return model, tokens(B, T)


def starting_at_zero() -> tuple[nn.Module, Any]:
    """Output layers that start at zero: the first backward stops there."""
    model = Small({}, causal=True)
    for block in model.blocks:
        nn.init.zeros_(block.attention.o.weight)
        nn.init.zeros_(block.mlp[-1].weight)
    return model, tokens(B, T)


def frozen_base() -> tuple[nn.Module, Any]:
    model = Small({}, causal=True)
    model.blocks.requires_grad_(False)
    return model, tokens(B, T)


def queries_at_zero() -> tuple[nn.Module, Any]:
    """Query projections that start at zero, as some parametrisations want it."""
    model = Small({}, causal=True)
    for block in model.blocks:
        nn.init.zeros_(block.attention.q.weight)
        nn.init.zeros_(block.attention.q.bias)
    return model, tokens(B, T)


class Own(nn.Module):
    """A host for one kind of attention: `function(q, k, v)` on (B, H, T, D)."""

    def __init__(self, function: Callable[..., Tensor], layers: int = 2) -> None:
        super().__init__()
        self.embed, self.pos_embed = nn.Embedding(WORDS, DIM), nn.Parameter(torch.randn(T, DIM))
        self.layers = nn.ModuleList(OwnAttention(function) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.pos_embed[: x.shape[1]]
        for layer in self.layers:
            x = x + layer(x)
        return x


class OwnAttention(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.extra = nn.Parameter(torch.randn(HEADS, HEADS) / 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.o(self.function(self, q, k, v).transpose(1, 2).flatten(2))


def logits_of(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def causal(logits: Tensor) -> Tensor:
    return logits.masked_fill(torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)


def with_sink(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = causal(logits_of(q, k))
    sink = module.extra[0][:, None, None].expand(*logits.shape[:-1], 1)[: len(logits)]
    sink = sink if sink.ndim == 4 else sink.expand(len(logits), *sink.shape[-3:])
    return torch.cat([logits, sink], -1).softmax(-1)[..., :-1] @ v


def talking_heads(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = causal(logits_of(q, k)).softmax(-1)
    return torch.einsum("gh,bhqk->bgqk", module.extra, weights) @ v


def differential(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    first, second = (causal(logits_of(x, y)).softmax(-1) for x, y in ((q, k), (q.flip(-1), k * 2)))
    return (first - 0.3 * second) @ v


def sigmoid(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return causal(logits_of(q, k)).sigmoid() @ v


def by_hand(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = causal(logits_of(q, k)).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ v


def gated(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (causal(logits_of(q, k)).softmax(-1) * module.extra[0].sigmoid()[:, None, None]) @ v


def convolved(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    before = F.pad(k, (0, 0, 2, 0))
    return (
        causal(
            logits_of(q, (before[..., 2:, :] + before[..., 1:-1, :] + before[..., :-2, :]) / 3)
        ).softmax(-1)
        @ v
    )


def windowed(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length = q.shape[-2]
    band = torch.ones(length, length, dtype=torch.bool).tril().triu(-3)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=band)


def prefix(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=prefix_mask())


def prefix_mask() -> Tensor:
    band = torch.ones(T, T, dtype=torch.bool).tril()
    band[:, :5] = True
    return band


def packed(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    segments = pieces()
    same = segments[:, None, :, None] == segments[:, None, None, :]
    band = torch.ones(T, T, dtype=torch.bool).tril() & same
    return F.scaled_dot_product_attention(q, k, v, attn_mask=band)


def pieces() -> Tensor:
    return (torch.arange(T) >= 6).long().expand(B, T)


class Ours(nn.Module):
    """regard's own modules, with an additive score."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, DIM)
        self.attention = regard.nn.MultiheadAttention(
            DIM, HEADS, score="additive", batch_first=True
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        hides = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return x + self.attention(x, x, x, attn_mask=hides, need_weights=False)[0]


class Normed(nn.Module):
    """Statistics over the batch are a note: no attention does it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = (
            Small({}, causal=False),
            nn.BatchNorm1d(WORDS, track_running_stats=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.body(x).transpose(1, 2)).transpose(1, 2)


class Looking(nn.Module):
    """A causal decoder behind a convolution that looks one step ahead, as in speech."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv = nn.Embedding(WORDS, DIM), nn.Conv1d(DIM, DIM, 3, padding=1)
        self.body = Small({}, causal=True, vectors=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.conv(self.embed(x).transpose(1, 2)).transpose(1, 2))


def hugging(kind: str, batch: Callable[[], Any] = ids_and_mask, **more: Any) -> Callable:
    return lambda: (huggingface.built(kind, {}, **more), batch())


def own(function: Callable[..., Tensor]) -> Callable:
    return lambda: (Own(function), tokens(B, T))


WIDE = tuple(
    Healthy(f"{name} of transformers", lambda row=(kind, name, options): family(*row))
    for kind, name, options in families()
)
CAUSAL = {"causal": True}
HEALTHY = (
    *(Healthy(h.name, lambda h=h: (h.build({}).eval(), h.batch()), h.options, h.apart) for h in HOSTS),
    *(Healthy(f"{h.name}, nothing declared", lambda h=h: (h.build({}), h.batch()), {}, h.apart)
      for h in HOSTS if h.options),
    Healthy("trained decoder", lambda: (trained(Small({}, causal=True), x := tokens(B, T)), x), CAUSAL),
    Healthy("trained GPT-2, padded left",
            lambda: (trained(huggingface.built("GPT2LMHeadModel", {}), x := ids_and_mask(left=True)), x)),
    Healthy("GPT-2, padded right", hugging("GPT2LMHeadModel")),
    Healthy("one sample", lambda: (Small({}, causal=True), tokens(1, T)), CAUSAL),
    Healthy("two tokens", lambda: (Small({}, causal=True), tokens(B, 2)), CAUSAL),
    Healthy("as many samples as tokens", lambda: (Small({}, causal=True), tokens(6, 6)), CAUSAL),
    Healthy("as many heads as tokens", lambda: (Small({}, causal=True, how="matmul"), tokens(3, 4)), CAUSAL),
    Healthy("adapters over a frozen base", with_adapters, CAUSAL),
    Healthy("frozen base", frozen_base, CAUSAL),
    Healthy("output layers at zero", starting_at_zero, CAUSAL),
    Healthy("queries at zero", queries_at_zero, CAUSAL),
    Healthy("dropout in training mode", lambda: (Torch({}, causal=True).train(),
                                                 (tokens(B, T), real(left=True) == 0)), CAUSAL),
    Healthy("ALiBi", lambda: (Small({}, causal=True, positions="alibi"), tokens(B, T)),
            CAUSAL | {"positions": "alibi"}),
    Healthy("no positions", lambda: (Small({}, causal=True, positions="none"), tokens(B, T)), CAUSAL),
    Healthy("no positions, declared", lambda: (Small({}, causal=False, positions="none"), tokens(B, T)),
            {"positions": False}),
    Healthy("rotary encoder", lambda: (Small({}, causal=False, positions="rotary"), tokens(B, T)),
            {"positions": "rotary"}),
    Healthy("bfloat16", lambda: (Small({}, causal=True).bfloat16(), tokens(B, T)), CAUSAL),
    Healthy("float64", lambda: (Small({}, causal=True).double(), tokens(B, T)), CAUSAL),
    Healthy("sink", own(with_sink), CAUSAL),
    Healthy("talking heads", own(talking_heads), CAUSAL),
    Healthy("differential", own(differential), CAUSAL),
    Healthy("sigmoid", own(sigmoid), CAUSAL),
    Healthy("softmax by hand", own(by_hand), CAUSAL),
    Healthy("gated weights", own(gated), CAUSAL),
    Healthy("convolved keys", own(convolved), CAUSAL),
    Healthy("sliding window", own(windowed), CAUSAL),
    Healthy("sliding window, declared", own(windowed),
            {"causal": torch.ones(T, T, dtype=torch.bool).tril().triu(-3)}),
    Healthy("prefix-LM, declared", own(prefix), {"causal": prefix_mask()}),
    Healthy("prefix-LM", own(prefix)),
    Healthy("packed segments", own(packed), CAUSAL | {"segments": pieces()}),
    Healthy("regard's additive attention", lambda: (Ours(), tokens(B, T)), CAUSAL),
    Healthy("Mistral with a window", hugging("MistralForCausalLM")),
    Healthy("statistics over the batch", lambda: (Normed(), tokens(B, T))),
    Healthy("look-ahead convolution", lambda: (Looking(), tokens(B, T)), CAUSAL),
    *kept_apart.healthy(),
)  # fmt: skip
