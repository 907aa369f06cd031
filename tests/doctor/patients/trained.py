"""Healthy models after training: sharp heads that learnt what they are for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard

from .logits import Words
from .models import DIM, HEADS, WORDS, Eager, Model, attentions
from .patient import Patient, seeded, tokens, vectors


class Trained(Words):
    """Watched over its whole training."""

    steps, rate, every = 80, 3e-3, 8


class Copying(Trained):
    """Says again what it is given, at a sane rate."""

    def build(self) -> nn.Module:
        return Model(*attentions(1))

    def loss(self, output: Tensor, step: int) -> Tensor:
        ids = self.batch(step)[0]
        return F.cross_entropy(output.flatten(0, 1), ids.flatten())


class Induction(Trained):
    """Random words twice: the second half is foretold by heads that find what came after last time."""

    steps, slow = 400, True

    def build(self) -> nn.Module:
        return Model(*attentions(2, causal=True))

    def batch(self, step: int) -> tuple:
        half = tokens(step, WORDS, (16, 12))
        return (torch.cat([half, half], 1),)

    def loss(self, output: Tensor, step: int) -> Tensor:
        ids = self.batch(step)[0]
        return F.cross_entropy(output[:, 12:-1].flatten(0, 1), ids[:, 13:].flatten())


class Previous(Trained):
    """Foretells the word before: a head that looks one place back."""

    steps = 120

    def build(self) -> nn.Module:
        return Model(Eager(causal=True))

    def loss(self, output: Tensor, step: int) -> Tensor:
        ids = self.batch(step)[0]
        return F.cross_entropy(output[:, 1:].flatten(0, 1), ids[:, :-1].flatten())


class Broadcast(Trained):
    """Every token is to say what the marked one is: one key rightly gets all the weight."""

    steps = 100

    def build(self) -> nn.Module:
        return Model(*attentions(1))

    def batch(self, step: int) -> tuple:
        ids = tokens(step, WORDS // 2, (16, 16))
        place = tokens(step + 1000, 16, (16, 1))
        marked = torch.arange(16) == place
        return (ids + marked * (WORDS // 2),)

    def loss(self, output: Tensor, step: int) -> Tensor:
        ids = self.batch(step)[0]
        answer = ids.amax(1, keepdim=True) - WORDS // 2
        return F.cross_entropy(output.flatten(0, 1), answer.expand_as(ids).flatten())


class LookUp(Patient):
    """Finds a key's value among others: additive attention, trained until it is sharp."""

    steps, rate, every, slow = 150, 1e-2, 10, True
    score = "additive"

    def build(self) -> nn.Module:
        return Finder(self.score)

    def batch(self, step: int) -> tuple:
        keys = F.normalize(vectors(step, 16, 16, DIM), dim=-1) * 4
        place = torch.randint(16, (16, 8), generator=seeded(step))
        query = keys.gather(1, place[..., None].expand(-1, -1, DIM))
        return query, keys, vectors(step + 1000, 16, 16, DIM)

    def loss(self, output: Tensor, step: int) -> Tensor:
        query, keys, values = self.batch(step)
        place = (query @ keys.mT).argmax(-1)
        wanted = values.gather(1, place[..., None].expand(-1, -1, DIM))
        return F.mse_loss(output, wanted)


class Finder(nn.Module):
    """Cross-attention with queries, keys and values given."""

    def __init__(self, score: str) -> None:
        super().__init__()
        self.cross = regard.nn.CrossAttention(DIM, HEADS, score)
        self.mix = nn.Linear(2 * DIM, DIM)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        memory = self.mix(torch.cat([keys, values], -1))
        return self.cross(query, memory)


class CosineLookUp(LookUp):
    """The same with cosine scores."""

    score = "cosine"


class Encoder(Trained):
    """torch's own encoder on the same task as `Copying`, post-norm, with dropout."""

    steps, rate, slow = 100, 1e-3, True

    def build(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 128, 0.1, batch_first=True)
        return nn.Sequential(
            nn.Embedding(WORDS, DIM),
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(DIM, WORDS),
        )

    def loss(self, output: Tensor, step: int) -> Tensor:
        ids = self.batch(step)[0].flip(1)
        return F.cross_entropy(output.flatten(0, 1), ids.flatten())
