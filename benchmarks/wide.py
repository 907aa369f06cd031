"""Additive attention as a series through the wide kernels: time over scaled dot, memory and error.

`python benchmarks/wide.py --out FOLDER` on a GPU writes FOLDER/wide_<gpu>.json and prints one table. Every
time is over that of cuDNN's scaled dot attention of width 64 in the same run, causal over causal: of calls
from Python, and of recorded graphs with the cache emptied before each. Memory is what a call takes
at its peak beyond inputs and results. Errors are those of one head against fp64. A row that fails says why,
and the others go on. `--tiles` measures the kernels alone by tile, for src/regard/engines/wide/sizes.py.

Kernels are compiled first, one process for each row, because the compiler takes longer than all calls.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import Additive, Mask
from regard.measuring.errors import distance
from regard.measuring.failures import first_line
from regard.measuring.graphs import CaptureError, Recorder
from regard.measuring.machine import machine
from regard.measuring.stopwatch import Stopwatch

BATCH, HEADS, LENGTH, WIDTH = 4, 16, 4096, 64
ROUNDS, PROFILED = 5, "fast, 64 units"
MIB = 2**20


class Row(NamedTuple):
    """One call: hidden units, the series if it is named, options, and the row it is compared with."""

    hidden: int
    series: str | None = None
    causal: bool = False
    lengths: bool = False
    dropout: float = 0.0
    over: str = "dot"


ROWS = {
    "fast, 64 units": Row(64, "fast"),
    "fast, 128 units": Row(128, "fast"),
    "fast, 64 units, causal": Row(64, "fast", causal=True, over="dot, causal"),
    "unasked, 16 units": Row(16),
    "unasked, 32 units": Row(32),
    "unasked, 64 units": Row(64),
    "unasked, 128 units": Row(128),
    "unasked, 64 units, causal": Row(64, causal=True, over="dot, causal"),
    "unasked, 16 units, lengths": Row(16, lengths=True, over="unasked, 16 units"),
    "unasked, 16 units, dropout": Row(16, dropout=0.1, over="unasked, 16 units"),
    "unasked, 16 units, causal, lengths": Row(
        16, causal=True, lengths=True, over="unasked, 16 units"
    ),
}
DOTS = {"dot": False, "dot, causal": True}


class Call:
    """A row with its tensors, in bf16."""

    def __init__(self, row: Row, device: torch.device, sizes: tuple[int, int, int]) -> None:
        torch.manual_seed(0)
        batch, heads, length = sizes
        kind = {"device": device, "dtype": torch.bfloat16}

        def leaf(width: int) -> Tensor:
            return torch.randn(batch, heads, length, width, **kind).requires_grad_()

        self.row, self.device = row, device
        self.leaves = [leaf(row.hidden), leaf(row.hidden), leaf(WIDTH)]
        named = {"series": row.series} if row.series else {}
        self.score = Additive(row.hidden, heads, **named).to(**kind)
        self.grad = torch.randn(batch, heads, length, WIDTH, **kind)
        self.lengths = torch.linspace(0.75, 1.0, batch).mul(length).long().to(device)
        mask = Mask.causal() if row.causal else None
        if row.lengths:
            padding = Mask.lengths(keys=self.lengths, queries=self.lengths).over_finite()
            mask = padding if mask is None else mask & padding
        self.options = {"mask": mask, "dropout": row.dropout}
        self.options["engine"] = "sine" if row.series else None

    def forward(self) -> object:
        """The output."""
        with torch.no_grad():
            return regard.attention(*self.leaves, self.score, **self.options)

    def both(self) -> tuple[Tensor, ...]:
        """The output and its gradients."""
        out = regard.attention(*self.leaves, self.score, **self.options)
        return out, *torch.autograd.grad(out, [*self.leaves, self.score.v], self.grad)

    def engine(self) -> tuple[str | None, list[str]]:
        """The engine that runs it, and what it does not promise."""
        plan = regard.explain(*self.leaves, self.score, **self.options)
        return plan.engine, plan.notes

    def errors(self) -> dict[str, float]:
        """Relative errors of output and gradients of the first head of the first sequence."""
        found = [x[0, 0].detach() for x in self.both()[:4]]
        a, b, value = (x[0, 0].detach() for x in self.leaves)
        v = self.score.v[0].detach()
        wanted = truth(a, b, value, v, self.grad[0, 0], self.seen(len(a)))
        names = ("output", "a", "b", "value")
        return {name: distance(x, y) for name, x, y in zip(names, found, wanted, strict=True)}

    def seen(self, length: int) -> Tensor:
        """Which pairs of the first sequence are seen."""
        seen = torch.ones(length, length, dtype=torch.bool, device=self.device)
        seen = seen.tril() if self.row.causal else seen
        if self.row.lengths:
            real = torch.arange(length, device=self.device) < self.lengths[0]
            seen = seen & real & real[:, None]
        return seen


def truth(
    a: Tensor, b: Tensor, value: Tensor, v: Tensor, grad: Tensor, seen: Tensor, rows: int = 128
) -> tuple[Tensor, ...]:
    """Output and gradients of a, b and value of one head in fp64, some queries at a time."""
    b, value, v = b.double().requires_grad_(), value.double().requires_grad_(), v.double()
    outs, by_a, by_b, by_value = [], [], torch.zeros_like(b), torch.zeros_like(value)
    for first in range(0, len(a), rows):
        here = slice(first, first + rows)
        x, sees = a[here].double().requires_grad_(), seen[here]
        logits = (torch.tanh(x[:, None] + b[None]) * v).sum(-1)
        empty = ~sees.any(-1, keepdim=True)
        weights = torch.where(sees | empty, logits, -torch.inf).softmax(-1)
        out = torch.where(empty, 0, weights @ value)
        found = torch.autograd.grad(out, (x, b, value), grad[here].double())
        outs.append(out.detach())
        by_a.append(found[0])
        by_b, by_value = by_b + found[1], by_value + found[2]
    return torch.cat(outs), torch.cat(by_a), by_b, by_value


def dot_calls(
    causal: bool, device: torch.device, sizes: tuple[int, int, int]
) -> tuple[Callable[[], object], Callable[[], object]]:
    """A forward of scaled dot attention through cuDNN, and one with its backward."""
    kind = {"device": device, "dtype": torch.bfloat16}
    q, k, v = (torch.randn(*sizes, WIDTH, **kind).requires_grad_() for _ in range(3))
    grad = torch.randn_like(v)
    backend = SDPBackend.CUDNN_ATTENTION if device.type == "cuda" else SDPBackend.MATH

    def run() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    def forward() -> object:
        with torch.no_grad():
            return run()

    return forward, lambda: torch.autograd.grad(run(), (q, k, v), grad)


def times(runs: dict[str, Callable[[], object]], device: torch.device) -> dict[str, Any]:
    """Milliseconds of each run, called from Python and as a recorded graph."""
    watch, found = Stopwatch(device, small=False), {}
    for name, run in runs.items():
        for _ in range(3):  # a kernel is compiled by the first and bound by the second
            run()
        expected = watch.first(run)
        timed = watch.eager if device.type == "cuda" else watch.sample
        found[f"{name}, eager"] = median(lambda: timed(run, expected))  # noqa: B023
        if device.type == "cuda":
            try:
                replay = Recorder(device).record(run)
                found[f"{name}, graph"] = median(lambda: watch.sample(replay, expected))  # noqa: B023
            except CaptureError as error:
                found[f"{name}, graph failed"] = first_line(error)
    return found


def median(sample: Callable[[], float]) -> float:
    """The median of some samples in milliseconds."""
    return 1e3 * statistics.median(sample() for _ in range(ROUNDS))


def workspace(run: Callable[[], Any], device: torch.device) -> float | None:
    """MiB that a call takes at its peak beyond what was there and what it returns."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    gc.collect()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    results = run()
    results = results if isinstance(results, tuple) else (results,)
    own = sum(x.numel() * x.element_size() for x in results)
    return (torch.cuda.max_memory_allocated(device) - before - own) / MIB


