"""What the tests of FlexAttention share: a model through it, and the same logits through SDPA."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from regard.doctor.watch import watch

from .watching import Stack, column

BATCH, HEADS, LENGTH, DIM = 2, 4, 24, 8
PLACE = torch.arange(LENGTH)
PADDED = torch.ones(BATCH, LENGTH, dtype=torch.bool)
PADDED[1, 17:] = False
SLOPES = torch.linspace(0.1, 0.8, HEADS)
TABLE = torch.randn(BATCH, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(3))
CAUSAL = PLACE[:, None] >= PLACE
VISIBLE = CAUSAL & PADDED[:, None, None]
RAMP = -SLOPES[:, None, None] * (PLACE[:, None] - PLACE)
BIAS = TABLE + RAMP
FLEX = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:(?s)flex_attention called without torch.compile"),
]


def ramp(score, batch, head, query, key):
    return score - SLOPES[head] * (query - key)


def score_mod(score, batch, head, query, key):
    return ramp(score, batch, head, query, key) + TABLE[batch][0][query][key]


def mask_mod(batch, head, query, key):
    return (query >= key) & PADDED[batch, key]


def block_mask():
    return create_block_mask(mask_mod, BATCH, None, LENGTH, LENGTH, device="cpu")


class Attention(nn.Module):
    """Grouped heads through any function of query, key and value."""

    def __init__(self, attend, gain: float = 2.0) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 2 * HEADS * DIM)
        self.out = nn.Linear(HEADS * DIM, 16)
        self.attend, self.gain = attend, gain

    def forward(self, x: Tensor) -> Tensor:
        sides = self.qkv(self.gain * x).unflatten(-1, (-1, DIM)).transpose(1, 2)
        query, key, value = sides.split([HEADS, HEADS // 2, HEADS // 2], 1)
        return self.out(self.attend(query, key, value).transpose(1, 2).flatten(2))


def stack(attend) -> Stack:
    torch.manual_seed(0)
    return Stack(Attention(attend), Attention(attend))


def through(function=flex_attention, score=score_mod, blocks=None, **options):
    blocks = block_mask() if blocks is None else blocks
    given = {"score_mod": score, "block_mask": blocks, "enable_gqa": True, **options}
    return lambda query, key, value: function(query, key, value, **given)


def same_by_sdpa(query, key, value, bias=BIAS):
    mask = bias.masked_fill(~VISIBLE, -torch.inf)
    return F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)


def sick(score=None) -> Attention:
    """Products of tens of thousands."""
    torch.manual_seed(0)
    return Attention(through(score=score, scale=300.0), gain=30.0)


def tokens() -> Tensor:
    return torch.randn(BATCH, LENGTH, 16, generator=torch.Generator().manual_seed(1))


def values(d, site: str = "layers.1") -> Tensor:
    return d.history(site).values


def like_sdpa(level: str, steps: int = 1, bias=BIAS, **options):
    """What SDPA with the same logits gives."""
    model = stack(partial(same_by_sdpa, bias=bias))
    with watch(model, level, **options) as d, torch.no_grad():
        for _ in range(steps):
            model(tokens())
    return d


def assert_same_gradients(d, plain) -> None:
    """Those that reach the three sides, beside those that SDPA gets."""
    for side in ("query", "key", "value"):
        found, meant = (column(w, "layers.0", f"{side}_grad") for w in (d, plain))
        assert found.isfinite().all() and (found > 0).all()
        torch.testing.assert_close(found, meant, rtol=1e-3, atol=0)
