"""Small calls of engines `triton` and `sine` for compute-sanitizer, forward and backward.

`make gpu` runs it under both tools and writes reports/sanitizer.txt; one by one that is

    compute-sanitizer --tool memcheck python tests/gpu/sanitize.py
    compute-sanitizer --tool racecheck --kernel-name-exclude kns=cudnn python tests/gpu/sanitize.py

Lengths leave cut tiles on every side. Memory is not cached, so that each buffer ends where it ends.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch

import regard
from regard import Mask

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
QUERIES, KEYS = 35, 67


def additive(hidden: int) -> regard.Score:
    return regard.Additive(hidden, 4)


def series(hidden: int) -> regard.Score:
    return regard.Additive(hidden, 4, series="fast")


def gatv2(hidden: int) -> regard.Score:
    return regard.GATv2(hidden, 4)


class Call(NamedTuple):
    """One call.

    `far` spreads the queries of the last head: 8 is beyond what the fast tanh takes, 80 beyond the
    series.
    """

    what: str
    score: Callable[[int], regard.Score] | None
    dtype: torch.dtype
    options: Callable[[], dict[str, Any]] = dict
    want: tuple[str, ...] = ()
    fixed: bool = False  # whether sums have a fixed order
    queries: int = QUERIES
    keys: int = KEYS
    hidden: int = 17
    value_dim: int = 33
    plain: bool = (
        False  # whether it asks for the output alone, without options: from the third on repeated
    )
    engine: str = "triton"
    far: float = 8.0


def lengths() -> dict[str, Any]:
    return {"mask": Mask.lengths(keys=[KEYS, 40], queries=[20, QUERIES])}


def everything() -> dict[str, Any]:
    return {
        "mask": torch.rand(QUERIES, KEYS, device=DEVICE) < 0.7,
        "bias": torch.randn(QUERIES, KEYS, device=DEVICE, requires_grad=True),
        "temperature": torch.rand(2, 4, QUERIES, 1, device=DEVICE) + 0.5,
    }


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
STATISTICS = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")
CALLS = [
    Call("fast and plain tanh, causal", additive, BF16, lambda: {"mask": Mask.causal()}),
    Call(
        "tanh in a fixed order, lengths, dropout", additive, FP16,
        lambda: {**lengths(), "dropout": 0.2}, fixed=True,
    ),
    Call("tanh in bf16 in a fixed order", additive, BF16, fixed=True),
    Call("LeakyReLU, dense mask, bias, temperature for each row", gatv2, FP32, everything),
    Call(
        "dot with statistics, soft cap and weights", None, FP16,
        lambda: {"softcap": 3.0}, STATISTICS,
    ),
    Call("a hard look-up", additive, FP32, lambda: {"temperature": 0.0}),
    Call("one query", additive, BF16, queries=1),
    Call("one query, repeated", additive, BF16, queries=1, plain=True),
    Call("repeated", additive, BF16, plain=True),
    Call("one query, keys in parts", additive, BF16, queries=1, keys=1000),
    Call(
        "one query, many hidden units and dims", additive, BF16, queries=1, keys=30, hidden=1000,
        value_dim=1000,
    ),
    Call("one query, dims in chunks", additive, BF16, queries=1, keys=1000, value_dim=512),
    Call(
        "one query, a window", additive, BF16,
        lambda: {"mask": Mask.window(left=100) & Mask.causal()}, queries=1, keys=1000,
    ),
    Call(
        "few queries, lengths, soft cap, bias", gatv2, FP32,
        lambda: {
            "mask": Mask.lengths(keys=[KEYS, 0]),
            "bias": torch.randn(5, KEYS, device=DEVICE, requires_grad=True),
            "softcap": 2.0,
        },
        ("lse",), queries=5,
    ),
    Call("the series in its range", series, BF16, engine="sine", far=1.0),
    Call("the series out of its range", series, BF16, engine="sine", far=80.0),
]  # fmt: skip


def run(call: Call) -> float:
    """One call and its backward; the largest difference of the output from the reference.

    Four times: a call of a kind is launched by Triton, then bound, then launched as bound.
    """
    torch.manual_seed(0)
    shapes = (
        (4, call.queries, call.hidden),
        (2, call.keys, call.hidden),
        (2, call.keys, call.value_dim),
    )
    tensors = [torch.randn(2, *s).to(DEVICE, call.dtype).requires_grad_() for s in shapes]
    with torch.no_grad():
        tensors[0][:, 3] *= call.far
    score = None if call.score is None else call.score(call.hidden).to(DEVICE, call.dtype)
    options = call.options()
    torch.use_deterministic_algorithms(call.fixed)
    for _ in range(4):
        if call.plain:
            result = (regard.attention(*tensors, score, engine=call.engine),)
        else:
            result = regard.attend(*tensors, score, want=call.want, engine=call.engine, **options)
        ends = [x.float().sum() for x in result if x is not None and x.requires_grad]
        sum(ends).backward()
    numbers = [result[0], *(x.grad for x in tensors if x.grad is not None)]
    if not all(x.isfinite().all() for x in numbers):
        return math.inf
    torch.use_deterministic_algorithms(False)
    if options.get("dropout"):
        return 0.0
    exact = regard.attention(*tensors, score, engine="reference", **options)
    return float((result[0] - exact).detach().abs().max())


def main() -> int:
    """Run all calls and say what was covered; 1 where a result is wrong."""
    wrong, ran = 0, []
    for call in CALLS:
        if DEVICE == "cpu" and call.far > 8:  # refused there: the numbers are read first
            continue
        ran.append(call)
        error = run(call)
        fine = error < (1e-4 if call.dtype == FP32 else 3e-2)
        wrong += not fine
        said = f"{call.what}, {call.dtype}: forward and backward, error {error:.1e}"
        print(f"{said}{'' if fine else ' WRONG'}")
    queries, keys = (sorted(set(x)) for x in zip(*((c.queries, c.keys) for c in ran), strict=True))
    print(f"{len(ran)} calls on {DEVICE}, of {queries} queries and {keys} keys")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
