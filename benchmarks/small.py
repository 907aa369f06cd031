"""Small pairwise calls: where engine `plain` is done sooner than the exact engine of the device.

`python benchmarks/small.py` writes benchmarks/results/small_cpu.json, with `--device cuda` a file
named after the GPU; the limits in src/regard/engines/plan.py follow from them. On a GPU the series
stands beside them too, for the limit in src/regard/engines/sine_features/device.py. Two engines at a time are
called from Python in turns in one process, without a graph or a compiler, since that is who waits for
launches; a ratio is the median over turns, with the range that holds half of them, and less than 1
speaks against the exact engine.

Shape legend: B batch, H heads, Q queries, L keys, E hidden units, D value dim.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import regard
from regard.measuring.turns import compare

RESULTS = Path(__file__).parent / "results"
# (B, H, Q, L, E, D): first of one query, then of more, the number of tanh growing within each.
ON_CPU = [
    (1, 1, 1, 30, 64, 64),
    (64, 4, 1, 100, 32, 32),
    (64, 1, 1, 30, 512, 512),
    (64, 1, 1, 30, 1000, 1000),
    (4, 8, 1, 4096, 16, 64),
    (64, 1, 1, 1500, 128, 128),
    (64, 8, 1, 4096, 32, 64),
    (8, 4, 8, 8, 16, 16),
    (4, 4, 4, 64, 16, 64),
    (1, 2, 24, 24, 64, 64),
    (1, 8, 32, 32, 16, 64),
    (16, 4, 16, 16, 16, 16),
    (1, 8, 64, 64, 16, 64),
    (8, 1, 10, 30, 256, 256),
    (16, 4, 32, 32, 16, 16),
    (1, 8, 128, 128, 16, 64),
    (1, 8, 256, 256, 16, 64),
]
ON_GPU = [
    (1, 1, 1, 30, 64, 64),
    (64, 1, 1, 30, 512, 512),
    (64, 1, 1, 30, 1000, 1000),
    (16, 1, 1, 1500, 128, 512),
    (16, 1, 1, 1500, 512, 512),
    (64, 8, 1, 4096, 32, 64),
    (64, 8, 1, 16384, 32, 64),
    (1, 8, 64, 64, 16, 64),
    (8, 1, 10, 30, 256, 256),
    (64, 1, 4, 30, 512, 512),
    (1, 8, 256, 256, 16, 64),
    (8, 8, 128, 128, 16, 64),
    (16, 1, 8, 1500, 128, 512),
    (2, 16, 256, 256, 16, 64),
    (64, 1, 50, 50, 256, 256),
    (64, 1, 50, 50, 512, 512),
    (8, 8, 256, 256, 32, 64),
    (4, 16, 512, 512, 16, 64),
    (2, 16, 1024, 1024, 16, 64),
    (4, 16, 1024, 1024, 16, 64),
    (2, 16, 2048, 2048, 16, 64),
]
ROUNDS, SECONDS = 9, 0.02
# Tanh from which on the series is measured too.
SERIES_FROM = 2**24


def measured(shape: tuple[int, ...], device: torch.device) -> dict[str, object]:
    """Every engine that takes the shape beside the exact one, forward and with backward."""
    batch, heads, queries, keys, hidden, dim = shape
    torch.manual_seed(0)
    kind = {"device": device, "dtype": torch.float32 if device.type == "cpu" else torch.bfloat16}
    leaves = [
        torch.randn(batch, heads, length, width, **kind, requires_grad=True)
        for length, width in ((queries, hidden), (keys, hidden), (keys, dim))
    ]
    score = regard.Additive(hidden, heads).to(**kind)
    given = torch.randn(batch, heads, queries, dim, **kind)
    exact = "cpu" if device.type == "cpu" else "triton"

    def forward(engine: str) -> Callable[[], object]:
        def run() -> None:
            with torch.no_grad():
                regard.attention(*leaves, score, engine=engine)

        return run

    def both(engine: str) -> Callable[[], object]:
        def run() -> None:
            out = regard.attention(*leaves, score, engine=engine)
            torch.autograd.grad(out, [*leaves, score.v], given)

        return run

    plan = regard.explain(*leaves, score)
    row: dict[str, object] = {"shape": shape, "tanh": math.prod(shape[:5]), "chosen": plan.engine}
    for engine in ("plain", "sine") if device.type == "cuda" else ("plain",):
        if engine == "sine" and row["tanh"] < SERIES_FROM:
            continue
        if regard.explain(*leaves, score, engine=engine).engine is None:
            continue
        row[engine] = {
            name: in_turns(run(engine), run(exact), device)
            for name, run in (("forward", forward), ("forward+backward", both))
        }
    return row


def in_turns(
    ours: Callable[[], object], other: Callable[[], object], device: torch.device
) -> dict[str, float]:
    """`compare` of both, each called so often that the clock can tell; times are of one call."""
    times = repeats(other, device)
    found = compare(*(together(call, times, device) for call in (ours, other)), ROUNDS)
    return {name: x if "ratio" in name else x / times for name, x in found.items()}


def repeats(call: Callable[[], object], device: torch.device) -> int:
    """Calls that one timing takes, so that it is not shorter than the clock can tell."""
    for _ in range(3):  # a kernel is compiled by the first and bound by the second
        together(call, 1, device)()
    start = time.perf_counter()
    together(call, 1, device)()
    return max(1, round(SECONDS / (time.perf_counter() - start)))


def together(call: Callable[[], object], times: int, device: torch.device) -> Callable[[], object]:
    """So many calls one after the other, and the wait for the device at their end."""

    def run() -> None:
        for _ in range(times):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def machine_and_file(what: str, device: torch.device) -> tuple[dict[str, object], str]:
    """What the results say of the machine, on a CPU with 2 threads, and the name of their file."""
    if device.type == "cpu":
        torch.set_num_threads(2)
        machine, where = {"cores": 2, "platform": platform.machine()}, "cpu"
    else:
        name = torch.cuda.get_device_name(device)
        machine, where = {"device": name}, name.split()[-1].lower()
    return {**machine, "torch": torch.__version__}, f"{what}_{where}.json"


def asked(what: str, about: str) -> tuple[torch.device, dict[str, object], Path]:
    """The device of the command line, what results say of the machine, and their file."""
    parser = argparse.ArgumentParser(description=about.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path, help="file (default: in benchmarks/results)")
    options = parser.parse_args()
    device = torch.device(options.device)
    machine, file = machine_and_file(what, device)
    return device, machine, options.out or RESULTS / file


def ratios(*found: dict[str, float]) -> str:
    """For a person: each with the range that holds half of its turns."""
    return "   ".join(
        f"{x['ratio']:5.2f} ({x['ratio_low']:.2f} to {x['ratio_high']:.2f})" for x in found
    )


def main() -> None:
    """Measure all, print them and write them after each."""
    device, machine, file = asked("small", __doc__)
    shapes = ON_CPU if device.type == "cpu" else ON_GPU
    rows, start = [], time.perf_counter()
    print("(B, H, Q, L, E, D)                tanh   over exact: forward, with backward   chosen")
    for number, shape in enumerate(shapes, 1):
        rows.append(row := measured(shape, device))
        for engine in ("plain", "sine"):
            if engine in row:
                cells = ratios(*row[engine].values())
                print(
                    f"{shape!s:<30} {row['tanh']:8.1e}   {engine} {cells}   {row['chosen']}",
                    flush=True,
                )
        left = (time.perf_counter() - start) / number * (len(shapes) - number)
        print(f"  {number}/{len(shapes)}, about {left:.0f} s left", end="\r", file=sys.stderr)
        text = json.dumps({"machine": machine, "results": rows}, indent=1) + "\n"
        file.write_text(text)


if __name__ == "__main__":
    main()
