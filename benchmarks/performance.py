"""The tables of docs/performance.md, from the results of `wide.py` and `steps.py`; `readme.py` writes them there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
PASSES = ("forward", "with backward")
# Products of fp16 numbers with sums in fp32 that the tensor cores of an H200 reach at most, operations a second:
# NVIDIA's data sheet, without sparsity.
PEAK = 989e12


class Bar(NamedTuple):
    """What a row of `wide.py` must reach, forward and with backward, over the row that it is compared with."""

    title: str
    forward: float | None
    both: float | None


# By the name of the row.
BARS = {
    "fast, 64 units": Bar('hidden 64, `series="fast"`', 6.0, 6.5),
    "fast, 128 units": Bar('hidden 128, `series="fast"`', 11.0, 12.0),
    "fast, 64 units, causal": Bar('hidden 64, `series="fast"`, causal', None, None),
    "unasked, 16 units": Bar("hidden 16", None, None),
    "unasked, 32 units": Bar("hidden 32", None, 7.0),
    "unasked, 64 units": Bar("hidden 64", None, 10.5),
    "unasked, 128 units": Bar("hidden 128", None, 25.0),
    "unasked, 64 units, causal": Bar("hidden 64, causal", None, None),
    "unasked, 16 units, lengths": Bar("hidden 16, lengths of queries and keys", None, 1.2),
    "unasked, 16 units, dropout": Bar("hidden 16, dropout 0.1", None, 1.4),
    "unasked, 16 units, causal, lengths": Bar("hidden 16, causal with lengths", None, None),
}
# A causal call may take this many times the ratio of the call without a mask.
CAUSAL = 1.25
MASKED = {
    "fast, 64 units, causal": "fast, 64 units",
    "unasked, 64 units, causal": "unasked, 64 units",
}


def load(name: str) -> dict[str, Any]:
    """A result file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def floor(
    found: dict[str, Any], hidden: int, sizes: list[int], causal: bool
) -> tuple[float, float] | None:
    """Milliseconds that the matrix products take at `PEAK`, forward and with backward; None without a series.

    Forward the logits and the weighted values; backward the logits again, and the gradients of weights, values and
    both sides. Half of the pairs are seen in causal attention.
    """
    told = re.search(r"of rank (\d+)", " ".join(found["notes"]))
    if told is None:
        return None
    batch, heads, length = sizes
    width, values = 2 * int(told[1]) * hidden, 64
    pairs = 2 * batch * heads * length**2 * (0.5 if causal else 1.0)
    forward = pairs * (width + values)
    backward = pairs * (3 * width + 2 * values)
    return 1e3 * forward / PEAK, 1e3 * (forward + backward) / PEAK


def ratio(found: dict[str, Any], which: str) -> float:
    """The time of a pass over that of the row that it is compared with."""
    return next(x for name, x in found.items() if name.startswith("over ") and name.endswith(which))


def beside(value: float, bar: float | None) -> str:
    """A ratio, and its bar if it has one."""
    if bar is None:
        return f"{value:.2f}x"
    return f"{value:.2f}x{'' if value <= bar else ' **missed**'} (bar {bar:.3g}x)"


def wide_table() -> str:
    """Additive attention as a series: time over scaled dot, over its floor, and memory."""
    found = load("wide_h200")
    sizes, results = found["batch, heads, length"], found["results"]
    lines = [
        "| call | forward | with backward | in a CUDA graph | over the floor | workspace |",
        "|---|---|---|---|---|---|",
    ]
    for name, bar in BARS.items():
        row = results[name]
        if "failed" in row:
            lines.append(f"| {bar.title} | failed: {row['failed']} | | | | |")
            continue
        limit = bar.forward, bar.both
        if name in MASKED:
            limit = tuple(CAUSAL * ratio(results[MASKED[name]], f"{one}, eager") for one in PASSES)
        eager = [ratio(row, f"{one}, eager") for one in PASSES]
        graph = " / ".join(f"{ratio(row, f'{one}, graph'):.2f}x" for one in PASSES)
        hidden = int(re.search(r"(\d+) units", name)[1])  # type: ignore[index] # every name has it
        least = floor(row, hidden, sizes, "causal" in name)
        over = (
            ""
            if least is None
            else " / ".join(
                f"{row[f'{one}, graph'] / ms:.1f}x" for one, ms in zip(PASSES, least, strict=True)
            )
        )
        cells = [bar.title, beside(eager[0], limit[0]), beside(eager[1], limit[1]), graph, over]
        cells.append(f"{max(row['workspace forward'], row['workspace with backward']):,.0f} MiB")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", wide_note(found), "", shares(found["profile"]["kernels"])])


