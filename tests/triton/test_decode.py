"""Few queries of a pairwise score, as a decoder has them: a kernel of its own, keys in parts."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask
from regard.testing import poisoned

from .tools import check, inputs, outcome

pytestmark = pytest.mark.interpreted
# Beyond 256 keys a row is shared by two programs here.
PARTS = 300


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [(1, torch.float32), (63, torch.float16), (65, torch.float32), (257, torch.float16)],
)
def test_lengths_around_blocks_and_parts(keys, dtype):
    with poisoned():
        check(inputs(1, keys, heads=1, dtype=dtype), regard.Additive(3, 1).to(dtype))


@pytest.mark.parametrize(("hidden", "value_dim"), [(1, 65), (16, 1), (130, 5)])
def test_widths(hidden, value_dim):
    """130 hidden units are read in two steps; heads share keys."""
    tensors = inputs(2, 20, heads=2, key_heads=1, hidden=hidden, value_dim=value_dim)
    check(tensors, regard.GATv2(hidden, 2) if hidden == 16 else regard.Additive(hidden, 2))


def seen_by(*spans: tuple[int, int]) -> torch.Tensor:
    """A dense mask with one row for each span of keys."""
    at = torch.arange(PARTS)
    return torch.stack([(at >= first) & (at < last) for first, last in spans])


MASKS = {
    "causal": lambda: Mask.causal(),
    "window": lambda: Mask.window(left=10) & Mask.causal(),
    "short": lambda: Mask.lengths(keys=[3]),
    "nothing": lambda: Mask.lengths(keys=[0]),
    "one part each": lambda: Mask.dense(seen_by((0, 5), (290, PARTS), (0, 0), (5, 290))),
    "segments": lambda: Mask.segments(
        torch.tensor([0, 1, -1, 2]), (torch.arange(PARTS) > 280).long()
    ),
}


@pytest.mark.parametrize("mask", MASKS)
def test_parts_that_are_hidden(mask):
    with poisoned():
        check(inputs(4, PARTS, heads=1), regard.Additive(3, 1), mask=MASKS[mask]())


def test_options_together():
    """Bias, soft cap and a temperature for each row, forward, against the reference."""
    tensors, score = inputs(3, PARTS), regard.Additive(3, 2)
    options = {
        "bias": torch.randn(3, PARTS).masked_fill(torch.rand(3, PARTS) < 0.2, -torch.inf),
        "temperature": torch.rand(1, 2, 3, 1) + 0.5,
        "softcap": 1.5,
        "sink": torch.randn(2),
    }
    with poisoned():
        found = regard.attention(*tensors, score, engine="triton", **options)
    expected = regard.attention(*tensors, score, engine="reference", **options)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_hidden_garbage_is_not_read_and_visible_garbage_is_passed_on():
    tensors, score = inputs(2, PARTS, heads=1), regard.Additive(3, 1)
    grad = torch.randn(1, 1, 2, 4)
    mask = Mask.lengths(keys=[280])
    expected = outcome(tensors, score, "triton", grad, mask=mask)
    with torch.no_grad():
        tensors[1][:, :, 280:] = torch.nan
        tensors[2][:, :, 280:] = torch.inf
    found = outcome(tensors, score, "triton", grad, mask=mask)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
    with torch.no_grad():
        tensors[2][:, :, 7, 1] = torch.nan
    output = regard.attention(*tensors, score, mask=mask, engine="triton")
    assert output[..., 1].isnan().all() and output[..., [0, 2, 3]].isfinite().all()
    with torch.no_grad():
        tensors[0][:, :, 1] = torch.nan
    output = regard.attention(*tensors, score, mask=mask, engine="triton")
    assert output[:, :, 1].isnan().all() and output[:, :, 0, [0, 2, 3]].isfinite().all()


def test_strides_and_broadcasts():
    """Keys with the heads last in memory and one memory for the whole batch."""
    q = torch.randn(2, 3, 2, 4).transpose(1, 2)
    k = torch.randn(1, 9, 1, 4).transpose(1, 2)
    v = torch.randn(1, 1, 5, 9).mT
    score = regard.Additive(4, 2)
    found = regard.attention(q, k, v, score, engine="triton")
    torch.testing.assert_close(found, regard.attention(q, k, v, score, engine="reference"))


def test_it_agrees_with_the_kernel_for_many_queries():
    """Which runs where the entropy is asked for."""
    tensors, score = inputs(2, PARTS), regard.Additive(3, 2)
    plain = regard.attend(*tensors, score, want=("lse", "max_logit"), engine="triton")
    other = regard.attend(*tensors, score, want=("lse", "max_logit", "entropy"), engine="triton")
    for name in ("output", "lse", "max_logit"):
        torch.testing.assert_close(getattr(plain, name), getattr(other, name))
