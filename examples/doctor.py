"""A small model falls ill while it trains; the doctor says why, treats it, and it learns after all.

Each place of a sequence has a name, a value, and the name of a place whose value is the answer.
The projections in its attention learn 100 times too fast: logits grow. About 10 s on one core.
"""

import torch
from torch import nn

from regard.doctor import watch

PLACES, VALUES, DIM, HEADS = 16, 8, 32, 2


class Lookup(nn.Module):
    """Names, values and questions in, a guess of each answer out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(n, DIM) for n in (PLACES, VALUES, PLACES))
        self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.read = nn.Linear(DIM, VALUES)

    def forward(self, *tokens):
        """Logits of the answers for names, values and questions, each (sequences, places)."""
        x = sum(embed(ids) for embed, ids in zip(self.embed, tokens, strict=True))
        return self.read(self.attention(x, x, x, need_weights=False)[0])


def batch():
    """Sequences with their answers."""
    names = torch.rand(64, PLACES).argsort(-1)
    values, asked = torch.randint(VALUES, (64, PLACES)), torch.randint(PLACES, (64, PLACES))
    return (names, values, asked), values.gather(1, names.argsort(-1).gather(1, asked))


def train(steps, fast):
    """Train, with another learning rate for the projections; returns the share of right answers."""
    rates = {name: fast if "in_proj" in name else 5e-3 for name, _ in model.named_parameters()}
    groups = [{"params": x, "lr": rates[name]} for name, x in model.named_parameters()]
    optimizer = torch.optim.Adam(groups)
    for _ in range(steps):
        tokens, answers = batch()
        logits = model(*tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return (logits.argmax(-1) == answers).float().mean().item()


torch.manual_seed(0)
model = Lookup()
with watch(model, every=5) as doctor:
    print(f"{train(200, fast=0.5):.0%} right")
finding = doctor.findings()[0]
print(f"{finding.severity}: {finding.title} at {finding.site}, since step {finding.since}")
print(doctor.treat(finding, batch=batch()[0]))
right = train(400, fast=5e-3)
print(f"{right:.0%} right after treatment")
assert finding.disease == "growing-logits" and right > 0.95