def measured(row: Row, device: torch.device, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """Everything about one row but its ratios."""
    call = Call(row, device, sizes)
    engine, notes = call.engine()
    found: dict[str, Any] = {"engine": engine, "notes": notes}
    regard.sine.escapes.reset()
    found.update(times({"forward": call.forward, "with backward": call.both}, device))
    found["workspace forward"] = workspace(call.forward, device)
    found["workspace with backward"] = workspace(call.both, device)
    counts = regard.sine.escapes.count()
    found["calls, escapes"] = [counts.calls, counts.escapes]
    if not row.dropout:
        found["errors"] = call.errors()
    return found


def survived(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `run` finds, or why it failed."""
    try:
        return run()
    except Exception as error:
        return {"failed": first_line(error)}
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def profile(device: torch.device, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """The kernels that take most of the time of one forward and backward."""
    call = Call(ROWS[PROFILED], device, sizes)
    call.both()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        call.both()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    rows = sorted(profiler.key_averages(), key=lambda x: -x.self_device_time_total)[:14]
    return {
        "kernels": [
            {"name": x.key[:100], "calls": x.count, "ms": x.self_device_time_total / 1e3}
            for x in rows
        ]
    }


def compile_ahead(names: list[str], option: str) -> None:
    """Run each name in a process of its own, so that all kernels are in Triton's cache afterwards."""
    command = [sys.executable, str(Path(__file__).resolve()), "--only", option]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    most, running = max(os.cpu_count() or 1, 1), []
    for name in names:
        running.append(subprocess.Popen([*command, name], **quiet))  # noqa: S603 # this file itself
        if len(running) >= most:
            running.pop(0).wait()
    for process in running:
        process.wait()


def with_ratios(results: dict[str, dict[str, Any]]) -> None:
    """Add to each row its times over those of the row that it is compared with."""
    for name, row in ROWS.items():
        other = results.get(row.over, {})
        for which, ms in list(results[name].items()):
            if which.endswith(("eager", "graph")) and which in other:
                results[name][f"over {row.over}: {which}"] = ms / other[which]


def table(results: dict[str, dict[str, Any]]) -> str:
    """The results for a person: milliseconds, and in brackets the ratio."""
    wanted = ["forward, eager", "forward, graph", "with backward, eager", "with backward, graph"]
    head = ["", "engine", *wanted, "MiB", "errors: output, a, b, value", "escapes"]
    lines = [" | ".join(head)]
    for name, found in results.items():
        if "failed" in found:
            lines.append(f"{name} | failed: {found['failed']}")
            continue
        over = ROWS[name].over if name in ROWS else ""
        cells = [name, found.get("engine") or ""]
        for which in wanted:
            ratio = found.get(f"over {over}: {which}")
            ratio = "" if ratio is None else f" ({ratio:.2f}x)"
            cells.append(f"{found.get(which, math.nan):.3f}{ratio}")
        if name in ROWS:
            sizes = (found[f"workspace {x}"] for x in ("forward", "with backward"))
            cells.append(" ".join(f"{x:.0f}" for x in sizes if x is not None))
            cells.append(" ".join(f"{x:.1e}" for x in found.get("errors", {}).values()))
            cells.append("{1} of {0}".format(*found["calls, escapes"]))
        lines.append(" | ".join(cells))
    return "\n".join(lines)


def all_rows(device: torch.device, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """All rows, with a line to stderr for each."""
    results, start = {}, time.perf_counter()
    for name, causal in DOTS.items():
        forward, both = dot_calls(causal, device, sizes)
        runs = {"forward": forward, "with backward": both}
        results[name] = survived(lambda: times(runs, device))  # noqa: B023
    for name, row in ROWS.items():
        results[name] = survived(lambda: measured(row, device, sizes))  # noqa: B023
        print(f"  {name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    with_ratios(results)
    return {"results": results, "profile": survived(lambda: profile(device, sizes))}


def main() -> None:
    """Measure on the GPU, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--tiles", action="store_true", help="the kernels alone, by tile")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("wide.py: no GPU is visible, and the wide kernels run on one alone")
    import wide_tiles

    device, sizes = torch.device("cuda", 0), (BATCH, HEADS, LENGTH)
    if options.only:
        kind, name = options.only
        run = wide_tiles.once if kind == "tile" else once
        run(name, device, sizes)
        return
    if options.tiles:
        compile_ahead(list(wide_tiles.TILES), "tile")
        found, text = wide_tiles.measured(device, sizes)
    else:
        compile_ahead(list(ROWS), "row")
        found = all_rows(device, sizes)
        text = table(found["results"])
        for kernel in found["profile"].get("kernels", []):
            text += f"\n{kernel['ms']:8.3f} ms {kernel['calls']:4d}  {kernel['name']}"
    print(text)
    what = "wide_tiles" if options.tiles else "wide"
    file = options.out / f"{what}_{torch.cuda.get_device_name(device).split()[-1].lower()}.json"
    options.out.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine(device), "batch, heads, length": sizes}
    file.write_text(json.dumps({**about, **found}, indent=1) + "\n")


def once(name: str, device: torch.device, sizes: tuple[int, int, int]) -> None:
    """One forward and backward of a row, for its kernels."""
    Call(ROWS[name], device, sizes).both()
    torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
