"""Few queries on a GPU, as decoders have them, and tanh as it is written."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask
from regard.engines import lineup
from regard.problem import Problem

from ..engines.triton.tools import score_of
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


@pytest.mark.parametrize("few", [True, False], ids=["one query", "raw scores"])
def test_tanh_errs_by_a_few_units_in_the_last_place_of_1(few):
    """Of sums near 0, where all digits of 1 cancel, to sums that no exponential of fp32 holds."""
    near = torch.logspace(-9, 2.5, 5001, dtype=torch.float64).float()
    x = torch.cat([near, -near, torch.tensor([0.0, INF, -INF, 3e38, -3e38, torch.nan])]).to(DEVICE)
    score, zero = score_of(torch.ones(1, 1, device=DEVICE)), torch.zeros(1, 1, 1, 1, device=DEVICE)
    if few:
        # A sequence for each, with one key: its largest logit is its score.
        a, b = zero.expand(len(x), 1, 1, 1), x.view(-1, 1, 1, 1)
        found = regard.attend(a, b, b, score, want=("max_logit",), engine="triton").max_logit
    else:
        b = x.view(1, 1, -1, 1)
        found = lineup.TRITON.scores(Problem(score.lower(zero, b), b))
    found, wanted = found.detach().double().flatten(), torch.tanh(x.double())
    assert torch.equal(found.isnan(), wanted.isnan())
    assert float((found - wanted).nan_to_num().abs().max()) < 3e-7
    assert found[10002:10007].tolist() == [0, 1, -1, 1, -1]


def test_a_window_of_many_keys():
    """Of which most blocks are left out, forward and backward."""
    call = Call(regard.Additive, 3, 5003, 64, 64, BF16, batch=8)
    check(call, Mask.window(left=300) & Mask.causal())
