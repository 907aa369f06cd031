"""Queries and keys that learn nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .logits import Words
from .models import LENGTH, Attention, Block, Model, at
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