def shares(kernels: list[dict[str, Any]]) -> str:
    """Which kernels take the time of one forward and backward at 64 units, *fast*."""
    groups = {
        "weights and gradients of logits": ("slopes_kernel",),
        "library products": ("nvjet", "gemm", "cutlass"),
        "the forward": ("attend_kernel",),
    }
    total = sum(one["ms"] for one in kernels)
    told, left = [], total
    for title, names in groups.items():
        ms = sum(one["ms"] for one in kernels if any(name in one["name"] for name in names))
        told.append(f"{title} {ms:.1f} ms")
        left -= ms
    return (
        f"Of {total:.1f} ms on the device for hidden 64, *fast*, with backward: {', '.join(told)}, features and the rest "
        f"{left:.1f} ms."
    )


def wide_note(found: dict[str, Any]) -> str:
    """What the table was measured with."""
    batch, heads, length = found["batch, heads, length"]
    about = found["machine"]
    return (
        f"bf16, batch {batch}, {heads} heads, length {length}, values 64 wide, on one {about['name']}; torch "
        f"{about['torch']}. Times of calls from Python over cuDNN's scaled dot product attention of width 64 in the same "
        "run, causal over causal; the rows at hidden 16 with lengths or dropout over the plain call at hidden 16. "
        "*Over the floor*: recorded time over the matrix products at 989e12 operations a second, forward / with backward."
    )


# Bars of `steps.py`: time over what is written by hand, forward and with backward, and shares of the bytes floor.
STEP_BARS = {30: (1.0, 1.0), 1500: (0.7, 0.7)}
WEIGHTS_BAR, TOKEN_BARS = 1.0, {"scaled dot": 1.2, "additive": 1.5}
SHARES = {32768: 0.85, 4096: 0.60}


def steps_table() -> str:
    """Decoding and weights on request, beside what is written by hand."""
    results = load("steps_h200")["results"]
    lines = [
        "| call | beside | forward | with backward | forward, in a CUDA graph |",
        "|---|---|---|---|---|",
    ]
    for name, row in results.items():
        kind, dtype = name.split()[0], short(str(row.get("dtype", "")))
        if kind == "bahdanau":
            what, hand = f"`BahdanauAttention`, {row['keys']:,} keys, {dtype}", "five lines by hand"
            bars = STEP_BARS[row["keys"]]
        elif kind == "weights":
            batch, length, width, heads = row["shape"]
            what = f"`MultiheadAttention` with weights, {batch} x {length:,} x {width}, {heads} heads, {dtype}"
            hand, bars = "torch's own", (WEIGHTS_BAR, WEIGHTS_BAR)
        else:
            continue
        cells = [what, hand]
        cells += [
            beside(row[one]["ratio"], bar)
            for one, bar in zip(("forward", "forward+backward"), bars, strict=True)
        ]
        cells.append(f"{row['forward in a graph']['ratio']:.2f}x")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *tokens(results["generation"]), "", queries(results)])


def short(dtype: str) -> str:
    """A dtype as people write it."""
    return {"torch.float32": "fp32", "torch.bfloat16": "bf16"}.get(dtype, dtype)


def tokens(found: dict[str, Any]) -> list[str]:
    """Milliseconds of a token, over blocks by hand."""
    lines = [
        "| generation, ms a token | over new lengths | over by hand | a second time | over by hand |",
        "|---|---|---|---|---|",
    ]
    for name in ("by hand, flash", "scaled dot", "cosine", "additive"):
        row, bar = found[name], TOKEN_BARS.get(name)
        ratios = [row["first_over_hand"], row["second_over_hand"]]
        first, second = ("" if name == "by hand, flash" else beside(one, bar) for one in ratios)
        lines.append(
            f"| {name} | {row['first_ms']:.2f} | {first} | {row['second_ms']:.2f} | {second} |"
        )
    return lines


def queries(results: dict[str, Any]) -> str:
    """One query over many keys, beside the bytes that it has to read."""
    told = []
    for keys, bar in SHARES.items():
        row = results[f"one query {keys}"]
        missed = "" if row["share"] >= bar else " **missed**"
        told.append(
            f"over {keys:,} keys in {1e3 * row['graph_ms']:.0f} µs, {100 * row['share']:.1f}% of the floor of "
            f"{1e3 * row['floor_ms']:.0f} µs{missed} (bar {100 * bar:.0f}%), {1e3 * row['eager_ms']:.0f} µs from Python"
        )
    return f"One query of 64 heads, hidden 64, in a CUDA graph: {'; '.join(told)}."
