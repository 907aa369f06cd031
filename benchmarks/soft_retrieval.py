"""Exact soft retrieval over 10 million keys: time and memory beside FAISS and torch, in one run.

    python benchmarks/soft_retrieval.py                  # on a CPU; beside FAISS's flat search
    python benchmarks/soft_retrieval.py --device cuda    # beside torch's product with top-k

Keys are generated in clusters. Memory is what a call needs at its peak above the keys: resident pages of the process
on a CPU, torch's allocations on a GPU. Results go to benchmarks/results/soft_retrieval_DEVICE.json. Exit status 1 if
the error is larger than `ERROR` or the memory of a call of ours than `MEMORY`. Needs torch alone; FAISS is left out
where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import Additive, Projected
from regard.measuring.clock import synchronize, worked
from regard.measuring.files import json_bytes, write_atomic
from regard.measuring.machine import machine
from regard.recipes.blockwise import BLOCK, soft_read

RESULTS = Path(__file__).parent / "results"
KEYS, DIM, QUERIES, CLUSTERS, BEST = 10_000_000, 64, 64, 1000, 10
NOISE, TEMPERATURE, HIDDEN = 0.7, 0.1, 32
MEMORY = 512 * 2**20
ERROR = 1e-3  # the largest difference to float64, in units of the largest |output|
PAUSE = 0.02  # seconds between two looks at the resident pages


def clustered(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Keys (count, 64) in clusters, generated on the CPU, and queries near some of them."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLUSTERS, DIM, generator=generator)
    keys = torch.empty(count, DIM, device=device)
    for part in keys.split(2**18):
        own = torch.randint(CLUSTERS, (len(part),), generator=generator)
        part.copy_(centres[own] + NOISE * torch.randn(len(part), DIM, generator=generator))
    chosen = torch.randint(count, (QUERIES,), generator=generator)
    noise = NOISE * torch.randn(QUERIES, DIM, generator=generator)
    return keys, keys[chosen.to(device)] + noise.to(device)


def resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class PeakMemory:
    """Bytes at the peak of the block, above those in use when it was made: pages that a call keeps count for the next."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.bytes, self.over = device, 0, threading.Event()
        on_gpu = device.type == "cuda"
        self.before = torch.cuda.memory_allocated() if on_gpu else resident()

    def __enter__(self) -> PeakMemory:
        self.bytes, self.over = 0, threading.Event()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            self.watch = threading.Thread(target=self.look)
            self.watch.start()
        return self

    def look(self) -> None:
        """Keep the greatest count until the block is over."""
        while not self.over.wait(PAUSE):
            self.bytes = max(self.bytes, resident() - self.before)

    def __exit__(self, *error: object) -> None:
        if self.device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated() - self.before
        else:
            self.over.set()
            self.watch.join()


def measured(run: Callable[[], Any], peak: PeakMemory, repeats: int) -> dict[str, float]:
    """Seconds of the fastest call and bytes at the peak of all; a GPU gets a call to warm up.

    `worked` is the processor time of the call where it runs on one thread, which other processes disturb least.
    """
    seconds, spent, device = [], [], peak.device
    with peak:
        for _ in range(repeats + (device.type == "cuda")):
            synchronize(device)
            begun, before = time.perf_counter(), worked(device)
            run()
            synchronize(device)
            seconds.append(time.perf_counter() - begun)
            spent.append(worked(device) - before)
    return {
        "seconds": round(min(seconds), 4),
        "worked": round(min(spent), 4),
        "bytes": peak.bytes,
        "repeats": repeats,
    }


def both_ways(query: Tensor, keys: Tensor, score: Any) -> Callable[[], None]:
    """Forward and backward to the queries and the score's parameters."""
    leaves = [query.clone().requires_grad_(), *([] if score is None else score.parameters())]

    def run() -> None:
        found = soft_read(leaves[0], keys, score=score, temperature=TEMPERATURE)
        torch.autograd.grad(found.output.square().sum() + found.lse.sum(), leaves)

    return run


@torch.no_grad()
def exact(query: Tensor, keys: Tensor) -> Tensor:
    """The output for these queries in float64: all logits first, then the sum over keys."""
    wide = query.double()
    logits = torch.cat([wide @ part.double().T for part in keys.split(BLOCK)], 1)
    weights = (logits / (DIM**0.5 * TEMPERATURE)).softmax(1)
    out = torch.zeros_like(wide)
    for part, weight in zip(keys.split(BLOCK), weights.split(BLOCK, 1), strict=True):
        out += weight @ part.double()
    return out


def beside(query: Tensor, keys: Tensor) -> dict[str, Callable[[], Any]]:
    """What finds the nearest keys alone: FAISS on a CPU, a product with top-k on a GPU."""
    if keys.is_cuda:
        return {"torch product with top-k": lambda: (query @ keys.T).topk(BEST, 1)}
    if importlib.util.find_spec("faiss") is None:
        return {}
    import faiss

    product = faiss.METRIC_INNER_PRODUCT
    pair = query.numpy(), keys.numpy()
    return {"FAISS flat, top-k": lambda: faiss.knn(*pair, BEST, metric=product)}


def main() -> int:
    """Measure, write, and say what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, help="the file of results")
    options = parser.parse_args()
    device = torch.device(options.device)
    keys, query = clustered(options.keys, device)
    torch.manual_seed(0)
    additive = Projected(Additive(HIDDEN), DIM, DIM).to(device)
    # Libraries are loaded and kernels compiled before memory is looked at, on few keys that leave no large buffers.
    both_ways(query[:1], keys[:CLUSTERS], additive)()
    both_ways(query, keys[:CLUSTERS], None)()
    kept: list[Tensor] = []

    @torch.no_grad()
    def forward() -> None:
        kept[:] = [soft_read(query, keys, temperature=TEMPERATURE).output]

    runs: dict[str, Callable[[], Any]] = {
        "ours, forward": forward,
        "ours, forward and backward": both_ways(query, keys, None),
        "ours, additive, one query, forward and backward": both_ways(query[:1], keys, additive),
        **beside(query, keys),
    }
    rows, peak = {}, PeakMemory(device)
    for name, run in runs.items():
        rows[name] = measured(run, peak, options.repeats)
        print(
            f"{name}: {rows[name]['seconds']:.3g} s ({rows[name]['worked']:.3g} s of work), {rows[name]['bytes'] / 2**20:.0f} MiB",
            flush=True,
        )
    few = exact(query[:4], keys)  # after the others, for all logits are in memory
    error = float((kept[0][:4] - few).abs().max() / few.abs().max())
    print(f"largest difference to float64: {error:.1e}")
    facts = {
        "machine": machine(device), "threads": torch.get_num_threads(), "keys": options.keys,
        "dim": DIM, "queries": QUERIES, "generated": f"{CLUSTERS} clusters", "hidden": HIDDEN,
        "keys_bytes": keys.numel() * 4, "error": error, "rows": rows,
    }  # fmt: skip
    path = options.out or RESULTS / f"soft_retrieval_{device.type}.json"
    write_atomic(path, json_bytes(facts))
    ours = [row["bytes"] for name, row in rows.items() if name.startswith("ours")]
    return 0 if error <= ERROR and max(ours) <= MEMORY else 1


if __name__ == "__main__":
    sys.exit(main())
