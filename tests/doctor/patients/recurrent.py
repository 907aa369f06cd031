"""Recurrent decoders with additive attention that is written out, as in textbooks.

Shape legend: B batch, L keys, T steps, D dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .models import DIM, WORDS
from .patient import Patient, tokens

STEPS, SOURCE = 3, 20


class Bahdanau(nn.Module):
    """A GRU that attends to another one's states; weights are (B, L), pooled by bmm or by a sum."""

    def __init__(self, gain: float, pooled: str) -> None:
        super().__init__()
        self.words, self.pooled = nn.Embedding(WORDS, DIM), pooled
        self.encoder = nn.GRU(DIM, DIM, batch_first=True)
        self.cell = nn.GRUCell(2 * DIM, DIM)
        self.w, self.u, self.v = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, 1)
        self.out = nn.Linear(DIM, WORDS)
        with torch.no_grad():
            self.w.weight.mul_(gain)
            self.u.weight.mul_(gain)

    def attend(self, state: Tensor, memory: Tensor) -> Tensor:
        """The context (B, D)."""
        hidden = torch.tanh(self.w(state).unsqueeze(1) + self.u(memory))
        if self.pooled == "column":  # weights (B, L, 1)
            return (self.v(hidden).softmax(1) * memory).sum(1)
        weights = self.v(hidden).squeeze(-1).softmax(-1)
        if self.pooled == "bmm":
            return torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        if self.pooled == "einsum":
            return torch.einsum("bl,bld->bd", weights, memory)
        return (weights.unsqueeze(-1) * memory).sum(1)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, _ = self.encoder(self.words(source))
        state, found = memory[:, -1], []
        for step in range(target.shape[1]):
            read = torch.cat([self.words(target[:, step]), self.attend(state, memory)], -1)
            state = self.cell(read, state)
            found.append(self.out(state))
        return torch.stack(found, 1)


class Translating(Patient):
    """A fresh decoder whose additive attention is written out."""

    pooled = "bmm"

    def build(self) -> nn.Module:
        return Bahdanau(1.0, self.pooled)

    def batch(self, step: int) -> tuple:
        return tokens(step, WORDS, (4, SOURCE)), tokens(step + 50, WORDS, (4, STEPS))


class SaturatedDecoder(Translating):
    """The same with projections that are 30 times too large: tanh is a sign."""

    disease, sites = "saturated-tanh", ("Bahdanau", "Bahdanau#2", "Bahdanau#3")

    def build(self) -> nn.Module:
        return Bahdanau(30.0, self.pooled)
