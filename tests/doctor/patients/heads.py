"""Weights that collapse, are captured, or are the same twice."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import regard

from .logits import Words
from .models import DIM, HEADS, LENGTH, Attention, Model, at, attentions, head_rows
from .patient import Patient, vectors


class CollapsedEntropy(Patient):
    """Queries and keys of one head of torch's own module live in one direction and are long.

    Whatever is asked, the key farthest out in that direction answers: sharp, and of rank one.
    """

    disease, sites, heads = "collapsed-entropy", ("layers.1.self_attn",), (1,)

    def build(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 128, 0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        for own in model.layers:
            for parameter in own.self_attn.parameters():
                if parameter.ndim > 1:
                    nn.init.normal_(parameter, std=DIM**-0.5)
        with torch.no_grad():
            weight = model.layers[1].self_attn.in_proj_weight
            rows = head_rows(1)
            for start in (0, DIM):
                part = weight[start + rows.start : start + rows.stop]
                part.copy_(torch.outer(torch.full((DIM // HEADS,), 3.0), part[0] * 3))
        return model

    def batch(self, step: int) -> tuple:
        return (vectors(step, 4, LENGTH, DIM),)


class Hijacked(Words):
    """One word's embedding is thirty times as long as all others, as that of a planted trigger.

    Its key is as long, wins with every query that lies on its side, and its value is as long too.
    """

    disease, sites = "key-norm-hijack", ("layers.0",)

    def build(self) -> nn.Module:
        return Bare()

    def loss(self, output: Tensor, step: int) -> Tensor:
        return output.square().mean()

    def batch(self, step: int) -> tuple:
        x = vectors(step, 4, LENGTH, DIM)
        x[:, 11] *= 30
        return (x,)


class Bare(nn.Module):
    """Attention without a norm before it, as in many small models; then one with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(attentions(2))
        for layer in self.layers:
            for side in (layer.q, layer.k, layer.v):
                nn.init.normal_(side.weight, std=DIM**-0.5)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.layers[0](x))
        return x + self.layers[1](x)


class CapturedLayer(Words):
    """In one layer all keys but the first word's are pushed away by a bias on the logits.

    The first word's value is as long as any: every query of every head gets the same vector.
    """

    disease, sites = "malignant-sink", (at(1),)

    def build(self) -> nn.Module:
        return Model(Attention(), Captured())


class Captured(Attention):
    """With a bias for the first key, as a relative bias table with one entry gone wrong."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = torch.zeros(q.shape[-2], k.shape[-2])
        bias[:, 0] = 12.0
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)


class TwinHeads(Words):
    """Two heads that were initialised alike stay alike: nothing ever tells them apart."""

    disease, sites, heads = "identical-heads", (at(0),), (1, 3)

    def build(self) -> nn.Module:
        model = Model(*attentions(2))
        layer = model.blocks[0].attention
        with torch.no_grad():
            for side in (layer.q, layer.k, layer.v):
                side.weight *= 3
                side.weight[head_rows(3)] = side.weight[head_rows(1)]
                side.bias[head_rows(3)] = side.bias[head_rows(1)]
        return model


class SaturatedTanh(Patient):
    """Additive attention whose projections of one layer are twenty times too large."""

    disease, sites = "saturated-tanh", ("2",)

    def build(self) -> nn.Module:
        layers = [regard.nn.SelfAttention(DIM, HEADS, "additive") for _ in range(2)]
        with torch.no_grad():
            for name, weight in layers[1].named_parameters():
                if "query" in name or "key" in name:
                    weight.mul_(20)
        return nn.Sequential(layers[0], nn.LayerNorm(DIM), layers[1])

    def batch(self, step: int) -> tuple:
        return (vectors(step, 4, LENGTH, DIM),)


class NoResiduals(Patient):
    """Attention alone, layer upon layer without residuals: tokens become one token (Dong, 2021)."""

    disease, sites = "rank-collapse", tuple(str(i) for i in range(2, 6))

    def build(self) -> nn.Module:
        model = nn.Sequential(*attentions(6))
        for layer in model:
            for side in (layer.v, layer.o):
                nn.init.orthogonal_(side.weight)
        return model

    def batch(self, step: int) -> tuple:
        return (vectors(step, 4, LENGTH, DIM),)
