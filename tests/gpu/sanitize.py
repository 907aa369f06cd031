"""Small calls of engines `triton` and `sine` for compute-sanitizer, forward and backward.

    compute-sanitizer --tool memcheck python tests/gpu/sanitize.py
    compute-sanitizer --tool racecheck python tests/gpu/sanitize.py

Lengths leave cut tiles on every side. Memory is not cached, so that each buffer ends where it ends.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch

import regard
from regard import Mask

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
QUERIES, KEYS = 35, 67


def additive(dtype: torch.dtype) -> regard.Score:
    return regard.Additive(17, 4).to(device=DEVICE, dtype=dtype)


def series(dtype: torch.dtype) -> regard.Score:
    return regard.Additive(17, 4, series="fast").to(device=DEVICE, dtype=dtype)


def gatv2(dtype: torch.dtype) -> regard.Score:
    return regard.GATv2(17, 4).to(device=DEVICE, dtype=dtype)


def dense() -> torch.Tensor:
    return torch.rand(QUERIES, KEYS, device=DEVICE) < 0.7


# What, the score, the dtype, options, statistics, and whether the order of sums is fixed.
CALLS = [
    ("fast and plain tanh, causal", additive, torch.bfloat16, lambda: {"mask": Mask.causal()}, (), False),
    (
        "tanh in a fixed order, lengths, dropout",
        additive,
        torch.float16,
        lambda: {"mask": Mask.lengths(keys=[KEYS, 40], queries=[20, QUERIES]), "dropout": 0.2},
        (),
        True,
    ),
    ("tanh in bf16 in a fixed order", additive, torch.bfloat16, dict, (), True),
    (
        "LeakyReLU, dense mask, bias, temperature for each row",
        gatv2,
        torch.float32,
        lambda: {
            "mask": dense(),
            "bias": torch.randn(QUERIES, KEYS, device=DEVICE, requires_grad=True),
            "temperature": torch.rand(2, 4, QUERIES, 1, device=DEVICE) + 0.5,
        },
        (),
        False,
    ),
    (
        "dot with statistics, soft cap and weights",
        lambda dtype: None,
        torch.float16,
        lambda: {"softcap": 3.0},
        ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights"),
        False,
    ),
    ("a hard look-up", additive, torch.float32, lambda: {"temperature": 0.0}, (), False),
    ("the series in its range", series, torch.bfloat16, lambda: {"engine": "sine"}, (), False),
    ("the series out of its range", series, torch.bfloat16, lambda: {"engine": "sine"}, (), False),
]  # fmt: skip


def run(
    build, dtype: torch.dtype, options: dict, want: tuple[str, ...], fixed: bool, far: float
) -> float:
    """One call and its backward; the largest difference of the output from the reference."""
    shapes = ((4, QUERIES, 17), (2, KEYS, 17), (2, KEYS, 33))
    tensors = [torch.randn(2, *s).to(device=DEVICE, dtype=dtype).requires_grad_() for s in shapes]
    with torch.no_grad():
        tensors[0][:, 3] *= far  # 8 is beyond what the fast tanh takes, 80 beyond the series
    score = build(dtype)
    torch.use_deterministic_algorithms(fixed)
    engine = options.pop("engine", "triton")
    result = regard.attend(*tensors, score, want=want, engine=engine, **options)
    ends = [x.float().sum() for x in result if x is not None and x.requires_grad]
    sum(ends).backward()
    torch.use_deterministic_algorithms(False)
    if options.get("dropout"):
        return 0.0
    exact = regard.attention(*tensors, score, engine="reference", **options)
    return float((result.output - exact).detach().abs().max())


def main() -> int:
    """Run all calls and say what was covered; 1 where a result is wrong."""
    wrong = 0
    for what, build, dtype, options, want, fixed in CALLS:
        if DEVICE == "cpu" and "out of" in what:  # refused there, as the numbers are read first
            continue
        torch.manual_seed(0)
        far = 80.0 if "out of" in what else 1.0 if "series" in what else 8.0
        error = run(build, dtype, options(), want, fixed, far)
        fine = error < (1e-4 if dtype == torch.float32 else 3e-2)
        wrong += not fine
        print(f"{what}, {dtype}: forward and backward, error {error:.1e}{'' if fine else ' WRONG'}")
    print(f"{len(CALLS)} calls on {DEVICE}: {QUERIES} queries, {KEYS} keys")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
