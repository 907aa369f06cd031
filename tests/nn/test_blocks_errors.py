"""Every mistake with a layer, block or stack meets one clear error, which says what would work."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.nn.position import Alibi, Rotary, Sinusoidal
from regard.nn.transformer.blocks import DecoderBlock, EncoderBlock
from regard.nn.transformer.feedforward import FeedForward
from regard.nn.transformer.layers import CrossAttention, SelfAttention
from regard.nn.transformer.stacks import Decoder, Encoder
from regard.stabilize import ClippedKeys, Normalized, SoftCapped

DIM = 8
X = torch.zeros(2, 3, DIM)
MISTAKES = {
    "dims": (lambda: SelfAttention(DIM, 2)(X[0]), r"x\.unsqueeze\(0\)"),
    "width": (lambda: EncoderBlock(6, 2)(X), r"\(batch, length, 6\)"),
    "heads": (lambda: SelfAttention(DIM, 3), "3 heads do not divide dim 8; give width="),
    "key heads": (lambda: SelfAttention(DIM, 4, key_heads=3), "key_heads=3 does not divide"),
    "score heads": (
        lambda: SelfAttention(DIM, 2, regard.Additive(3, 4)),
        r"does not fit 2 query heads of width 3 .*; build Additive\(hidden=3, heads=2\)",
    ),
    "score width": (
        lambda: SelfAttention(DIM, 2, regard.Additive(3, 2), width=4),
        r"does not fit 2 query heads of width 4 .*; build Additive\(hidden=4, heads=2\)",
    ),
    "own dims": (
        lambda: SelfAttention(DIM, 2, regard.Bilinear(4, 4, 2)),
        "build it with query_dim=8 and key_dim=8, got 4 and 4",
    ),
    "own heads": (lambda: SelfAttention(DIM, 2, regard.Bilinear(8, 8)), "build it with heads=2"),
    "own norm": (
        lambda: SelfAttention(DIM, 2, regard.Bilinear(8, 8, 2), qk_norm="rms"),
        "projections of its own",
    ),
    "qk norm": (lambda: SelfAttention(DIM, 2, qk_norm="batch"), "norm must be 'layer' or 'rms'"),
    "unknown score": (lambda: SelfAttention(DIM, 2, "adaptive"), "did you mean 'additive'"),
    "norm of another width": (
        lambda: SelfAttention(DIM, 2, Normalized(regard.ScaledDot(), 5)),
        r"query dim 5, .*; build Normalized\(ScaledDot\(\), dim=4\)",
    ),
    "class": (lambda: SelfAttention(DIM, 2, regard.Additive), "the class Additive itself"),
    "unknown option": (
        lambda: SelfAttention(DIM, 2, head_width=4),
        "SelfAttention has no argument 'head_width': did you mean 'width'",
    ),
    "unknown option of a block": (
        lambda: DecoderBlock(DIM, 2, colour=4),
        "DecoderBlock has no argument 'colour'; there are activation, bias,",
    ),
    "memory_dim of a layer": (lambda: CrossAttention(DIM, 2, 3), "score must be a Score object"),
    "causal encoder": (lambda: EncoderBlock(DIM, 2, causal=True), r"give .* mask=Mask.causal\(\)"),
    "decoder that is not": (lambda: DecoderBlock(DIM, 2, causal=False), "always is; EncoderBlock"),
    "norm after rotary": (
        lambda: SelfAttention(
            DIM, 2, SoftCapped(Normalized(regard.ScaledDot(), 4), 9.0), position=Rotary(4)
        ),
        "Normalized must be the outermost",
    ),
    "norm deep after rotary": (
        lambda: SelfAttention(
            DIM,
            2,
            SoftCapped(ClippedKeys(Normalized(regard.ScaledDot(), 4), 1.0), 9.0),
            qk_norm="rms",
            position=Rotary(4),
        ),
        "Normalized must be the outermost",
    ),
    "dropout": (lambda: SelfAttention(DIM, 2, dropout=1.0), "dropout must be a probability"),
    "rotary width": (
        lambda: SelfAttention(DIM, 2, position=Rotary(8)),
        r"heads of width 8, but they have 4; use Rotary\(4\)",
    ),
    "alibi heads": (lambda: SelfAttention(DIM, 2, position=Alibi(4)), "Alibi has 4 heads"),
    "position of a layer": (
        lambda: EncoderBlock(DIM, 2, position=Sinusoidal(DIM)),
        r"Encoder\(blocks, position=",
    ),
    "position of a stack": (
        lambda: Encoder([EncoderBlock(DIM, 2)], position=Rotary(4)),
        "are given to the blocks",
    ),
    "norm": (lambda: EncoderBlock(DIM, 2, norm="middle"), "norm must be 'pre' or 'post'"),
    "norm type": (
        lambda: EncoderBlock(DIM, 2, norm_type="batch"),
        "norm_type must be 'layer' or 'rms'",
    ),
    "activation": (
        lambda: FeedForward(DIM, activation="tanh"),
        "activation must be 'gelu' or 'relu' or 'swiglu'",
    ),
    "no blocks": (lambda: Encoder([]), "one or more EncoderBlock"),
    "number of blocks": (lambda: Encoder(6), r"got 6; for example Encoder\(\[EncoderBlock\("),
    "one block": (lambda: Decoder(DecoderBlock(DIM, 2)), r"for example Decoder\(\[DecoderBlock\("),
    "wrong blocks": (lambda: Decoder([EncoderBlock(DIM, 2)]), "one or more DecoderBlock"),
    "widths": (lambda: Encoder([EncoderBlock(8, 2), EncoderBlock(4, 2)]), r"got \[4, 8\]"),
    "mixed memory": (
        lambda: Decoder([DecoderBlock(DIM, 2), DecoderBlock(DIM, 2, memory_dim=3)]),
        "all have a memory",
    ),
    "memory score": (lambda: DecoderBlock(DIM, 2, memory_score="dot"), "no memory_dim"),
    "memory": (lambda: DecoderBlock(DIM, 2)(X, X), "built without memory_dim="),
    "no memory": (lambda: DecoderBlock(DIM, 2, memory_dim=3)(X), r"block\(x, memory\)"),
    "memory width": (
        lambda: CrossAttention(DIM, 2, memory_dim=3)(X, X),
        r"memory must be \(batch, length, 3",
    ),
    "mask of floats": (lambda: SelfAttention(DIM, 2)(X, mask=torch.ones(3, 3)), "True = attend"),
    "mask shape": (
        lambda: SelfAttention(DIM, 2)(X, mask=torch.ones(2, 3, 3).bool()),
        r"one for each sequence is mask\[:, None\]",
    ),
    "mask of padding": (
        lambda: SelfAttention(DIM, 2)(X, mask=torch.ones(2, 3).bool()),
        r"looks like \(batch, length\), .* padding is lengths=",
    ),
    "mask of padding of a memory": (
        lambda: CrossAttention(DIM, 2)(X, X, mask=torch.ones(2, 3).bool()),
        "padding is lengths=",
    ),
    "not a mask": (lambda: DecoderBlock(DIM, 2)(X, mask="causal"), "mask must be a Mask"),
    "dtype": (lambda: SelfAttention(DIM, 2)(X.double()), "x is torch.float64 but the layer is"),
    "dtype of a stack": (
        lambda: Encoder([EncoderBlock(DIM, 2)])(X.double()),
        "x is torch.float64 but the layer is",
    ),
    "whole numbers": (lambda: EncoderBlock(DIM, 2)(X.long()), "embed the tokens first"),
    "token ids": (
        lambda: Decoder([DecoderBlock(DIM, 2)])(torch.zeros(2, 3).long()),
        r"embed the tokens first, for example nn.Embedding\(vocabulary, 8\)",
    ),
    "dtype of a memory": (
        lambda: DecoderBlock(DIM, 2, memory_dim=DIM)(X, X.double()),
        "memory is torch.float64",
    ),
    "device": (lambda: EncoderBlock(DIM, 2)(X.to("meta")), "x is on meta but the layer is on cpu"),
    "dims of a block": (lambda: DecoderBlock(DIM, 2)(X[0], lengths=[3]), "batch, length, 8"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_one_clear_error(name):
    call, message = MISTAKES[name]
    with pytest.raises((ValueError, TypeError), match=message):
        call()
