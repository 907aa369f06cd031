"""Every registered operator under torch.library.opcheck, with arguments that the library uses."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.engines import sizes
from regard.engines.native import absent
from regard.engines.tiled import operators

from .tools import CASES, everything, function, tensors

# Those of the sine engine need stand-ins for cuDNN: tests/engines/sine_features/test_gpu_operator.py checks them. Those of
# the doctor are there if another test has loaded it: tests/doctor/test_compiled.py runs them.
OPERATORS = sorted(
    name.partition("::")[2]
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("regard::") and not name.startswith(("regard::sine_", "regard::doctor_"))
)


class Recorder(TorchDispatchMode):
    """Keeps the arguments of every call of an operator of this library."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "regard":
            kept = tuple(x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args)
            self.calls.append((func, kept))
        return func(*args, **(kwargs or {}))


def recorded(name: str, engine: str = "cpu") -> list[tuple]:
    case = CASES[name]
    score = case.build()
    options = case.options(5, 6) | {"engine": engine}
    with Recorder() as recorder:
        everything(function(case, score), tensors(5, 6), options, [])
    return recorder.calls


def unusual(engine: str = "cpu", scores: tuple[regard.Score, ...] | None = None) -> list[tuple]:
    """Calls with every optional argument, and with none."""
    bias = torch.randn(5, 6, requires_grad=True)
    options = {"bias": bias, "temperature": torch.tensor([0.5, 0.0]), "dropout": 0.5}
    want = ("lse", "entropy", "jacobian", "weights")
    with Recorder() as recorder:
        for score in scores or (regard.Gaussian(), regard.Additive(4, 2)):
            result = regard.attend(*tensors(5, 6), score, want=want, engine=engine, **options)
            ends = (result.output, result.lse.nan_to_num(), result.weights.square())
            sum(x.sum() for x in ends).backward()
            x = torch.randn(3, 4, requires_grad=True)
            regard.score(x, x, regard.Additive(4)).sum().backward()
    return recorder.calls


PLAIN = [
    "inner on cpu",
    "gaussian",
    "temperatures",
    "hard",
    "additive packed",
    "gatv2",
    "statistics",
]


def names(calls: list[tuple]) -> set[str]:
    return {func.__name__.partition(".")[0] for func, _ in calls}


def operators_of(*engines: str) -> set[str]:
    found = {name.partition(".")[0] for name in OPERATORS}
    return {name for name in found if name.partition("_")[0] in engines}


def test_every_operator_is_checked():
    """A new operator joins the calls recorded here; those of `triton`, `compiled` and edges have tests of their own."""
    calls = [call for name in PLAIN for call in recorded(name)] + unusual()
    assert names(calls) == operators_of("cpu")
    everywhere = operators_of("cpu", "compiled", "edges", "triton")
    assert everywhere == {name.partition(".")[0] for name in OPERATORS}
    assert operators.LIBRARY is not None


@pytest.mark.interpreted
def test_opcheck_of_triton():
    """Its operators on the CPU, in Triton's interpreter."""
    calls = [call for name in ("gaussian", "hard") for call in recorded(name, "triton")]
    calls += unusual("triton")
    assert names(calls) >= operators_of("triton")
    check([call for call in calls if names([call]) <= operators_of("triton")])


@pytest.mark.skipif(absent() is not None, reason="numba is not installed")
def test_opcheck_of_compiled(monkeypatch):
    """Every operator of the kernels that numba compiles."""
    monkeypatch.setattr(sizes, "COMPILED_TANH", 0)  # else `regard.score` of few keys is not for it
    monkeypatch.setattr(sizes, "COMPILED_QUERIES", 0)
    calls = recorded("additive packed", "compiled") + recorded("gatv2", "compiled")
    calls += unusual("compiled", (regard.Additive(4, 2),))
    assert names(calls) >= operators_of("compiled")
    check([call for call in calls if names([call]) <= operators_of("compiled")])


def check(calls: list[tuple]) -> None:
    """Each operator once."""
    seen = set()
    for func, args in calls:
        if func not in seen:
            seen.add(func)
            torch.library.opcheck(func, args)


@pytest.mark.parametrize("name", [*PLAIN, "unusual"])
def test_opcheck(name):
    """Schema, fake tensors with true strides, and tracing with dynamic shapes."""
    calls = unusual() if name == "unusual" else recorded(name)
    assert calls
    check(calls)
