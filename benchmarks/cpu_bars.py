"""What the CPU engines must reach, measured in one run as ratios: `make bench`.

Each pair is timed in turns, A B B A ..., so that a noisy machine disturbs both alike and none is
always the second; a ratio is the median over these rounds, with the range that holds half of them.
Peak memory is the resident set's high-water mark above the inputs, each in a process of its own.

Results go to benchmarks/results/cpu_bars.json. Exit status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import regard
from regard.bench.peers import textbook_summed
from regard.measuring.turns import compare

RESULTS = Path(__file__).parent / "results" / "cpu_bars.json"
HEADS, DIM, HIDDEN = 8, 64, 16


def with_backward(call: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], object]:
    def run() -> None:
        torch.autograd.grad(call().square().sum(), leaves)

    return run


def by_hand(score: regard.Score, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What an expert would write: build the features, then SDPA at their width.

    SDPA's fused CPU kernel needs equal widths, so that the narrower side is padded.
    """
    form = score.lower(query, key)
    phi, psi = form.phi, form.psi
    if form.beta is not None:
        phi = torch.cat([phi, torch.ones_like(phi[..., :1])], -1)
        psi = torch.cat([psi, (form.beta / form.scale).unsqueeze(-1)], -1)
    width, value_width = phi.shape[-1], value.shape[-1]
    if width < value_width:
        phi, psi = (F.pad(x, (0, value_width - width)) for x in (phi, psi))
    elif width > value_width:
        value = F.pad(value, (0, width - value_width))
    out = F.scaled_dot_product_attention(phi, psi, value, scale=form.scale)
    return out[..., :value_width]


