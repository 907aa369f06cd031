"""Dropout in the kernels: one mask for forward and backward, from seed and place alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard import Mask

from .tools import draw, inputs

pytestmark = pytest.mark.interpreted


def used_weights(
    queries: int, keys: int, rate: float, heads: int = 1, seed: int = 0, mask: Mask | None = None
) -> tuple[Tensor, Tensor]:
    """Weights (1, H, Q, L) after dropout of equal scores, and the values that give them.

    With unit vectors as values the output is the weights themselves.
    """
    query = torch.zeros(1, heads, queries, 1)
    key = torch.zeros(1, heads, keys, 1)
    value = torch.eye(keys).expand(1, heads, keys, keys).clone().requires_grad_()
    torch.manual_seed(seed)
    return regard.attention(query, key, value, dropout=rate, mask=mask, engine="triton"), value


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_rate_is_met_and_the_rest_scaled_up(rate):
    weights = used_weights(64, 32, rate, heads=2)[0]
    kept = weights[weights > 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 32 / (1 - rate)))
    # 4,096 weights: five standard deviations.
    margin = 5 * (rate * (1 - rate) / weights.numel()) ** 0.5
    assert kept.numel() / weights.numel() == pytest.approx(1 - rate, abs=margin)


def test_a_rate_close_to_1_keeps_next_to_nothing_and_stays_finite():
    tensors, score = inputs(20, 20), regard.Additive(3, 2)
    output = regard.attention(*tensors, score, dropout=1 - 1e-6, engine="triton")
    grads = torch.autograd.grad(output.sum(), [*tensors, score.v])
    assert all(x.isfinite().all() for x in (output, *grads))
    assert (output == 0).float().mean() > 0.99


def test_rows_beyond_4096_draw_for_themselves():
    """The generator's counter starts again there under another seed: so must the mask, both ways."""
    ids = torch.zeros(4096 + 32, dtype=torch.int64)
    ids[32:4096] = -1  # only the first and the last rows see anything, which saves time
    mask = Mask.segments(ids, torch.zeros(16, dtype=torch.int64))
    weights, value = used_weights(4096 + 32, 16, 0.5, mask=mask)
    kept = (weights > 0)[0, 0]
    # 512 fair coins agree on half of them, give or take five standard deviations.
    assert (kept[:32] == kept[4096:]).float().mean() == pytest.approx(0.5, abs=0.11)
    grad = torch.randn(weights.shape)
    (of_value,) = torch.autograd.grad(weights, value, grad)
    torch.testing.assert_close(of_value, weights.detach().mT @ grad, rtol=1e-4, atol=1e-4)


def test_heads_blocks_and_calls_draw_for_themselves():
    weights = used_weights(70, 70, 0.5, heads=2)[0]
    kept = weights > 0
    blocks = [kept[0, h, i : i + 32, j : j + 32] for h in (0, 1) for i in (0, 32) for j in (0, 32)]
    blocks.append(used_weights(70, 70, 0.5, heads=2, seed=1)[0][0, 0, :32, :32] > 0)
    for i, x in enumerate(blocks):
        for y in blocks[:i]:  # 1,024 coins each
            assert (x == y).float().mean() == pytest.approx(0.5, abs=0.08)
    assert torch.equal(used_weights(70, 70, 0.5, heads=2)[0], weights)


@pytest.mark.parametrize("name", ["additive", "dot"])
def test_the_backward_drops_what_the_forward_dropped(name):
    """Difference quotients in fp64 with the seed held fixed, over several tiles of the backward."""
    tensors = [
        x.detach().double().requires_grad_() for x in inputs(18, 34, heads=1, hidden=2, value_dim=2)
    ]
    score = regard.Additive(2, 1).double() if name == "additive" else None

    def function(*given):
        torch.manual_seed(3)
        return regard.attention(*given, score, dropout=0.4, engine="triton")

    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)


def test_the_mean_over_many_draws_is_attention_without_dropout():
    """500 copies as queries: the mean of each weight is within 5 standard errors."""
    key, value = draw(1, 1, 6, 3), torch.eye(6).view(1, 1, 6, 6)
    query = draw(1, 1, 1, 3).expand(1, 1, 512, 3)
    score = regard.Additive(3, 1)
    with torch.no_grad():
        weights = regard.attention(query[:, :, :1], key, value, score, engine="triton")
        found = regard.attention(query, key, value, score, dropout=0.4, engine="triton")
    error = weights * (0.4 / 0.6 / 512) ** 0.5
    assert ((found.mean(-2, keepdim=True) - weights).abs() < 5 * error).all()
