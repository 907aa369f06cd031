"""Queries and keys that learn nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .logits import Words
from .models import LENGTH, Attention, Block, Eager, Model, at, head_rows
from .patient import Patient, vectors


class DeadGradient(Words):
    """All values were set to the same by a padding bug: where to look makes no difference.

    The output is the same whatever the weights are, so that hardly any gradient comes through them.
    """

    disease, sites = "dead-gradient", (at(1),)

    def build(self) -> nn.Module:
        return Model(Attention(), Flat())


class Flat(Attention):
    """Values that differ from their mean by a millionth."""

    def sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().sides(x)
        mean = v.mean(-2, keepdim=True)
        return q, k, mean + 1e-6 * (v - mean)


class NoGradient(Words):
    """Weights are computed under no_grad "to save memory": queries and keys never learn."""

    disease, sites = "no-gradient", (at(1),)

    def build(self) -> nn.Module:
        return Model(Attention(), Cut())


class Cut(Attention):
    """Query and key without a gradient."""

    def sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            q, k = self.split(self.q(x)), self.split(self.k(x))
        return q, k, self.split(self.v(x))


class CutOutside(Words):
    """The same in the module around the one that attends."""

    disease, sites = "no-gradient", (f"{at(1)}.core",)

    def build(self) -> nn.Module:
        return Model(Attention(), Outer())


class Outer(Cut):
    """Projections here, attention in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core()

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.core(q, k, v)


class Core(nn.Module):
    """Attention without a weight."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)


class CutByData(Words):
    """Queries and keys are read as `.data`, which no change from outside can bypass."""

    disease, sites = "no-gradient", (at(1),)

    def build(self) -> nn.Module:
        return Model(Attention(), Data())


class Data(Attention):
    """Query and key without their history."""

    def sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().sides(x)
        return q.data, k.data, v


class DetachedValues(Words):
    """Only the values are detached, as by a cache that was written for generation."""

    disease, sites = "no-gradient", (at(1),)

    def build(self) -> nn.Module:
        return Model(Attention(), Stale())


class Stale(Attention):
    """Values without their history."""

    def sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().sides(x)
        return q, k, v.detach()


class DetachedWeights(Words):
    """Weights are detached after the softmax: queries and keys ask for a gradient, and none comes."""

    disease, sites = "no-gradient", (at(1),)

    def build(self) -> nn.Module:
        return Model(Attention(), HeldWeights())


class HeldWeights(Eager):
    """Written out, with weights that are read as `.data`."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return weights.data @ v


class CutLayer(Words):
    """A whole layer runs under no_grad "to save memory", and others learn."""

    disease, sites = "no-gradient", (at(1),)

    def build(self) -> nn.Module:
        return Model(Attention(), Silent())


class Silent(Attention):
    """Nothing of it learns."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


class FrozenZero(Words):
    """The output layer was set to zero for a clean start, and then left out of training."""

    disease, sites = "no-gradient", (at(1),)

    def build(self) -> nn.Module:
        model = Model(Attention(), Attention())
        for x in model.blocks[1].attention.o.parameters():
            nn.init.zeros_(x).requires_grad_(False)
        return model


class TiedSides(Patient):
    """Query and key share their projection, and vectors are long: every token sees itself alone.

    A vector's product with itself is its squared length. With tokens of unit variance that is
    sqrt(d) once scaled, ahead of all others, and softmax has no slope left.
    """

    disease, sites = "dead-softmax", ("1.attention",)

    def build(self) -> nn.Module:
        model = nn.Sequential(Block(Attention(128, 2), 128), Block(Tied(128, 2), 128))
        nn.init.normal_(model[1].attention.q.weight, std=2.2 * 128**-0.5)
        return model

    def batch(self, step: int) -> tuple:
        return (vectors(step, 4, LENGTH, 128),)


class Tied(Attention):
    """Queries that are the keys."""

    def sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.split(self.q(x))
        return q, q.clone(), self.split(self.v(x))


class DeadHead(TiedSides):
    """The same in one of two heads, and the layer as a whole goes on learning."""

    disease, heads = "dead-gradient", (0,)

    def build(self) -> nn.Module:
        model = nn.Sequential(Block(Attention(128, 2), 128), Block(TiedHead(128, 2), 128))
        with torch.no_grad():
            nn.init.normal_(model[1].attention.q.weight[head_rows(0, 128, 2)], std=2.2 * 128**-0.5)
        return model


class TiedHead(Attention):
    """Queries that are the keys, in the first head."""

    def sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().sides(x)
        return q, torch.cat([q[:, :1], k[:, 1:]], 1), v
