"""Few queries on a GPU, as decoders have them, and tanh as it is written."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask
from regard.engines import plan
from regard.problem import Problem

from ..triton.tools import score_of
from .test_triton_gpu import BF16, DEVICE, Call, check

pytestmark = pytest.mark.gpu
INF = torch.inf


@pytest.mark.parametrize(
    ("batch", "heads", "keys", "hidden", "value_dim"),
    [(64, 1, 30, 1000, 1000), (64, 1, 30, 512, 512), (2, 8, 4099, 64, 64), (8, 1, 200, 256, 256)],
)
def test_decoders(batch, heads, keys, hidden, value_dim):
    """Few keys with many units in a block, many parts, and one part of many blocks."""
    sizes = {"heads": heads, "key_heads": heads, "batch": batch}
    check(Call(regard.Additive, 1, keys, hidden, value_dim, BF16, **sizes), None)


def test_one_program_goes_over_all_keys_of_a_query():
    """With queries enough to fill a GPU; hidden keys among them."""
    call = Call(regard.Additive, 5, 777, 32, 64, BF16, heads=8, key_heads=8, batch=16)
    check(call, Mask.lengths(keys=8 * [777, 300]))


@pytest.mark.parametrize("queries", [1, 20])
def test_tanh_errs_by_a_few_units_in_the_last_place_of_1(queries):
    """Of sums near 0, where all digits of 1 cancel, to sums that no exponential of fp32 holds."""
    near = torch.logspace(-9, 2.5, 5001, dtype=torch.float64).float()
    b = torch.cat([near, -near, torch.tensor([0.0, INF, -INF, 3e38, -3e38, torch.nan])])
    b = b.view(1, 1, -1, 1).to(DEVICE)
    a, v = torch.zeros(1, 1, queries, 1, device=DEVICE), torch.ones(1, 1, device=DEVICE)
    found = plan.TRITON.scores(Problem(score_of(v).lower(a, b), b)).detach().double()
    wanted = torch.tanh(b.double()).mT.expand_as(found)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert float((found - wanted).nan_to_num().abs().max()) < 3e-7
    assert found[0, 0, 0, 10002:10007].tolist() == [0, 1, -1, 1, -1]
