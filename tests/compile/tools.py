"""What the compile tests share: calls to compile, and whether a C++ compiler is there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import regard
from regard import Mask

HAS_COMPILER = any(shutil.which(name) for name in ("g++", "clang++"))
# Dynamo makes an object of every autograd.Function that it traces, and torch warns of it.
DYNAMO_WARNS = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
# 2.6, the oldest release supported, fixes sizes that newer ones keep as symbols.
OLD_DYNAMO = tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 9)
DIM, HEADS = 4, 2


class Case(NamedTuple):
    """A call: the score's builder, and the options given the query and key lengths."""

    build: Callable[[], regard.Score | None] = lambda: None
    options: Callable[[int, int], dict] = lambda q, k: {}
    want: tuple[str, ...] = ()


def causal(q: int, k: int) -> dict:
    return {"mask": Mask.causal()}


def ragged(q: int, k: int) -> dict:
    keys, queries = torch.tensor([k, k // 2]), torch.tensor([q, q // 2])
    return {"mask": Mask.causal() & Mask.lengths(keys=keys, queries=queries)}


def packed(q: int, k: int) -> dict:
    ids = torch.arange(k) // 3
    return {"mask": Mask.segments(ids[:q], ids)}


CASES = {
    "inner": Case(),
    "inner causal": Case(options=causal),
    "inner window": Case(options=lambda q, k: {"mask": Mask.window(left=3) & Mask.causal()}),
    "inner lengths": Case(options=lambda q, k: {"mask": Mask.lengths(keys=torch.tensor([k, 2]))}),
    "inner dense": Case(options=lambda q, k: {"mask": torch.ones(q, k, dtype=torch.bool).tril()}),
    "inner bias": Case(options=lambda q, k: {"bias": torch.linspace(-1, 1, k).view(1, k)}),
    "inner on cpu": Case(options=lambda q, k: {"engine": "cpu", "softcap": 3.0}),
    "inner reference": Case(options=lambda q, k: {"engine": "reference", **causal(q, k)}),
    "sink": Case(options=lambda q, k: {"sink": torch.tensor([0.5, -1.0]), **causal(q, k)}),
    "temperatures": Case(options=lambda q, k: {"temperature": torch.tensor([0.5, 0.0])}),
    "hard": Case(options=lambda q, k: {"temperature": 0.0}),
    "cosine": Case(lambda: regard.Cosine(HEADS), causal),
    "gaussian": Case(lambda: regard.Gaussian(), ragged),
    "bilinear": Case(lambda: regard.Bilinear(DIM, DIM, HEADS), ragged),
    "low rank": Case(lambda: regard.LowRank(DIM, DIM, 2, HEADS), causal),
    "additive": Case(lambda: regard.Additive(DIM, HEADS, bias=True)),
    "additive causal": Case(lambda: regard.Additive(DIM, HEADS), causal),
    "additive ragged": Case(lambda: regard.Additive(DIM, HEADS), ragged),
    "additive packed": Case(lambda: regard.Additive(DIM, HEADS), packed),
    "gatv2": Case(lambda: regard.GATv2(DIM, HEADS, bias=True), causal),
    "projected": Case(lambda: regard.Projected(regard.Additive(3, HEADS), DIM, DIM), causal),
    "statistics": Case(
        options=causal, want=("lse", "entropy", "max_logit", "max_weight", "jacobian")
    ),
    "additive statistics": Case(
        lambda: regard.Additive(DIM, HEADS), ragged, want=("lse", "entropy", "weights")
    ),
}


# In Triton's interpreter, apart from the others: a call takes a second.
INTERPRETED = {
    "inner on triton": Case(options=lambda q, k: {"engine": "triton", "softcap": 3.0}),
    "additive on triton": Case(
        lambda: regard.Additive(DIM, HEADS), lambda q, k: {"engine": "triton", **ragged(q, k)}
    ),
    "statistics on triton": Case(
        lambda: regard.Additive(DIM, HEADS),
        lambda q, k: {"engine": "triton", **causal(q, k)},
        want=("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights"),
    ),
}


def some_slow(names: Iterable[str], quick: Iterable[str]) -> list:
    """Parameters of a test, all but the quick ones marked slow."""
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


def tensors(queries: int, keys: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = ((queries, DIM), (keys, DIM), (keys, 3))
    return [torch.randn(2, HEADS, *s, dtype=dtype).requires_grad_() for s in shapes]


def function(case: Case, score: regard.Score | None) -> Callable[..., tuple[Tensor, ...]]:
    """The call as a function of tensors and options alone."""

    def call(q: Tensor, k: Tensor, v: Tensor, options: dict) -> tuple[Tensor, ...]:
        if not case.want:
            return (regard.attention(q, k, v, score, **options),)
        result = regard.attend(q, k, v, score, want=case.want, **options)
        return tuple(x for x in result if x is not None)

    return call


def everything(call, given: list[Tensor], options: dict, parameters: list[Tensor]) -> list[Tensor]:
    """Results, and the gradients of all that is differentiable."""
    results = call(*given, options)
    loss = sum(x.masked_fill(x == -torch.inf, 0).square().sum() for x in results if x.requires_grad)
    wanted = [*given, *parameters]
    grads = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    return [*results, *grads]


def skip_mask_as_argument(options: dict) -> None:
    if OLD_DYNAMO and "mask" in options:
        pytest.skip("Dynamo of torch 2.6 cannot trace a Mask that is an argument")


def graphs() -> int:
    """How many graphs were compiled since `torch._dynamo.reset`."""
    return counters["stats"]["unique_graphs"]


def assert_close(actual: list[Tensor], expected: list[Tensor]) -> None:
    for got, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
