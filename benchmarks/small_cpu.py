"""Small pairwise calls on the CPU: where engine `plain` is done sooner than engine `cpu`.

`python benchmarks/small_cpu.py` writes benchmarks/results/small_cpu.json, from which the limit in
src/regard/engines/plan.py is read off. The two are timed in turns in one process; a ratio is the
median of plain / cpu with the range that holds half of them, so that less than 1 speaks for `plain`.

Shape legend: B batch, H heads, Q queries, L keys, E hidden units, D value dim.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from cpu_bars import compare, with_backward

import regard

RESULTS = Path(__file__).parent / "results" / "small_cpu.json"
# (B, H, Q, L, E, D): first of one query, then of more, the number of tanh growing within each.
SHAPES = [
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
ROUNDS, SECONDS = 9, 0.02


def measured(shape: tuple[int, ...]) -> dict[str, object]:
    """Both engines at a shape, forward and with backward."""
    batch, heads, queries, keys, hidden, dim = shape
    torch.manual_seed(0)
    leaves = [
        torch.randn(batch, heads, length, width, requires_grad=True)
        for length, width in ((queries, hidden), (keys, hidden), (keys, dim))
    ]
    score = regard.Additive(hidden, heads)

    def by(engine: str) -> Callable[[], torch.Tensor]:
        return lambda: regard.attention(*leaves, score, engine=engine)

    row: dict[str, object] = {"shape": shape, "tanh": math.prod(shape[:5])}
    with torch.no_grad():
        row["forward"] = compare(by("plain"), by("cpu"), ROUNDS, repeats(by("cpu")))
        row["chosen"] = regard.explain(*leaves, score).engine
    both = [with_backward(by(engine), [*leaves, score.v]) for engine in ("plain", "cpu")]
    row["forward+backward"] = compare(*both, ROUNDS, repeats(both[1]))
    return row


def repeats(call: Callable[[], object]) -> int:
    """Calls that one timing takes, so that it is not shorter than the clock can tell."""
    call()
    start = time.perf_counter()
    call()
    return max(1, round(SECONDS / (time.perf_counter() - start)))


def main() -> None:
    """Measure all, write and print them."""
    torch.set_num_threads(2)
    rows, start = [], time.perf_counter()
    print("(B, H, Q, L, E, D)                tanh   plain / cpu: forward   with backward   chosen")
    for number, shape in enumerate(SHAPES, 1):
        rows.append(row := measured(shape))
        cells = "   ".join(
            f"{x['ratio']:5.2f} ({x['ratio_low']:.2f} to {x['ratio_high']:.2f})"
            for x in (row["forward"], row["forward+backward"])
        )
        print(f"{shape!s:<30} {row['tanh']:8.1e}   {cells}   {row['chosen']}")
        left = (time.perf_counter() - start) / number * (len(SHAPES) - number)
        print(f"  {number}/{len(SHAPES)}, about {left:.0f} s left", end="\r", file=sys.stderr)
    machine = {"cores": 2, "torch": torch.__version__, "platform": platform.machine()}
    RESULTS.write_text(json.dumps({"machine": machine, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
