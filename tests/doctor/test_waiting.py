"""Calls that are finished together, beside each by itself."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from regard.doctor.chart import Chart, Ticket
from regard.doctor.seen import Seen
from regard.doctor.vitals import INDEX, VITALS, waiting
from regard.doctor.vitals.gradient_rms import rms
from regard.doctor.vitals.waiting import Waiting
from regard.doctor.watch import OURS
from regard.engines.gpu import device_current

pytest.importorskip("triton")


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.interpreted),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)
def device(request) -> torch.device:
    """The interpreter on the CPU, or a GPU."""
    return torch.device(request.param)


def call(device: torch.device, seed: int, length: int = 40, key_heads: int = 2) -> Seen:
    draw = torch.Generator().manual_seed(seed)
    query = torch.randn(2, 2, 33, 16, generator=draw).to(device)
    return Seen(query, torch.randn(2, key_heads, length, 16, generator=draw).to(device), scale=0.3)


def alone(seen: Seen) -> Tensor:
    from regard.doctor.vitals.cheap_kernels import cheap_row

    assert seen.query is not None and seen.key is not None
    return cheap_row(seen.query, seen.key, seen.scale, seen.softcap, len(VITALS))


def test_calls_of_one_size_and_of_several(device) -> None:
    calls = [call(device, 0), call(device, 1), call(device, 2, 50), call(device, 3, 50, 1)]
    calls.append(call(device, 4)._replace(scale=0.5, softcap=1.0))
    shelf = Waiting(device)
    outs = [torch.full((2, len(VITALS)), 7.0, device=device) for _ in calls]
    for seen, out in zip(calls, outs, strict=True):
        shelf.add(seen, out)
    assert all((out == 7).all() for out in outs)
    shelf.finish()
    for seen, out in zip(calls, outs, strict=True):
        assert torch.equal(out.nan_to_num(-1), alone(seen).nan_to_num(-1))
    shelf.finish()  # nothing is left to write
    assert shelf.used == 0


def test_a_full_workspace_is_finished_first(device, monkeypatch) -> None:
    calls = [call(device, seed) for seed in range(5)]
    lone = Waiting(device)
    lone.add(calls[0], torch.empty(2, len(VITALS), device=device))
    monkeypatch.setattr(waiting, "WORKSPACE", int(lone.used * 2.5))
    shelf = Waiting(device)
    outs = [torch.empty(2, len(VITALS), device=device) for _ in calls]
    for seen, out in zip(calls, outs, strict=True):
        shelf.add(seen, out)
    assert len(shelf.calls) == 1
    shelf.finish()
    monkeypatch.setattr(waiting, "WORKSPACE", lone.used // 2)  # smaller than any call
    small = Waiting(device)
    again = torch.empty(2, len(VITALS), device=device)
    with torch.inference_mode():
        small.add(calls[0], again)
    assert not small.sums.is_inference()  # such a workspace could not be used again outside
    small.finish()
    for seen, out in zip([*calls, calls[0]], [*outs, again], strict=True):
        assert torch.equal(out.nan_to_num(-1), alone(seen).nan_to_num(-1))


def test_gradients(device) -> None:
    draw = torch.Generator().manual_seed(0)
    given = [torch.randn(2, heads, 70, 24, generator=draw).to(device) for heads in (4, 2, 4, 2)]
    given.append(given[0].transpose(1, 2).contiguous().transpose(1, 2) * 1e-3)
    given[1][0, 0, 3, 3] = torch.nan
    given[2][1, 1, 69, 23] = torch.inf
    table = torch.zeros(4, len(given), device=device)
    shelf = Waiting(device)
    for i, gradient in enumerate(given):
        shelf.add_gradient(gradient, table[:, i])
    shelf.finish()
    for i, gradient in enumerate(given):
        truth = rms(gradient.double(), 4).nan_to_num(torch.inf, torch.inf)
        torch.testing.assert_close(table[:, i].double(), truth, rtol=1e-5, atol=0)
    assert math.isinf(table[0, 1]) and math.isinf(table[1, 2]) and table[3, 1].isfinite()


@pytest.mark.gpu
def test_a_chart_writes_when_read_and_gradients_stay() -> None:
    chart = Chart(OURS, window=2)
    device = torch.device("cuda")
    slanted = torch.randn(2, 2, 16, 33, device=device).mT
    for seed in range(3):
        chart.begin()
        for layer in "ab":
            seen = call(device, seed)
            ticket = chart.record(layer, "sdpa", seen)
            assert isinstance(ticket, Ticket)
            chart.record_gradient(ticket, "query", seen.query)
            chart.record_gradient(ticket, "key", slanted)
        ring = chart.sites["b"].ring
        assert ring is not None
        row = ring.read().values[-1]
        assert row[:, INDEX["query_norm"]].isfinite().all()
        torch.testing.assert_close(row[:, INDEX["query_grad"]], rms(seen.query, 2).cpu())
        torch.testing.assert_close(row[:, INDEX["key_grad"]], rms(slanted, 2).cpu())
    assert ring.read().steps == [2, 3]


@pytest.mark.gpu
def test_another_stream_waits() -> None:
    device = torch.device("cuda")
    shelf, calls = Waiting(device), [call(device, seed) for seed in range(6)]
    outs = [torch.empty(2, len(VITALS), device=device) for _ in calls]
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    for i, (seen, out) in enumerate(zip(calls, outs, strict=True)):
        with torch.cuda.stream(aside if i % 2 else torch.cuda.current_stream()):
            torch.cuda._sleep(10**6)
            shelf.add(seen, out)
            assert len(shelf.calls) == 1 and shelf.stream == torch.cuda.current_stream()
    shelf.finish()
    for seen, out in zip(calls, outs, strict=True):
        assert torch.equal(out.nan_to_num(-1), alone(seen).nan_to_num(-1))


def test_kernels_are_launched_where_the_tensors_are(monkeypatch) -> None:
    """Triton launches on the current device; with the tensors on another one that must change."""
    entered = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "device", lambda device: entered.append(device) or nullcontext()
    )
    for name in ("cpu", "cuda:0", "cuda:1"):
        with device_current(torch.device(name)):
            pass
    assert entered == [torch.device("cuda:1")]
