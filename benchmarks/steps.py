"""Decoding and weights on request beside what is written by hand, on one GPU, in about a minute.

    python benchmarks/steps.py --out steps.json

Four groups, each as eager calls from Python and, where it says so, in a CUDA graph, which leaves the time on
the device: `BahdanauAttention` beside five lines by hand (keys projected once on both sides), generation with
a cache beside blocks by hand through flash attention, `MultiheadAttention` with weights beside torch's own,
and one query over many keys beside the bytes it has to read. Both sides of a ratio run in turns in one
process; below 1 ours is the faster. A row that fails keeps its error.

Shape legend: B batch, L keys, E hidden units, V value width, D width of a model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from small import machine_and_file
from step_models import (
    BATCH,
    HIDDEN,
    STEPS,
    BahdanauPair,
    DecoderByHand,
    weights_pair,
)

import regard
from regard.measuring.turns import compare
from regard.nn import Decoder, DecoderBlock

FP32, BF16 = torch.float32, torch.bfloat16
ROUNDS, TOKENS, WARM = 5, 96, 4
# Bytes a second that a kernel reads of the memory of an H200, of 4.8e12 on paper.
BANDWIDTH = 4.3e12
DEVICE = torch.device("cuda")
Row = dict[str, object]


def synchronized(run: Callable[[], object]) -> Callable[[], None]:
    """The call, and the wait for the device."""

    def call() -> None:
        run()
        torch.cuda.synchronize()

    return call


def in_graph(run: Callable[[], object], times: int = 20) -> float:
    """Milliseconds of a call in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return timed(graph.replay, times)


def timed(run: Callable[[], object], times: int) -> float:
    """Milliseconds of a call, the median of several rounds of so many."""
    found = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            run()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / times)
    return statistics.median(found)


def bahdanau(keys: int, dtype: torch.dtype) -> Row:
    """A loop of steps, forward and with backward, over five lines by hand."""
    pair = BahdanauPair(keys, dtype, DEVICE)
    row: Row = {
        "keys": keys,
        "dtype": str(dtype),
        "steps": STEPS,
        "batch": BATCH,
        "error": pair.error(),
    }
    with torch.no_grad():
        row["forward"] = compare(synchronized(pair.ours), synchronized(pair.theirs), ROUNDS)
        row["forward in a graph"] = both_in_graphs(pair.ours, pair.theirs)
    backward = [synchronized(pair.trained(run)) for run in (pair.ours, pair.theirs)]
    row["forward+backward"] = compare(*backward, ROUNDS)
    return row


def both_in_graphs(ours: Callable[[], object], theirs: Callable[[], object]) -> Row:
    """Times on the device, and their ratio."""
    a, b = in_graph(ours, 5), in_graph(theirs, 5)
    return {"ours_ms": a, "other_ms": b, "ratio": a / b}


def step_kernels(keys: int, dtype: torch.dtype) -> Row:
    """The two passes of one step on the device, in microseconds, beside the bytes they have to move."""
    from regard.engines.step_plan import steps

    torch.manual_seed(0)
    kind = {"device": DEVICE, "dtype": dtype}
    a, b = torch.randn(BATCH, 1, 1, HIDDEN, **kind), torch.randn(BATCH, 1, keys, HIDDEN, **kind)
    v, value = torch.randn(1, HIDDEN, **kind), torch.randn(BATCH, 1, keys, HIDDEN, **kind)
    given = (b, dtype, value, None, "tanh", 0.0)
    launches = steps().launches_for(steps().step_signature((1, 1), *given))
    over = steps().MemorySteps(launches, b, value, None)
    before = torch.zeros(BATCH, 1, keys, device=DEVICE)
    found, grad = over.step(a, v, before, saves=True), torch.randn(BATCH, 1, HIDDEN, **kind)
    known = (grad, found.output, found.weights)
    bytes_read = 2 * b.numel() * b.element_size()
    forward = in_graph(lambda: over.step(a, v, before, saves=False))
    back = in_graph(lambda: over.backward(a, v, known, None))
    floor = 1e6 * bytes_read / BANDWIDTH
    return {
        "keys": keys,
        "dtype": str(dtype),
        "forward_us": 1e3 * forward,
        "backward_us": 1e3 * back,
        "bytes_us": floor,
        "backward_bytes_us": 2 * floor,
    }


def generation() -> Row:
    """Milliseconds a token, over lengths that are new and once more, of blocks by hand and of `Decoder`."""
    torch.manual_seed(0)
    dim, heads, layers, batch = 512, 8, 6, 8
    kind = {"device": DEVICE, "dtype": BF16}
    tokens = torch.randn(WARM + TOKENS, batch, 1, dim, **kind)
    hand = DecoderByHand(dim, heads, layers).to(**kind).eval()
    row: Row = {"layers": layers, "dim": dim, "batch": batch, "tokens": TOKENS}
    runs: dict[str, Callable[[], list[float]]] = {
        "by hand, flash": lambda: token_times(hand, tokens)
    }
    for name, score in (("scaled dot", None), ("cosine", "cosine"), ("additive", "additive")):
        decoder = Decoder([DecoderBlock(dim, heads, score) for _ in range(layers)])
        decoder = decoder.to(**kind).eval()
        runs[name] = lambda decoder=decoder: token_times(decoder.step, tokens)
    with torch.no_grad():
        for name, run in runs.items():
            row[name] = {"start_ms": 0.0}
            first, second, third = run(), run(), run()
            row[name] = {
                "start_ms": sum(first[:WARM]),
                "first_ms": statistics.mean(first[WARM:]),
                "second_ms": statistics.mean(second[WARM:]),
                "third_ms": statistics.mean(third[WARM:]),
                "slowest_first_ms": max(first[WARM:]),
            }
    hand_ms = row["by hand, flash"]
    for name in runs:
        for when in ("first", "second"):
            row[name][f"{when}_over_hand"] = row[name][f"{when}_ms"] / hand_ms[f"{when}_ms"]
    return row


