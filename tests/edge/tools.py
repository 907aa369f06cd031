"""What the edge tests share: every score ready to run, and outputs together with gradients.

Shape legend: B batch, H query heads, Q query length, L key length, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import regard

DIM = 4
NAN, INF = float("nan"), float("inf")

INNER: dict[str, Callable[[int], regard.Score]] = {
    "dot": lambda heads: regard.Dot(),
    "scaled_dot": lambda heads: regard.ScaledDot(),
    "cosine": lambda heads: regard.Cosine(heads),
    "gaussian": lambda heads: regard.Gaussian(),
    "bilinear": lambda heads: regard.Bilinear(DIM, DIM, heads),
    "low_rank": lambda heads: regard.LowRank(DIM, DIM, 3, heads),
    "projected dot": lambda heads: regard.Projected(regard.Dot(), DIM, DIM, width=3, heads=heads),
}
PAIRWISE: dict[str, Callable[[int], regard.Score]] = {
    "additive": lambda heads: regard.Additive(DIM, heads, bias=True),
    "gatv2": lambda heads: regard.GATv2(DIM, heads),
    "projected additive": lambda heads: regard.Projected(regard.Additive(3, heads), DIM, DIM),
}
SCORES = {**INNER, **PAIRWISE}

# What each engine is expected to serve: a score it refuses is left out by name, never skipped.
SERVED = {"reference": SCORES, "cpu": SCORES, "sdpa": INNER}
PAIRS: list = [(engine, name) for engine, scores in SERVED.items() for name in scores]
# Two scores with parameters, one of each form, for tests that are not about the score.
SHORT_PAIRS: list = [
    ("reference", "bilinear"),
    ("reference", "additive"),
    ("cpu", "bilinear"),
    ("cpu", "additive"),
    ("sdpa", "bilinear"),
]
# Interpreted, a call takes as long as a hundred of the others; `tests/engines/triton` has the quick ones.
INTERPRETED = [
    pytest.param("triton", name, marks=[pytest.mark.interpreted, pytest.mark.slow])
    for name in ("bilinear", "additive")
]
# For what SDPA does not offer: statistics, soft cap, sink.
QUICK_PAIRS = [pair for pair in SHORT_PAIRS if pair[0] != "sdpa"]
OWN_PAIRS = [*QUICK_PAIRS, *INTERPRETED]
SHORT_PAIRS += INTERPRETED
PAIRS += INTERPRETED
# For what has no option, and no mask that differs by query.
PAIRS_AND_PLAIN = [*PAIRS, *(("plain", name) for name in PAIRWISE)]


class Stop(torch.autograd.Function):
    """The same numbers, through which no gradient comes back: not zeros, none at all."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def make_score(name: str, heads: int = 1, dtype: torch.dtype = torch.float64) -> regard.Score:
    return SCORES[name](heads).to(dtype)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def inputs(
    batch: int = 2,
    heads: int = 2,
    queries: int = 5,
    keys: int = 6,
    value_dim: int = 3,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Query, key and value (B, H, length, dim) that want a gradient."""
    shapes = ((queries, DIM), (keys, DIM), (keys, value_dim))
    return [draw(batch, heads, *shape, dtype=dtype).requires_grad_() for shape in shapes]


def gradients(output: Tensor, wanted: list[Tensor], grad: Tensor | None = None) -> list[Tensor]:
    """Gradients of `output` for a fixed pseudo-random incoming gradient; zeros where unused."""
    if grad is None:
        steps = torch.arange(output.numel(), dtype=output.dtype).reshape(output.shape)
        grad = torch.cos(steps)
    found = torch.autograd.grad(
        output, wanted, grad, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return list(found)


def run(
    tensors: list[Tensor], score: regard.Score | str | None, engine: str | None, **options: Any
) -> tuple[Tensor, list[Tensor]]:
    """The output, and the gradients of the tensors and of the score's parameters."""
    output = regard.attention(*tensors, score, engine=engine, **options)
    parameters = list(score.parameters()) if isinstance(score, regard.Score) else []
    wanted = [x for x in [*tensors, *parameters] if x.requires_grad]
    return output, gradients(output, wanted)


def assert_same(actual: list[Tensor], expected: list[Tensor], rtol: float = 1e-9) -> None:
    """Equal in fp64 up to rounding; the tolerance is relative to the largest entry."""
    assert len(actual) == len(expected)
    for got, wanted in zip(actual, expected, strict=True):
        finite = wanted.detach()[wanted.isfinite()].abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        torch.testing.assert_close(got, wanted, rtol=rtol, atol=rtol * (1 + scale), equal_nan=True)


def all_finite(*tensors: Tensor) -> bool:
    return all(bool(x.isfinite().all()) for x in tensors)


class Names(TorchDispatchMode):
    """The names of all operators that are called in it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))
