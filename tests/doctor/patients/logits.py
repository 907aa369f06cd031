"""Logits that are too large: no scale, growth, a temperature gone wrong."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard

from .models import DIM, HEADS, LENGTH, WORDS, Attention, Eager, Model, at, attentions, head_rows
from .patient import Patient, tokens, vectors


class Words(Patient):
    """Given random words; asked for the next one."""

    length = LENGTH

    def batch(self, step: int) -> tuple:
        return (tokens(step, WORDS, (4, self.length)),)

    def loss(self, output: Tensor, step: int) -> Tensor:
        ids = self.batch(step)[0]
        return F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Wide(nn.Module):
    """One head of 512 dims whose queries and keys have unit variance."""

    def __init__(self, scale: float | None) -> None:
        super().__init__()
        self.dim, self.scale = 512, scale
        self.q, self.k, self.v = (nn.Linear(512, 512, bias=False) for _ in range(3))
        for layer in (self.q, self.k, self.v):
            nn.init.normal_(layer.weight, std=512**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unsqueeze(1) for layer in (self.q, self.k, self.v))
        return x + F.scaled_dot_product_attention(q, k, v, scale=self.scale).squeeze(1)


class UnscaledWide(Patient):
    """SDPA with scale=1 at d = 512: the variance of the logits is d, and softmax is almost hard."""

    disease, sites = "unscaled-logits", ("2",)

    def build(self) -> nn.Module:
        return nn.Sequential(Wide(None), nn.LayerNorm(512), Wide(1.0))

    def batch(self, step: int) -> tuple:
        return (vectors(step, 2, 64, 512),)


class UnscaledEager(Words):
    """Attention written out by hand, with the division by sqrt(d) forgotten in one layer."""

    disease, sites = "unscaled-logits", (at(1),)

    def build(self) -> nn.Module:
        model = Model(Eager(256), Eager(256, scale=1.0), dim=256)
        for block in model.blocks:
            for layer in (block.attention.q, block.attention.k):
                nn.init.normal_(layer.weight, std=256**-0.5)
        return model


class UnscaledScore(Patient):
    """regard's "dot", which has no scale, at 64 dims in place of "scaled_dot"."""

    disease, sites = "unscaled-logits", ("2",)

    def build(self) -> nn.Module:
        layers = [regard.nn.SelfAttention(256, 4, score) for score in ("scaled_dot", "dot")]
        for layer in layers:
            for name, weight in layer.named_parameters():
                if "query" in name or "key" in name:
                    nn.init.normal_(weight, std=256**-0.5)
        return nn.Sequential(layers[0], nn.LayerNorm(256), layers[1])

    def batch(self, step: int) -> tuple:
        return (vectors(step, 2, 64, 256),)


class Growing(Words):
    """Sharper is always better for a head that only copies, and the rate is far too high."""

    disease, sites = "growing-logits", (at(0),)
    steps, rate = 30, 0.1

    def build(self) -> nn.Module:
        return Model(*attentions(1))

    def loss(self, output: Tensor, step: int) -> Tensor:
        ids = self.batch(step)[0]
        return F.cross_entropy(output.flatten(0, 1), ids.flatten())


class Large(Words):
    """One head's queries and keys grown fifteenfold each, as after a run that is about to diverge."""

    disease, sites, heads = "large-logits", (at(1),), (2,)

    def build(self) -> nn.Module:
        model = Model(*attentions(2))
        with torch.no_grad():
            for layer in (model.blocks[1].attention.q, model.blocks[1].attention.k):
                layer.weight[head_rows(2)] *= 15
        return model


class Diverging(Words):
    """Beyond a thousand no run recovers: forty times each."""

    disease, sites, heads = "large-logits", (at(0),), (0, 3)

    def build(self) -> nn.Module:
        model = Model(*attentions(2, causal=True))
        with torch.no_grad():
            for layer in (model.blocks[0].attention.q, model.blocks[0].attention.k):
                for head in self.heads:
                    layer.weight[head_rows(head)] *= 50
        return model


class ColdCosine(Patient):
    """Cosine attention whose learned temperature ran to 1/3000: Swin V2 stops at 1/100."""

    disease, sites = "large-logits", ("1",)

    def build(self) -> nn.Module:
        return nn.Sequential(*(Cosine(scale) for scale in (10.0, 3000.0)))

    def batch(self, step: int) -> tuple:
        return (vectors(step, 4, LENGTH, DIM),)


class Cosine(Attention):
    """Queries and keys of unit length."""

    def __init__(self, scale: float) -> None:
        super().__init__(DIM, HEADS, scale=scale)

    def sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().sides(x)
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)
