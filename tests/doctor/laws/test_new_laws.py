"""Decoding with a cache, and precision: when these laws apply, and what they say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.doctor.laws import LawVerdict
from regard.doctor.laws.checking import check

from .cached import CachedDecoder
from .handmade import WORDS, Small

STEPS, EXACT = "steps-are-the-whole", "precision-is-enough"


def tokens(length: int = 12) -> Tensor:
    return torch.randint(3, WORDS, (3, length), generator=torch.Generator().manual_seed(0))


def decoder(fault: str = "", rotary: bool = True) -> CachedDecoder:
    torch.manual_seed(0)
    return CachedDecoder({1: fault}, rotary=rotary, pairs=rotary)


@pytest.mark.parametrize("rotary", [True, False])
def test_a_cache_that_is_right_holds(rotary):
    ruling = check(decoder(rotary=rotary), {"x": tokens()}, causal=True).ruling(STEPS)
    assert ruling.verdict is LawVerdict.HELD and "decoded with cache, without padding" in ruling.why


def test_the_first_place_that_differs_is_named():
    finding = check(decoder("cache-turned"), {"x": tokens()}, causal=True).ruling(STEPS).findings[0]
    assert finding.site == "blocks.1" and "the key of blocks.1" in finding.explanation
    restart = check(decoder("positions-restart"), {"x": tokens()}, causal=True).ruling(STEPS)
    assert "the query of blocks.1" in restart.findings[0].explanation


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        (Small({}, causal=True), {"causal": True}, "takes no cache"),
        (decoder(), {}, "causal= is not declared"),
        (decoder(), {"causal": False}, "causal= is not declared"),
    ],
)
def test_where_it_does_not_apply_it_says_why(model, options, why):
    ruling = check(model, {"x": tokens()}, laws=[STEPS], **options).ruling(STEPS)
    assert ruling.verdict is LawVerdict.SKIPPED and why in ruling.why


def test_a_model_that_returns_no_cache_and_one_of_few_tokens():
    class Mute(CachedDecoder):
        def forward(self, x, attention_mask=None, cache=None):
            return super().forward(x, attention_mask, cache)[0]

    mute = Mute({}, rotary=True, pairs=True)
    assert "returned none" in check(mute, {"x": tokens()}, causal=True).ruling(STEPS).why
    few = check(decoder(), {"x": tokens(3)}, causal=True).ruling(STEPS)
    assert few.verdict is LawVerdict.SKIPPED and "fewer than 4 tokens" in few.why


def test_a_leak_is_told_once():
    """Under a mask that is wrong decoding differs too; that is no second finding."""
    result = check(decoder("shifted-mask"), {"x": tokens()}, causal=True)
    assert [x.law for x in result.broken] == ["who-may-see-whom"]
    assert "cannot be told" in result.ruling(STEPS).why


class Attention(nn.Module):
    """Self-attention whose product of weights and values is made in a way of its own."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (4, 8)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        return x + self.how(q, k, v).transpose(1, 2).flatten(2)


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def written(q, k, v):
    return (q @ k.mT / 8**0.5).softmax(-1) @ v


def by_einsum(q, k, v):
    weights = (torch.einsum("bhqd,bhkd->bhqk", q, k) / 8**0.5).softmax(-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def overflowing(q, k, v):
    """Scaled after the product, which float16 cannot hold."""
    return ((300 * q @ (300 * k).mT) / (9e4 * 8**0.5)).softmax(-1) @ v


def by_exp(q, k, v):
    """Without the largest logit taken off."""
    weights = (40 * q @ k.mT).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ v


def exact(how, dtype: torch.dtype, gain: float = 1.0):
    torch.manual_seed(0)
    model = nn.Sequential(Attention(fused), Attention(how)).to(dtype)
    with torch.no_grad():
        for x in model.parameters():
            x.mul_(gain)
    x = torch.randn(2, 200, 32).to(dtype)
    return check(model, x, causal=False, positions=False, laws=[EXACT]).ruling(EXACT)


@pytest.mark.parametrize("gain", [1.0, 6.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", [fused, written, by_einsum])
def test_ordinary_rounding_is_no_finding(how, dtype, gain):
    ruling = exact(how, dtype, gain)
    assert ruling.verdict is LawVerdict.HELD and "2 calls in fp64" in ruling.why


def test_an_overflow_is_found_where_it_arises():
    ruling = exact(overflowing, torch.float16)
    assert ruling.verdict is LawVerdict.BROKEN
    assert ruling.findings[0].site == "1" and "queries and keys" in ruling.findings[0].explanation
    assert exact(overflowing, torch.float32).verdict is LawVerdict.HELD


def test_a_softmax_by_exp_that_overflows():
    ruling = exact(by_exp, torch.float32, 3.0)
    assert (
        ruling.verdict is LawVerdict.BROKEN and "NaN or infinity" in ruling.findings[0].explanation
    )


def test_it_costs_no_pass():
    model = nn.Sequential(Attention(written))
    result = check(model, torch.randn(2, 8, 32), laws=[EXACT])
    assert result.forward == 1 and result.backward == 0
