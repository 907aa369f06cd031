"""What the tests of capture and watch share: vitals that keep what they are given, small models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.doctor.chart import Vitals
from regard.doctor.seen import Seen
from regard.doctor.vitals import Level
from regard.engines import plan
from regard.problem import Problem

DIM, HEADS, LENGTH = 16, 2, 6
NAMES = ("bound", "rows", "query_grad", "key_grad", "value_grad")


class Kept:
    """A stand-in for the vitals: two cheap columns, and everything that was seen in lists."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.levels: list[Level] = []
        columns = {side: NAMES.index(f"{side}_grad") for side in ("query", "key", "value")}
        self.vitals = Vitals(NAMES, self.measure, self.gradient, columns)

    def measure(self, seen: Seen, level: Level, rows: Tensor | None, turn: int) -> Tensor:
        self.seen.append(seen)
        self.levels.append(level)
        logits = raw_logits(seen)
        out = torch.full((logits.shape[1], len(NAMES)), torch.nan)
        out[:, 0] = logits.float().abs().amax((0, 2, 3))
        if rows is not None:
            out[:, 1] = rows.shape[0]
        return out

    def gradient(self, gradient: Tensor, heads: int) -> Tensor:
        rms = gradient.float().square().mean((0, 2, 3)).sqrt()
        return rms.repeat_interleave(heads // rms.shape[0])


def raw_logits(seen: Seen) -> Tensor:
    """Logits before shift, cap and bias."""
    if seen.logits is not None:
        return seen.logits
    if seen.pairwise is not None:
        return plan.scores(Problem(seen.pairwise, seen.pairwise.b))
    query, key = seen.query, seen.key
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    return seen.scale * query @ key.mT


def output_of(seen: Seen) -> Tensor:
    """The attention output (B, H, Q, Dv) that a `Seen` describes."""
    logits = raw_logits(seen)
    if seen.shift is not None:
        logits = logits + seen.shift.unsqueeze(-1)
    if seen.softcap is not None:
        logits = seen.softcap * torch.tanh(logits / seen.softcap)
    if seen.bias is not None:
        logits = logits + seen.bias
    if seen.visible is not None:
        logits = logits.masked_fill(~seen.visible, -torch.inf)
    if seen.causal:
        earlier = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
        logits = logits.masked_fill(~earlier, -torch.inf)
    if seen.sink is not None:
        sink = seen.sink.expand(logits.shape[:-1]).unsqueeze(-1)
        logits = torch.cat([logits, sink], -1)
    weights = logits.softmax(-1)
    weights = weights if seen.sink is None else weights[..., :-1]
    value = seen.value
    return weights @ value.repeat_interleave(weights.shape[1] // value.shape[1], 1)


class Attention(nn.Module):
    """Self-attention through SDPA."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.causal = causal

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        parts = self.qkv(x).chunk(3, -1)
        return tuple(t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in parts)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attend(*self.heads(x)).transpose(1, 2).flatten(2))


class Eager(Attention):
    """The same written out."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        if self.causal:
            later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
            logits = logits.masked_fill(later, -torch.inf)
        return F.dropout(F.softmax(logits, dim=-1), 0.0) @ value


class Stack(nn.Module):
    """Layers with a residual stream."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def tokens(batch: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randn(batch, length, DIM)


def gradients(model: nn.Module) -> list[Tensor]:
    return [x.grad.clone() for x in model.parameters() if x.grad is not None]


def pass_through(model: nn.Module, *args, **kwargs) -> tuple[Tensor, list[Tensor]]:
    """Output and all gradients of a forward and backward pass from the same random numbers."""
    model.zero_grad()
    torch.manual_seed(1)
    out = model(*args, **kwargs)
    if not isinstance(out, Tensor):
        out = out[0]
    out.float().square().sum().backward()
    return out.detach(), gradients(model)


def assert_same_bits(first: tuple, second: tuple) -> None:
    assert torch.equal(first[0], second[0])
    assert len(first[1]) == len(second[1]) > 0
    assert all(torch.equal(x, y) for x, y in zip(first[1], second[1], strict=True))


def column(d, site: str, name: str) -> torch.Tensor:
    """(steps, heads)."""
    return d.history(site).values[..., d.vitals.index(name)]
