"""What cuDNN's attention costs by the widths of features and values: the table that engine `sine` plans by.

`python benchmarks/widths.py` on a GPU writes benchmarks/results/widths_<gpu>.json and prints the rows of
`COST` in src/regard/engines/sine_features/widths.py, and beside them widths that lie between. All are recorded as
graphs and replayed in turns, A B C ... C B A, with the cache emptied before each; a time is the median over
turns, with the range that holds half of them.

Shape legend: B batch, H heads, L length, E width of queries and keys, D width of values.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from regard.engines.sine_features.widths import COST
from regard.measuring.graphs import Recorder
from regard.measuring.stopwatch import Stopwatch
from regard.measuring.turns import there_and_back

RESULTS = Path(__file__).parent / "results"
BATCH, HEADS, LENGTH = 4, 16, 4096
# Pairs (E, D) that no call is padded to, since they cost more than wider ones.
BETWEEN = [(136, 64), (160, 64), (128, 72), (192, 72)]
TURNS = 9


def calls(
    widths: tuple[int, int], device: torch.device, sizes: tuple[int, int, int]
) -> dict[str, Callable[[], object]]:
    """A forward, and one with its backward, of fp16 features and values of these widths."""
    wide, wide_value = widths
    q, k, value = (
        torch.randn(*sizes, columns, device=device, dtype=torch.float16, requires_grad=True)
        for columns in (wide, wide, wide_value)
    )
    given = torch.randn(*sizes, wide_value, device=device, dtype=torch.float16)
    backend = SDPBackend.CUDNN_ATTENTION if device.type == "cuda" else SDPBackend.MATH

    def forward() -> object:
        with torch.no_grad(), sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, value, scale=1.0)

    def both() -> object:
        with sdpa_kernel(backend):
            output = scaled_dot_product_attention(q, k, value, scale=1.0)
        return torch.autograd.grad(output, (q, k, value), given)

    return {"forward": forward, "forward+backward": both}


def in_turns(
    runs: dict[tuple, Callable[[], object]], device: torch.device, turns: int
) -> dict[tuple, list[float]]:
    """Seconds of each, by turn."""
    watch, samples = Stopwatch(device, small=False), {name: [] for name in runs}
    if device.type == "cuda":
        recorder = Recorder(device)
        runs = {name: recorder.record(run) for name, run in runs.items()}
    expected = {name: min(watch.first(run) for _ in range(2)) for name, run in runs.items()}
    start = time.perf_counter()
    for turn in range(turns):
        for name in there_and_back(list(runs)):
            samples[name].append(watch.sample(runs[name], expected[name]))
        left = (time.perf_counter() - start) / (turn + 1) * (turns - turn - 1)
        print(f"  {turn + 1}/{turns}, about {left:.0f} s left ", end="\r", file=sys.stderr)
    return samples


def measured(
    device: torch.device,
    sizes: tuple[int, int, int] = (BATCH, HEADS, LENGTH),
    turns: int = TURNS,
) -> list[dict[str, object]]:
    """All widths of the table and those between."""
    torch.manual_seed(0)
    runs = {
        (widths, which): run
        for widths in (*COST, *BETWEEN)
        for which, run in calls(widths, device, sizes).items()
    }
    rows = []
    for (widths, which), seconds in in_turns(runs, device, turns).items():
        low, middle, high = statistics.quantiles(seconds, n=4)
        rows.append(
            {
                "widths": widths,
                "pass": which,
                "ms": 1e3 * middle,
                "low": 1e3 * low,
                "high": 1e3 * high,
            }
        )
    return rows


def table(rows: list[dict[str, object]]) -> str:
    """The rows as `COST` has them."""
    found: dict[tuple, list[str]] = {}
    for row in rows:
        found.setdefault(tuple(row["widths"]), []).append(f"{row['ms']:#.3g}")
    lines = [f"    {widths}: ({', '.join(times)})," for widths, times in found.items()]
    return "\n".join(["COST = {", *lines[: len(COST)], "}", "between:", *lines[len(COST) :]])


def main() -> None:
    """Measure on the GPU, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="file (default: in benchmarks/results)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("widths.py: no GPU is visible, and cuDNN runs on one alone")
    device = torch.device("cuda", 0)
    rows = measured(device)
    print(table(rows))
    name = torch.cuda.get_device_name(device)
    machine = {"device": name, "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    sizes = {"batch": BATCH, "heads": HEADS, "length": LENGTH, "dtype": "float16"}
    text = json.dumps({"machine": machine, **sizes, "results": rows}, indent=1) + "\n"
    (options.out or RESULTS / f"widths_{name.split()[-1].lower()}.json").write_text(text)


if __name__ == "__main__":
    main()
