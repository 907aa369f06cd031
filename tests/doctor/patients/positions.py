"""Positions that are lost, or that are all there is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import regard

from .logits import Words
from .models import DIM, HEADS, Model, at, attentions


class WashedOut(Words):
    """Embeddings of unit variance times sqrt(512), then sinusoids of amplitude 1 added.

    Vaswani's factor is meant for embeddings of variance 1 / d. With others the words are some
    twenty to forty times as loud as the places.
    """

    disease, sites = "washed-out-positions", (at(0),)

    def build(self) -> nn.Module:
        return LoudWords(*attentions(2, causal=False))


class LoudWords(Model):
    """Words times 40."""

    def embed(self, ids: Tensor) -> Tensor:
        return self.words(ids) * 40 + self.positions[: ids.shape[1]]


class WashedOutLearned(Words):
    """Learned positions of unit size, under embeddings of unit variance times sqrt(512)."""

    disease, sites = "washed-out-positions", (at(0),)

    def build(self) -> nn.Module:
        model = LoudWords(*attentions(2, causal=True))
        learned = torch.randn(model.positions.shape)
        del model.positions
        model.positions = nn.Parameter(learned)
        return model


class Swamped(Words):
    """Sinusoids of amplitude 30 on embeddings of unit variance: content is 0.2% of every key."""

    disease, sites = "collapsed-positions", (at(0), at(1))

    def build(self) -> nn.Module:
        return Model(*attentions(2), position=30.0)


class SwampedEncoder(Words):
    """The same with regard's modules, whose amplitude was set for other embeddings."""

    disease, sites = "collapsed-positions", ("1.blocks.0", "1.blocks.1")

    def build(self) -> nn.Module:
        blocks = [regard.nn.EncoderBlock(DIM, HEADS) for _ in range(2)]
        position = regard.nn.Sinusoidal(DIM, 40.0)
        return nn.Sequential(
            nn.Embedding(32, DIM), regard.nn.Encoder(blocks, position=position), nn.Linear(DIM, 32)
        )