def inner_scores(rounds: int) -> list[dict]:
    """Every inner score against features and SDPA by hand."""
    rows = []
    scores = {
        "dot": regard.Dot(),
        "scaled_dot": regard.ScaledDot(),
        "cosine": regard.Cosine(HEADS),
        "gaussian": regard.Gaussian(heads=HEADS),
        "bilinear": regard.Bilinear(DIM, DIM, HEADS),
        "low_rank": regard.LowRank(DIM, DIM, 32, HEADS),
    }
    for length in (512, 1024, 2048):
        tensors = [torch.randn(1, HEADS, length, DIM, requires_grad=True) for _ in range(3)]
        # Short calls are the noisier ones, and more of them fit into the same time.
        turns = max(rounds * 1024 // length, 5)
        for name, score in scores.items():
            leaves = [*tensors, *score.parameters()]
            ours = lambda s=score, t=tensors: regard.attention(*t, s)  # noqa: E731
            hand = lambda s=score, t=tensors: by_hand(s, *t)  # noqa: E731
            torch.testing.assert_close(ours(), hand(), rtol=1e-4, atol=1e-4)
            with torch.no_grad():
                rows.append(
                    {"score": name, "length": length, "pass": "forward"}
                    | compare(ours, hand, turns)
                )
            pair = with_backward(ours, leaves), with_backward(hand, leaves)
            rows.append(
                {"score": name, "length": length, "pass": "forward+backward"}
                | compare(*pair, turns)
            )
            print_row(rows[-2]), print_row(rows[-1])
    return rows


def print_row(row: dict) -> None:
    what = f"{row['score']:<11} {row['length']:>5}  {row['pass']:<17}"
    print(
        f"  {what} {row['ratio']:.3f}  ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})   "
        f"{row['ours_ms']:8.2f} ms against {row['other_ms']:8.2f} ms",
        flush=True,
    )


def call_overhead(rounds: int) -> dict[str, float]:
    """What `regard.attention` adds to SDPA on a tiny input."""
    q, k, v = (torch.randn(1, 1, 4, 8) for _ in range(3))
    with torch.no_grad():
        return compare(
            lambda: regard.attention(q, k, v),
            lambda: F.scaled_dot_product_attention(q, k, v),
            rounds=4 * rounds,
            calls=200,
        )


def additive_inputs(length: int) -> tuple[list[Tensor], regard.Additive]:
    torch.manual_seed(0)
    a, b = (torch.randn(1, HEADS, length, HIDDEN, requires_grad=True) for _ in range(2))
    value = torch.randn(1, HEADS, length, DIM, requires_grad=True)
    return [a, b, value], regard.Additive(HIDDEN, HEADS)


def textbook(a: Tensor, b: Tensor, value: Tensor, score: regard.Additive) -> Tensor:
    """Additive attention as it is taught."""
    return textbook_summed(a, b, value, score.v)


def additive_times(length: int, rounds: int) -> dict[str, dict[str, float]]:
    """Ours against the textbook, forward and forward+backward."""
    tensors, score = additive_inputs(length)
    ours = lambda: regard.attention(*tensors, score, engine="cpu")  # noqa: E731
    other = lambda: textbook(*tensors, score)  # noqa: E731
    torch.testing.assert_close(ours(), other(), rtol=1e-4, atol=1e-5)
    leaves = [*tensors, score.v]
    with torch.no_grad():
        forward = compare(ours, other, rounds)
    both = compare(with_backward(ours, leaves), with_backward(other, leaves), rounds)
    return {"forward": forward, "forward+backward": both}


def peak_bytes(which: str, length: int, backward: bool, queue: multiprocessing.Queue) -> None:
    """Bytes of resident memory that one call needs above its inputs (in a process of its own)."""
    tensors, score = additive_inputs(length)
    call = {
        "ours": lambda: regard.attention(*tensors, score, engine="cpu"),
        "textbook": lambda: textbook(*tensors, score),
    }[which]
    small, small_score = additive_inputs(64)  # load the code paths before the mark is set
    with_backward(lambda: textbook(*small, small_score), small)()
    with_backward(lambda: regard.attention(*small, small_score, engine="cpu"), small)()
    Path("/proc/self/clear_refs").write_text("5")
    before = high_water()
    if backward:
        with_backward(call, [*tensors, score.v])()
    else:
        with torch.no_grad():
            call()
    queue.put(high_water() - before)


def high_water() -> int:
    """The resident set's high-water mark in bytes, since it was last cleared."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("this system does not report VmHWM")


def measured_peak(which: str, length: int, backward: bool) -> int:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=peak_bytes, args=(which, length, backward, queue))
    process.start()
    found = queue.get(timeout=300)
    process.join()
    return found


def bar(name: str, value: float, limit: float, at_most: bool, unit: str) -> dict:
    met = value <= limit if at_most else value >= limit
    sign = "at most" if at_most else "at least"
    print(f"{'met   ' if met else 'MISSED'}  {name}: {value:.3g}{unit} ({sign} {limit:g}{unit})")
    return {
        "name": name,
        "value": value,
        "bar": limit,
        "at_most": at_most,
        "unit": unit,
        "met": met,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21, help="timings of each pair")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    torch.manual_seed(0)
    print("inner scores over features + SDPA by hand: ratio (middle half)", flush=True)
    inner = inner_scores(options.rounds)
    overhead = call_overhead(options.rounds)
    additive = additive_times(1024, max(options.rounds // 3, 5))
    memory = {
        f"{which} {'forward+backward' if backward else 'forward'}": measured_peak(
            which, 1024, backward
        )
        for which in ("ours", "textbook")
        for backward in (False, True)
    }
    print()
    worst = {
        p: max((r for r in inner if r["pass"] == p), key=lambda r: r["ratio"])
        for p in ("forward", "forward+backward")
    }
    bars = [
        *(
            bar(
                f"inner scores over SDPA by hand, worst of all, {p}",
                worst[p]["ratio"],
                1.05,
                True,
                "x",
            )
            for p in worst
        ),
        bar("call overhead over SDPA, tiny input", overhead["difference_us"], 30, True, " us"),
        bar(
            "textbook over ours, additive, forward", 1 / additive["forward"]["ratio"], 2, False, "x"
        ),
        bar(
            "textbook over ours, additive, forward+backward",
            1 / additive["forward+backward"]["ratio"],
            1,
            False,
            "x",
        ),
        bar(
            "peak memory of ours over textbook, forward",
            memory["ours forward"] / memory["textbook forward"],
            0.1,
            True,
            "x",
        ),
        bar(
            "peak memory of ours over textbook, forward+backward",
            memory["ours forward+backward"] / memory["textbook forward+backward"],
            0.1,
            True,
            "x",
        ),
    ]
    results = {
        "command": "make bench",
        "regard": regard.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "setting": f"batch 1, {HEADS} heads, fp32; inner: dim {DIM}; additive: hidden {HIDDEN}, "
        f"value dim {DIM}, length 1024",
        "bars": bars,
        "inner": inner,
        "overhead": overhead,
        "additive": additive,
        "peak_bytes": memory,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(b["met"] for b in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
