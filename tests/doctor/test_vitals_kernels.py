"""The kernels of the cheap level beside its plain formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.doctor.vitals import VITALS, measure
from regard.doctor.vitals.cheap import MOST_DIMS, kernels_fit

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.interpreted),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)
def device(request) -> str:
    """The interpreter on the CPU, or a GPU."""
    return request.param


def check(query: Tensor, key: Tensor, scale: float = 0.3, softcap: float | None = None) -> None:
    """All columns by both ways."""
    from regard.doctor.vitals.cheap_kernels import cheap_row

    found = cheap_row(query, key, scale, softcap, len(VITALS))
    seen = Seen(query.double(), key.double(), scale=scale, softcap=softcap)
    truth = measure(seen, "cheap")
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    ("batch", "heads", "key_heads", "queries", "keys", "dims"),
    [
        (2, 4, 2, 70, 65, 24),
        (1, 2, 2, 5, 2, 64),
        (3, 2, 1, 33, 64, 8),
        (1, 1, 1, 70, 30, 72),
    ],
)
def test_sizes(device, batch, heads, key_heads, queries, keys, dims) -> None:
    draw = torch.Generator().manual_seed(dims)
    query = 3 * torch.randn(batch, queries, heads, dims, generator=draw).to(device).transpose(1, 2)
    key = 1 + torch.randn(batch, key_heads, keys, dims, generator=draw).to(device)
    key[-1, -1, 1] *= 7
    check(query, key)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(device, dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 2, 70, 32, generator=draw).to(device, dtype) for _ in range(2))
    check(query, key)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("side", ["query", "key"])
def test_broken_entries_are_counted_and_spoil_their_head_alone(device, bad, side) -> None:
    draw = torch.Generator().manual_seed(1)
    sides = {
        name: torch.randn(2, 2, 80, 16, generator=draw).to(device) for name in ("query", "key")
    }
    sides[side][1, 0, 77, 3] = bad
    sides[side][0, 0, 2, 3] = bad
    check(**sides)


def test_one_row_and_zeros(device) -> None:
    draw = torch.Generator().manual_seed(2)
    check(
        torch.randn(1, 2, 1, 16, generator=draw).to(device), torch.zeros(1, 2, 4, 16, device=device)
    )


def test_a_soft_cap_bounds_the_bound(device) -> None:
    draw = torch.Generator().manual_seed(3)
    query, key = (torch.randn(1, 2, 20, 16, generator=draw).to(device) for _ in range(2))
    check(query, key, softcap=2.0)
    check(query, key, softcap=50.0)


def test_what_the_kernels_take() -> None:
    on_cpu = torch.zeros(1, 1, 2, 8)
    assert not kernels_fit(Seen(on_cpu, on_cpu)) and not kernels_fit(Seen(logits=on_cpu))


@pytest.mark.gpu
def test_what_the_kernels_take_on_a_gpu() -> None:
    x, wide = (torch.zeros(1, 1, 2, dims, device="cuda") for dims in (MOST_DIMS, MOST_DIMS + 1))
    assert kernels_fit(Seen(x, x)) and not kernels_fit(Seen(x, x.half()))
    assert not kernels_fit(Seen(x.double(), x.double())) and not kernels_fit(Seen(wide, wide))
    assert not kernels_fit(Seen(x, x, shift=torch.zeros(1, 1, 2, device="cuda")))
    aslant = torch.zeros(1, 1, 8, 2, device="cuda").mT
    assert not kernels_fit(Seen(aslant, aslant))
