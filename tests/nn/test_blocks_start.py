"""How layers, blocks and stacks start: variances at every width, names of scores, drawn anew."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard
from regard.nn.linear import reset_all
from regard.nn.position import LearnedPosition, Rotary, Sinusoidal
from regard.nn.transformer.blocks import DecoderBlock, EncoderBlock
from regard.nn.transformer.feedforward import FeedForward
from regard.nn.transformer.layers import CrossAttention, SelfAttention
from regard.nn.transformer.stacks import Decoder, Encoder
from regard.scores import SIZED
from regard.stabilize import Normalized

SCORES = {
    "scaled_dot": lambda dim, heads: None,
    "dot": lambda dim, heads: "dot",
    "cosine": lambda dim, heads: regard.Cosine(heads),
    "gaussian": lambda dim, heads: regard.Gaussian(),
    "additive": lambda dim, heads: regard.Additive(dim // heads, heads),
    "gatv2": lambda dim, heads: regard.GATv2(dim // heads, heads),
    "bilinear": lambda dim, heads: regard.Bilinear(dim, dim, heads),
    "low_rank": lambda dim, heads: regard.LowRank(dim, dim, 4, heads),
    "projected": lambda dim, heads: regard.Projected(regard.Additive(5, heads), dim, dim),
    "normalized": lambda dim, heads: Normalized(regard.ScaledDot(), dim // heads),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_have_variance_1_at_initialisation_at_every_width(name):
    for dim in (16, 64, 512):
        found = []
        for _ in range(max(512 // dim, 12)):
            layer = SelfAttention(dim, 4, SCORES[name](dim, 4))
            x, y = torch.randn(2, 1, 1, 48, dim)
            logits = layer.score(x, y)
            # A term of the query alone, as Gaussian has, drops out of the softmax.
            found.append(logits.var(-1).mean() if name == "gaussian" else logits.var())
        wanted = {"dot": dim / 4, "gaussian": 1.5}.get(name, 1.0)
        assert torch.stack(found).mean().item() == pytest.approx(wanted, rel=0.25), dim


@pytest.mark.parametrize("name", SIZED)
def test_every_score_can_be_named(name):
    for key_heads in (2, 4):
        layer = SelfAttention(64, 4, name, key_heads=key_heads, position=Rotary(16), causal=True)
        assert layer.score.name == name and layer(torch.randn(2, 5, 64)).shape == (2, 5, 64)
        assert CrossAttention(64, 4, name, memory_dim=24)(*shaped(64, 24)).shape == (2, 5, 64)
    logits = SelfAttention(64, 4, name).score(*torch.randn(2, 1, 1, 48, 64))
    one = {"dot": 16.0, "gaussian": 1.5}.get(name, 1.0)
    assert logits.var(-1).mean().item() == pytest.approx(one, rel=0.6)


def shaped(*widths: int) -> list[torch.Tensor]:
    return [torch.randn(2, 5, width) for width in widths]


WHOLE = {
    "self": lambda: SelfAttention(64, 4, "additive", sink=True, bias=True),
    "cross": lambda: CrossAttention(64, 4, "cosine", memory_dim=96, qk_norm="rms"),
    "low rank": lambda: SelfAttention(64, 4, regard.LowRank(64, 64, 8, 4)),
    "feedforward": lambda: FeedForward(64, activation="swiglu", bias=True),
    "encoder": lambda: Encoder(
        [EncoderBlock(64, 4, "gatv2", norm="post") for _ in range(2)],
        position=LearnedPosition(50, 64),
    ),
    "decoder": lambda: Decoder(
        [DecoderBlock(64, 4, "bilinear", memory_dim=48, norm_type="rms", sink=True)],
        position=Sinusoidal(64, 0.3, learned=True),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_all_can_be_drawn_anew(name):
    """A start that is written over torch's own once would be lost by reset_parameters."""
    model = WHOLE[name]()
    first = {
        key: (p.mean().item(), p.std(correction=0).item()) for key, p in model.named_parameters()
    }
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(7.0)
    reset_all(model)
    for key, p in model.named_parameters():
        mean, std = first[key]
        assert p.std(correction=0).item() == pytest.approx(std, rel=0.5), key
        assert p.mean().item() == pytest.approx(mean, abs=0.8 * std + 1e-6), key
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            assert layer.weight.var().item() * layer.in_features == pytest.approx(1, rel=0.15)
            assert layer.bias is None or not layer.bias.any()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("name", SCORES)
def test_a_block_keeps_its_scale_at_initialisation(name, norm):
    for activation in ("gelu", "relu", "swiglu"):
        block = EncoderBlock(64, 4, SCORES[name](64, 4), norm=norm, activation=activation)
        spread = block(torch.randn(4, 16, 64)).std().item()
        assert 0.9 < spread < 2.0, activation