def token_times(step: Callable, tokens: torch.Tensor) -> list[float]:
    """Milliseconds of each token of a generation that starts anew."""
    cache, found = None, []
    for x in tokens:
        torch.cuda.synchronize()
        start = time.perf_counter()
        _, cache = step(x, cache)
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - start))
    return found


def with_weights(batch: int, length: int, dim: int, heads: int, dtype: torch.dtype) -> Row:
    """`MultiheadAttention` that returns weights over torch's own, of the same parameters."""
    ours, theirs, x, error = weights_pair(batch, length, dim, heads, dtype, DEVICE)
    row: Row = {"shape": [batch, length, dim, heads], "dtype": str(dtype), "error": error}
    with torch.no_grad():
        row["forward"] = compare(
            synchronized(lambda: ours(x, x, x)), synchronized(lambda: theirs(x, x, x)), ROUNDS, 5
        )
        row["forward in a graph"] = both_in_graphs(lambda: ours(x, x, x), lambda: theirs(x, x, x))

    def trained(module: torch.nn.Module) -> Callable[[], None]:
        leaves = [x, *module.parameters()]
        return synchronized(lambda: torch.autograd.grad(module(x, x, x)[0].sum(), leaves))

    row["forward+backward"] = compare(trained(ours), trained(theirs), ROUNDS, 5)
    return row


def one_query(keys: int) -> Row:
    """One query over many keys, 64 heads, hidden 64: share of the time that its bytes take."""
    torch.manual_seed(0)
    kind = {"device": DEVICE, "dtype": BF16}
    # So many copies that none is left in the second level cache when it is read again.
    copies = max(32768 // keys, 1)
    query = torch.randn(1, 64, 1, 64, **kind)
    sides = [[torch.randn(1, 64, keys, 64, **kind) for _ in range(2)] for _ in range(copies)]
    score = regard.Additive(64, 64).to(**kind)

    def run() -> None:
        for key, value in sides:
            regard.attention(query, key, value, score)

    with torch.no_grad():
        graph = in_graph(run) / copies
        eager = compare(
            synchronized(lambda: regard.attention(query, *sides[0], score)),
            synchronized(lambda: None),
            ROUNDS,
            20,
        )
    floor = 1e3 * 2 * sides[0][0].numel() * 2 / BANDWIDTH
    return {
        "keys": keys,
        "engine": regard.explain(query, *sides[0], score).engine,
        "graph_ms": graph,
        "floor_ms": floor,
        "share": floor / graph,
        "eager_ms": eager["ours_ms"],
    }


def jobs() -> dict[str, Callable[[], Row]]:
    """All rows by name."""
    found: dict[str, Callable[[], Row]] = {"generation": generation}
    for keys in (30, 1500):
        for dtype in (FP32, BF16):
            name = f"{keys} keys {str(dtype)[6:]}"
            found[f"bahdanau {name}"] = lambda keys=keys, dtype=dtype: bahdanau(keys, dtype)
            found[f"kernels {name}"] = lambda keys=keys, dtype=dtype: step_kernels(keys, dtype)
    for shape in (
        (32, 128, 512, 8, FP32),
        (8, 512, 512, 8, FP32),
        (8, 512, 512, 8, BF16),
        (4, 2048, 1024, 16, BF16),
    ):
        name = "x".join(map(str, shape[:4])) + f" {str(shape[4])[6:]}"
        found[f"weights {name}"] = lambda shape=shape: with_weights(*shape)
    for keys in (32768, 4096):
        found[f"one query {keys}"] = lambda keys=keys: one_query(keys)
    return found


def said(name: str, row: Row) -> str:
    """A row for a person."""
    if "failed" in row:
        return f"{name:<34} FAILED: {row['failed']}"
    cells = []
    for key, x in row.items():
        if isinstance(x, dict) and "ratio" in x:
            cells.append(f"{key} {x['ratio']:.2f}x ({x['ours_ms']:.3f} / {x['other_ms']:.3f} ms)")
        elif isinstance(x, dict):
            cells.append(f"{key} " + ", ".join(f"{k} {v:.2f}" for k, v in x.items()))
        elif isinstance(x, float):
            cells.append(f"{key} {x:.4g}")
    return f"{name:<34} " + ";  ".join(cells)


def main() -> None:
    """Measure all, print each as it is done, and write all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--only", default="", help="rows whose names contain this")
    options = parser.parse_args()
    machine, _ = machine_and_file("steps", DEVICE)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows, start = {}, time.perf_counter()
    for name, job in jobs().items():
        if options.only not in name:
            continue
        try:
            rows[name] = job()
        except Exception as error:  # the other rows are worth their time
            rows[name] = {"failed": f"{type(error).__name__}: {error}"[:300]}
            traceback.print_exc()
        print(said(name, rows[name]), flush=True)
        seconds = time.perf_counter() - start
        text = json.dumps({"machine": machine, "seconds": seconds, "results": rows}, indent=1)
        options.out.write_text(text + "\n")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
