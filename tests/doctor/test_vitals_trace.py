"""Nothing waits for the host, nothing is changed, and the compiler takes it whole."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.doctor.seen import Seen
from regard.doctor.vitals import Level, measure, pick_rows
from regard.doctor.vitals.gradient_rms import rms

from ..compile.tools import HAS_COMPILER
from .vitals_tools import CALLS, HEADS, make

pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
TRACED = [
    "causal",
    "grouped",
    "additive",
    "sink and mask",
    "bf16",
    "gaussian",
    "soft cap",
    "logits",
]
SOME = ["sink and mask", "additive", "logits"]
QUICK = ["additive", "logits"]


class NoWaiting(TorchDispatchMode):
    """Refuses what makes a host wait for a device."""

    refused: ClassVar = {
        "aten::_local_scalar_dense",
        "aten::nonzero",
        "aten::masked_select",
        "aten::is_nonzero",
        "aten::equal",
        "aten::unique_dim",
        "aten::_unique2",
        "aten::_linalg_eigh",
        "aten::_linalg_svd",
        "aten::linalg_eig",
    }

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func._schema.name not in self.refused, func
        return func(*args, **(kwargs or {}))


def logits_alone() -> Seen:
    seen = make().seen
    return Seen(logits=seen.query @ seen.key.mT, value=seen.value)


def everything(seen: Seen, level: Level, step: torch.Tensor) -> torch.Tensor:
    side = seen.logits if seen.logits is not None else seen.value
    queries = 13 if seen.logits is None else side.shape[-2]
    return measure(seen, level, pick_rows(queries, 5, step, "cpu"))


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("name", [*CALLS, "logits"])
def test_no_number_is_read_by_the_host(name, level):
    seen = logits_alone() if name == "logits" else CALLS[name]().seen
    with NoWaiting():
        measure(seen, level)


def test_the_guard_refuses():
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoWaiting():
        torch.ones(1).item()


def check_compiled(seen: Seen, level: Level, backend: str) -> None:
    """The same numbers at three steps from one graph."""
    torch._dynamo.reset()
    counters.clear()
    call = torch.compile(everything, fullgraph=True, dynamic=False, backend=backend)
    for step in torch.arange(1, 4):
        expected = everything(seen, level, step)
        torch.testing.assert_close(
            call(seen, level, step), expected, equal_nan=True, rtol=1e-4, atol=1e-5
        )
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in TRACED]
)
def test_one_graph(name):
    """The cheap level is the first part of this one."""
    seen = logits_alone() if name == "logits" else CALLS[name]().seen
    check_compiled(seen, Level.SAMPLED, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("name", SOME)
@pytest.mark.skipif(not HAS_COMPILER, reason="Inductor needs a C++ compiler")
def test_one_graph_of_inductor(name, level):
    check_compiled(logits_alone() if name == "logits" else CALLS[name]().seen, level, "inductor")


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("name", ["bf16", "causal", "bias", "additive", "soft cap", "logits"])
def test_what_is_seen_stays_as_it_is(name, level):
    seen = logits_alone() if name == "logits" else CALLS[name]().seen
    form = seen.pairwise
    tensors = [x for x in seen if isinstance(x, torch.Tensor)]
    tensors += [] if form is None else [form.a, form.b, form.v]
    before = [x.clone() for x in tensors]
    measure(seen, level)
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))


def test_autocast_and_gradients_are_left_aside():
    """Under autocast sums stay in fp32, and no graph is built."""
    seen = make(dtype=torch.float32).seen
    expected = measure(seen, Level.SAMPLED)
    query = seen.query.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        row = measure(seen._replace(query=query), Level.SAMPLED)
    assert torch.equal(row.nan_to_num(), expected.nan_to_num()) and not row.requires_grad
    assert not rms(query, HEADS).requires_grad


def test_dtypes_may_differ():
    """As they come under autocast."""
    seen = make(dtype=torch.bfloat16).seen
    row = measure(seen._replace(query=seen.query.float()), Level.SAMPLED)
    torch.testing.assert_close(row, measure(seen, Level.SAMPLED), equal_nan=True)


def test_any_strides():
    call = make(causal=True, shape=(2, 4, 16, 16))
    seen = call.seen
    turned = seen._replace(
        query=seen.query.transpose(1, 2).contiguous().transpose(1, 2),
        key=seen.key.mT.contiguous().mT,
        value=seen.value.flip(-1).flip(-1).expand(2, 4, 16, 8),
    )
    torch.testing.assert_close(
        measure(turned, Level.SAMPLED), measure(seen, Level.SAMPLED), equal_nan=True
    )


def test_memory_of_pairwise_rows_stays_small():
    """The tile of (rows, keys, hidden) is never whole: 8 x 64 x 2048 x 64 floats would be 256 MiB."""
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    form = regard.Additive(64, 8).lower(torch.randn(1, 8, 128, 64), torch.randn(1, 8, 2048, 64))
    with Watch():
        measure(Seen(pairwise=form), Level.SAMPLED)
    assert largest <= 2**22
