"""What it costs to watch a model: `python benchmarks/doctor_overhead.py` [--device cuda].

A decoder of pre-norm blocks at T=4096 with 8 heads of 64 dims, forward alone and a whole training
step. Each level is timed in turns with the same model unwatched, A B B A ..., so that a noisy machine
disturbs both alike; a cost is the median over the rounds of watched / unwatched - 1, with the range
that holds half of them. "cheap" and "sampled" measure at every step here; "usual" is
`watch(model)` as it comes, which samples every tenth. On a GPU a watched step runs with every
synchronisation of the host turned into an error, and `host` is what the host needs to queue a step,
unwatched and watched: near the time of the step itself, it is the host that is measured. Compiles are
counted over 100 steps, and the memory of what is kept is counted in bytes.

Results go to benchmarks/results/doctor_<device>.json. Exit status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo.testing
from torch import Tensor, nn
from torch.nn import functional as F

from regard.doctor.watch import watch
from regard.measuring.clock import clock
from regard.measuring.files import json_bytes, write_atomic
from regard.measuring.machine import machine

RESULTS = Path(__file__).parent / "results"
LENGTH, HEADS, DIM = 4096, 8, 64
# Batch sizes and the levels measured there; the bars are for the first. In a step of batch 8 on a GPU
# Python needs about as long to queue the work as the GPU to do it, and so what is added to either shows.
BATCHES = {
    "cpu": {1: ("cheap", "sampled", "usual")},
    "cuda": {16: ("cheap", "sampled", "usual"), 8: ("cheap",)},
}
BARS = {"cpu": {"cheap": 0.03, "sampled": 0.08}, "cuda": {"cheap": 0.03}}


class Block(nn.Module):
    """Causal or full self-attention through SDPA and a feed-forward part, both pre-norm."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        width = HEADS * DIM
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) to the same."""
        query, key, value = self.project(self.norm(x)).chunk(3, -1)
        heads = [y.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for y in (query, key, value)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_after(x))


def build(device: torch.device, layers: int, causal: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(causal) for _ in range(layers))).to(device)


def steps(model: nn.Module, x: Tensor) -> dict[str, Callable[[], object]]:
    """A forward pass, and a training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    half = torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda)

    def forward() -> None:
        with torch.no_grad(), half:
            model(x)

    def train() -> None:
        optimizer.zero_grad()
        with half:
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    return {"forward": forward, "training step": train}


LEVELS: dict[str, dict[str, object]] = {
    "cheap": {"level": "cheap"},
    "sampled": {"level": "sampled", "every": 1},
    "usual": {},
}


def cost(
    model: nn.Module, step: Callable[[], object], options: dict, rounds: int, calls: int
) -> dict:
    """Watched over unwatched - 1, timed in turns."""
    device = next(model.parameters()).device
    keeper = watch(model, **options)

    def plain() -> float:
        return clock(step, calls, device)

    def watched() -> float:
        with keeper:
            return clock(step, calls, device)

    for _ in range(2):  # compiles kernels, and lets a GPU reach its clock
        plain()
        watched()
    ratios, times = [], []
    for _ in range(rounds):
        a, b = plain(), watched()
        b, a = b + watched(), a + plain()
        ratios.append(b / a - 1)
        times.append(a / 2)
    low, middle, high = statistics.quantiles(ratios, n=4)
    found: dict = {
        "cost": middle, "low": low, "high": high, "unwatched_ms": 1e3 * statistics.median(times),
        "rounds": rounds, "calls": calls,
    }  # fmt: skip
    if device.type == "cuda":
        alone = queueing(step)
        with keeper:
            found |= {"host_ms": alone, "watched_host_ms": queueing(step)}
    return found


def queueing(step: Callable[[], object], calls: int = 4) -> float:
    """Milliseconds that the host needs for a step, the least of several: few fit into its queue."""
    least = math.inf
    for _ in range(6):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            step()
        least = min(least, (time.perf_counter() - began) / calls)
    return 1e3 * least


def waits(model: nn.Module, step: Callable[[], object], options: dict) -> str | None:
    """What makes the host wait for the GPU in a watched step, or None."""
    with watch(model, **options):
        step()  # kernels are compiled, and the history is laid out
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        except RuntimeError as error:
            return str(error).splitlines()[0]
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return None


