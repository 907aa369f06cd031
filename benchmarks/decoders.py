"""A step of a recurrent decoder's attention: `BahdanauAttention` beside what is written by hand.

`python benchmarks/decoders.py` writes benchmarks/results/decoders_cpu.json, with `--device cuda` a file
named after the GPU. Sources have lengths from a third of the longest on. Both are called from Python in
turns in one process; a ratio is the median over turns, with the range that holds half of them, and below
1 the module is the faster. "Forward" is one step without gradients, "forward+backward" a loop of steps
that ends in the gradients of all parameters.

Shape legend: B batch, L keys, E hidden units, D width of keys and queries.
"""

from __future__ import annotations

import json

import torch
from small import asked, in_turns, ratios
from torch import Tensor, nn

from regard.nn import BahdanauAttention

SHAPES = {
    "small": (8, 30, 64, 64),
    "NMT decoder 512": (64, 30, 512, 512),
    "NMT decoder 1000": (64, 30, 1000, 1000),
    "speech": (16, 1500, 128, 512),
}
STEPS = 5


class ByHand(nn.Module):
    """Bahdanau's attention as tutorials have it, keys projected once."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.of_query, self.of_key = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.v = nn.Linear(hidden, 1, bias=False)

    def forward(
        self, query: Tensor, keys: Tensor, projected: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Context (B, D) and weights (B, L)."""
        pairs = torch.tanh(self.of_query(query).unsqueeze(1) + projected)
        logits = self.v(pairs).squeeze(-1).masked_fill(hidden, -torch.inf)
        weights = torch.softmax(logits, -1)
        return torch.bmm(weights.unsqueeze(1), keys).squeeze(1), weights


def alike(module: BahdanauAttention, by_hand: ByHand) -> None:
    """Give both the same parameters, so that they can be held against each other."""
    with torch.no_grad():
        by_hand.of_query.weight.copy_(module.score.query_weight)
        by_hand.of_key.weight.copy_(module.score.key_weight)
        by_hand.v.weight.copy_(module.score.score.v)


def measured(shape: tuple[int, int, int, int], device: torch.device) -> dict[str, object]:
    """Both passes at one shape."""
    batch, length, hidden, dim = shape
    torch.manual_seed(0)
    module, by_hand = BahdanauAttention(dim, dim, hidden), ByHand(dim, hidden)
    alike(module, by_hand)
    module, by_hand = module.to(device), by_hand.to(device)
    keys, queries = torch.randn(batch, length, dim), torch.randn(STEPS, batch, dim)
    keys, queries = keys.to(device), queries.to(device)
    lengths = torch.linspace(length // 3, length, batch, device=device).long()
    padding = torch.arange(length, device=device) >= lengths[:, None]

    def ours(steps: int) -> Tensor:
        memory, state, found = module.prepare(keys, lengths=lengths), None, []
        for query in queries[:steps]:
            context, _, state = module(query, memory, state)
            found.append(context)
        return torch.stack(found)

    def theirs(steps: int) -> Tensor:
        projected = by_hand.of_key(keys)
        return torch.stack(
            [by_hand(query, keys, projected, padding)[0] for query in queries[:steps]]
        )

    torch.testing.assert_close(ours(STEPS), theirs(STEPS), rtol=1e-4, atol=1e-5)
    memory, projected = module.prepare(keys, lengths=lengths), by_hand.of_key(keys).detach()
    state = module.initial_state(memory)
    one = (
        lambda: module(queries[0], memory, state),
        lambda: by_hand(queries[0], keys, projected, padding),
    )
    loop = [
        lambda run=run, owner=owner: torch.autograd.grad(run(STEPS).sum(), list(owner.parameters()))
        for run, owner in ((ours, module), (theirs, by_hand))
    ]
    row: dict[str, object] = {"shape": shape}
    with torch.no_grad():
        row["forward"] = in_turns(*one, device)
    row["forward+backward"] = in_turns(*loop, device)
    return row


def main() -> None:
    """Measure all, print them and write them after each."""
    device, machine, file = asked("decoders", __doc__)
    rows = {}
    print("BahdanauAttention over what is written by hand: a step, a loop with backward")
    for name, shape in SHAPES.items():
        rows[name] = row = measured(shape, device)
        print(f"{name:<18} {ratios(row['forward'], row['forward+backward'])}", flush=True)
        text = json.dumps({"machine": machine, "results": rows}, indent=1) + "\n"
        file.write_text(text)


if __name__ == "__main__":
    main()
