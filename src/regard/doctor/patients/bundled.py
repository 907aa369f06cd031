"""Small patients that come with the library: one healthy, three ill from a known cause.

All learn the same task, a look-up. Each place of a sequence has a name, a value, and the name of
another place; the answer at each place is the value of the place that it asks for.

Shape legend: B sequences, T places, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.doctor.patients.patient import Patient, numbers_of
from regard.nn import MultiheadAttention

PLACES, VALUES, WIDTH, HEADS, LAYERS, SEQUENCES = 24, 16, 64, 4, 2, 32


class Attention(nn.Module):
    """Self-attention by torch's SDPA."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        projections = (self.query, self.key, self.value)
        sides = (side(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for side in projections)
        found = F.scaled_dot_product_attention(*sides)
        return self.out(found.transpose(1, 2).flatten(2))


class AdditiveAttention(nn.Module):
    """Self-attention with regard's additive score."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = MultiheadAttention(WIDTH, HEADS, batch_first=True, score="additive")

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        return self.heads(x, x, x)[0]


class LookupBlock(nn.Module):
    """Attention and a small network, each after a norm and with a residual connection."""

    def __init__(self, attention: nn.Module, norm: bool) -> None:
        super().__init__()
        self.attention = attention
        self.before = nn.LayerNorm(WIDTH) if norm else nn.Identity()
        self.norm = nn.LayerNorm(WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        x = x + self.attention(self.before(x))
        return x + self.network(self.norm(x))


class LookupModel(nn.Module):
    """A small transformer that answers look-ups.

    Args:
        attention: makes the attention of a layer.
        norm: whether there is a LayerNorm before attention.
    """

    def __init__(self, attention: Callable[[], nn.Module], norm: bool = True) -> None:
        super().__init__()
        self.names, self.asked = nn.Embedding(PLACES, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.values = nn.Embedding(VALUES, WIDTH)
        self.blocks = nn.ModuleList(LookupBlock(attention(), norm) for _ in range(LAYERS))
        self.read = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VALUES))

    def forward(self, names: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        """Logits (B, T, VALUES) from names, values and questions, each (B, T)."""
        x = self.names(names) + self.values(values) + self.asked(asked)
        for block in self.blocks:
            x = block(x)
        return self.read(x)


def questions(seed: int) -> Callable[[int], dict[str, Tensor]]:
    """Batches of the task, the same for the same seed and step."""

    def batch(step: int) -> dict[str, Tensor]:
        numbers = numbers_of(seed, step)
        shuffled = [torch.randperm(PLACES, generator=numbers) for _ in range(SEQUENCES)]
        shape = (SEQUENCES, PLACES)
        return {
            "names": torch.stack(shuffled),
            "values": torch.randint(VALUES, shape, generator=numbers),
            "asked": torch.randint(PLACES, shape, generator=numbers),
        }

    return batch


def wrong_answers(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Cross entropy between the logits and the right answers."""
    # `argsort` of a permutation inverts it: the place of each name.
    place = batch["names"].argsort(-1).gather(-1, batch["asked"])
    return F.cross_entropy(logits.flatten(0, 1), batch["values"].gather(-1, place).flatten())


def healthy() -> nn.Module:
    """The model with scaled dot products after norms."""
    return LookupModel(Attention)


def growing_logits() -> nn.Module:
    """The healthy model; its optimizer, `racing_queries_and_keys`, makes it ill."""
    return LookupModel(Attention)


def racing_queries_and_keys(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """AdamW in which queries and keys learn 30 times as fast as the rest, so that logits grow."""
    fast = [x for name, x in model.named_parameters() if ".query." in name or ".key." in name]
    # By identity: `==` would compare the numbers of two parameters.
    slow = [x for x in model.parameters() if not any(x is y for y in fast)]
    return torch.optim.AdamW([{"params": slow}, {"params": fast, "lr": 30 * rate}], rate)


def jammed_tanh() -> nn.Module:
    """Additive scores with projections 30 times too large, so that every tanh is saturated."""
    model = LookupModel(AdditiveAttention)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, MultiheadAttention):
                assert layer.in_proj_weight is not None
                layer.in_proj_weight[: 2 * WIDTH] *= 30  # those of queries and keys
    return model


def hijacked_key() -> nn.Module:
    """A model without norms before attention, and with one embedding 30 times as long."""
    model = LookupModel(Attention, norm=False)
    with torch.no_grad():
        model.names.weight[0] *= 30
    return model


class Example(NamedTuple):
    """A bundled patient: what it shows, and how it is made and trained."""

    shows: str
    build: Callable[[], nn.Module]
    steps: int
    optimizer: Callable[[nn.Module, float], torch.optim.Optimizer] | None = None


EXAMPLES: dict[str, Example] = {
    "healthy": Example("a small transformer that learns a look-up", healthy, 200),
    "growing-logits": Example(
        "queries and keys learn 30 times too fast", growing_logits, 200, racing_queries_and_keys
    ),
    "jammed-tanh": Example("additive scores with projections 30 times too large", jammed_tanh, 100),
    "hijacked-key": Example("no norm, and one token 30 times as long", hijacked_key, 100),
}


def open_example(name: str, seed: int) -> Patient:
    """The bundled patient of this name."""
    example = EXAMPLES[name]
    torch.manual_seed(seed)
    patient = Patient(name, example.build(), questions(seed), wrong_answers, example.steps)
    patient.rate = 2e-3
    if example.optimizer is not None:
        patient.optimizer = example.optimizer
    return patient