def compiles(device: torch.device, level: str) -> int:
    """Graphs compiled in 100 watched steps of a compiled model."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    model = build(device, 2, False)
    compiled = torch.compile(model, backend=counter)
    x = torch.randn(1, 64, HEADS * DIM, device=device)
    with watch(compiled, level):
        for _ in range(100):
            compiled(x).sum().backward()
    return counter.frame_count


def kept_bytes(device: torch.device, layers: int) -> dict[str, int]:
    """Memory of what is kept: for each step, layer, head and vital one number of 4 bytes."""
    model = build(device, layers, False)
    with watch(model) as keeper, torch.no_grad():
        model(torch.randn(1, 64, HEADS * DIM, device=device))
    rings = [site.ring for site in keeper.chart.order if site.ring is not None]
    sizes = {"layers": layers, "heads": HEADS, "steps": keeper.chart.window}
    return sizes | {"bytes": sum(ring.values.nbytes for ring in rings)}


def line_of(case: str, row: dict) -> str:
    """A case for the terminal."""
    line = (
        f"  {case:<42} {row['cost']:+7.2%}  ({row['low']:+.2%} to {row['high']:+.2%})"
        f"  of {row['unwatched_ms']:.2f} ms"
    )
    if "host_ms" in row:
        line += f", host {row['host_ms']:.2f} and {row['watched_host_ms']:.2f}"
    return line + (f"  {row['waits']}" if row.get("waits") else "")


def costs(
    device: torch.device, layers: int, rounds: int, calls: int, bars_alone: bool
) -> dict[str, dict]:
    """Every case, told as it is done."""
    found = {}
    cases = itertools.product((False, True), BATCHES[device.type].items())
    if bars_alone:
        first = next(iter(BATCHES[device.type]))
        cases = iter([(False, (first, tuple(BARS[device.type])))])
    for causal, (batch, levels) in cases:
        model = build(device, layers, causal)
        x = torch.randn(batch, LENGTH, HEADS * DIM, device=device)
        for name, step in steps(model, x).items():
            for level in levels:
                case = case_of(batch, causal, name, level)
                row = found[case] = cost(model, step, LEVELS[level], rounds, calls)
                if device.type == "cuda":
                    row["waits"] = waits(model, step, LEVELS[level])
                print(line_of(case, row), flush=True)
    return found


def case_of(batch: int, causal: bool, step: str, level: str) -> str:
    """Its name."""
    return f"batch {batch}, {'causal' if causal else 'full'}, {step}, {level}"


def bars_of(device: torch.device, costs: dict[str, dict], compiled: dict[str, int]) -> list[dict]:
    """What was measured beside what it may be."""
    bars = []
    first = next(iter(BATCHES[device.type]))
    for level, most in BARS[device.type].items():
        for step in ("forward", "training step"):
            value = costs[case_of(first, False, step, level)]["cost"]
            bars.append(
                {"name": f"{level}, {step}", "value": value, "bar": most, "met": value <= most}
            )
    if device.type == "cuda":
        silent = all(row["waits"] is None for row in costs.values())
        bars.append({"name": "no synchronisation", "value": silent, "bar": True, "met": silent})
    for level, count in compiled.items():
        bars.append({"name": f"compiles, {level}", "value": count, "bar": 1, "met": count <= 1})
    return bars


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and save; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--calls", type=int, help="in each round")
    parser.add_argument("--bars", action="store_true", help="only the cases that have a bar")
    parser.add_argument("--out", type=Path, help="the JSON file")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    layers, calls = (6, 10) if on_gpu else (1, 1)
    setting = (
        f"{layers} block{'s' * (layers > 1)}, T={LENGTH}, {HEADS} heads, d={DIM}, "
        f"{'bf16 autocast' if on_gpu else 'fp32'}"
    )
    print(setting)
    found: dict = {"setting": setting, "machine": machine(device)}
    found["costs"] = costs(device, layers, options.rounds, options.calls or calls, options.bars)
    compiled = {level: compiles(device, level) for level in ("cheap", "sampled")}
    found["bars"] = bars_of(device, found["costs"], compiled)
    found["compiles in 100 steps"] = compiled
    found["kept"] = [kept_bytes(device, n) for n in (1, 2, 4)]
    for bar in found["bars"]:
        word = "met   " if bar["met"] else "MISSED"
        print(f"{word}  {bar['name']}: {bar['value']} (at most {bar['bar']})")
    name = "h200" if "H200" in str(found["machine"].get("name")) else device.type
    write_atomic(options.out or RESULTS / f"doctor_{name}.json", json_bytes(found))
    return 0 if all(bar["met"] for bar in found["bars"]) else 1


if __name__ == "__main__":
    sys.exit(main())
