"""What `regard.doctor.check` costs: `OMP_NUM_THREADS=1 python benchmarks/check_cost.py`.

A causal language model of 6 layers, 8 heads of 64 dims, on 512 tokens in 2 sequences, with attention that is fused
and written out. The check is timed as a user calls it, all laws; beside it one forward pass without gradients. `cpu`
is the time that its thread worked, `wall` what a clock shows, which others on the machine prolong: `load` is the
average number of processes that wanted to run. Results go to benchmarks/results/check_cost_cpu.json. Exit status 1
if one thread works for 10 seconds or more, or for more passes than a check promises.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.doctor import check
from regard.doctor.laws.bench import BACKWARD, FORWARD
from regard.measuring.files import json_bytes, write_atomic
from regard.measuring.machine import machine

RESULT = Path(__file__).parent / "results" / "check_cost_cpu.json"
LAYERS, HEADS, DIM, WORDS, BATCH, LENGTH = 6, 8, 64, 1000, 2, 256
MOST_SECONDS, TIMES = 10.0, 1


class Layer(nn.Module):
    """Causal self-attention, fused or written out, and a feed-forward part, both pre-norm."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        width = HEADS * DIM
        self.fused = fused
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) to the same."""
        parts = self.project(self.norm(x)).chunk(3, -1)
        query, key, value = (y.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for y in parts)
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            logits = query @ key.transpose(-1, -2) * DIM**-0.5
            mixed = logits.masked_fill(later, -torch.inf).softmax(-1) @ value
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_after(x))


class Words(nn.Module):
    """Token ids to logits of words."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, HEADS * DIM)
        self.pos_embed = nn.Parameter(torch.randn(LENGTH, HEADS * DIM))
        self.layers = nn.ModuleList(Layer(fused) for _ in range(LAYERS))
        self.head = nn.Linear(HEADS * DIM, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) to (B, T, words)."""
        x = self.embed(ids) + self.pos_embed
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Spent(NamedTuple):
    """Seconds of a run: on the clock, and of all threads together."""

    wall: float
    cpu: float


def spent(run: Callable[[], object]) -> Spent:
    """What the fastest of a few runs took."""
    found = []
    for _ in range(TIMES):
        started, worked = time.perf_counter(), time.process_time()
        run()
        found.append(Spent(time.perf_counter() - started, time.process_time() - worked))
    return min(found, key=lambda x: x.cpu)


def measured(fused: bool) -> dict[str, float | int | bool]:
    """The cost of one check and of one forward pass."""
    torch.manual_seed(0)
    model = Words(fused).eval()
    ids = torch.randint(0, WORDS, (BATCH, LENGTH))
    result = check(model, ids, causal=True)
    with torch.no_grad():
        forward = spent(lambda: model(ids))
    whole = spent(lambda: check(model, ids, causal=True))
    return {
        "ok": result.ok,
        "wall_seconds": round(whole.wall, 2),
        "cpu_seconds": round(whole.cpu, 2),
        "forward_wall_seconds": round(forward.wall, 3),
        "forward_cpu_seconds": round(forward.cpu, 3),
        "forward_passes_worth": round(whole.cpu / forward.cpu, 1),
        "forward_passes": result.forward,
        "backward_passes": result.backward,
    }


def main() -> int:
    """Measure, write and judge."""
    found = {
        "command": "OMP_NUM_THREADS=1 python benchmarks/check_cost.py",
        "machine": machine(torch.device("cpu")),
        "sizes": {
            "layers": LAYERS, "heads": HEADS, "dim": DIM, "batch": BATCH, "tokens": LENGTH,
        },
        "fused": measured(True),
        "written out": measured(False),
    }  # fmt: skip
    write_atomic(RESULT, json_bytes(found))
    missed = 0
    for name in ("fused", "written out"):
        one = found[name]
        print(name, one)
        missed += one["cpu_seconds"] >= MOST_SECONDS or not one["ok"]
        missed += one["forward_passes"] > FORWARD or one["backward_passes"] > BACKWARD
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
