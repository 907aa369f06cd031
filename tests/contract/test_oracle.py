"""The oracle itself: against numbers worked out by hand, and against formulas written out here."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from regard.testing import MASKS, QUICK_ENGINES, SIZES, MaskParts, textbook
from regard.testing.oracle import visible
from regard.testing.run import build_mask, seen_pairs

CLOSE = {"rtol": 1e-10, "atol": 1e-12}

INNER_ENGINES = [engine for engine in QUICK_ENGINES if engine not in ("plain", "compiled")]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def grads(output: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    flow = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return list(torch.autograd.grad(output, leaves, flow))


def test_two_keys_by_hand():
    """Logits 1 and 0: weights e / (e + 1) and 1 / (e + 1)."""
    scores = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    value = torch.tensor([[[[3.0], [5.0]]]], dtype=torch.float64)
    found = textbook(scores, value, torch.ones(1, 1, 1, 2, dtype=torch.bool))
    first = math.e / (math.e + 1)
    second = 1 - first
    assert found.output.item() == pytest.approx(3 * first + 5 * second, rel=1e-14)
    assert found.lse.item() == pytest.approx(math.log(math.e + 1), rel=1e-14)
    surprise = first * math.log(first) + second * math.log(second)
    assert found.entropy.item() == pytest.approx(-surprise, rel=1e-14)
    assert found.max_logit.item() == 1
    assert found.max_weight.item() == pytest.approx(first, rel=1e-14)
    assert found.jacobian.item() == pytest.approx(2 * first * second, rel=1e-14)


def test_options_by_hand():
    """Two equal keys at logit 2 / 0.5 = 4, capped to 3 tanh(4 / 3), with bias ln 2 on the second."""
    scores = torch.full((1, 1, 1, 2), 2.0, dtype=torch.float64)
    value = torch.tensor([[[[1.0], [0.0]]]], dtype=torch.float64)
    bias = torch.tensor([[0.0, math.log(2)]], dtype=torch.float64)
    seen = torch.ones(1, 1, 1, 2, dtype=torch.bool)
    logit = 3 * math.tanh(4 / 3)
    sink = torch.tensor([logit], dtype=torch.float64)
    found = textbook(scores, value, seen, temperature=0.5, softcap=3.0, bias=bias, sink=sink)
    # Shares 1 (first key), 2 (second key), 1 (sink).
    assert found.output.item() == pytest.approx(1 / 4, rel=1e-14)
    assert found.weights.flatten().tolist() == pytest.approx([1 / 4, 1 / 2], rel=1e-14)
    assert found.lse.item() == pytest.approx(logit + math.log(4), rel=1e-14)
    assert found.entropy.item() == pytest.approx(1.5 * math.log(2), rel=1e-14)


BY_HAND = {
    "causal": (MaskParts(bands=[(None, 0, "bottom_right")]), ["1110", "1111"]),
    "causal top left": (MaskParts(bands=[(None, 0, "top_left")]), ["1000", "1100"]),
    "window": (MaskParts(bands=[(1, 0, "bottom_right")]), ["0110", "0011"]),
    "window ahead": (MaskParts(bands=[(0, 1, "top_left")]), ["1100", "0110"]),
    "key lengths": (MaskParts(key_lengths=[3]), ["1110", "1110"]),
    "query lengths": (MaskParts(query_lengths=[1]), ["1111", "0000"]),
    "causal & lengths": (
        MaskParts(key_lengths=[3], query_lengths=[2], bands=[(None, 0, "bottom_right")]),
        ["1100", "1110"],
    ),
    "one real query": (
        MaskParts(key_lengths=[3], query_lengths=[1], bands=[(None, 0, "bottom_right")]),
        ["1110", "0000"],
    ),
    "segments": (MaskParts(segments=[([[0, 1]], [[0, 0, 1, -1]])]), ["1100", "0010"]),
    "negative segments": (MaskParts(segments=[([[0, -1]], [[0, 0, 1, -1]])]), ["1100", "0000"]),
    "dense": (MaskParts(dense=[torch.tensor([[True], [False]])]), ["1111", "0000"]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_masks_by_hand(name):
    parts, rows = BY_HAND[name]
    expected = torch.tensor([[cell == "1" for cell in row] for row in rows])
    assert torch.equal(visible(parts, 1, 1, 2, 4)[0, 0], expected)
    mask = build_mask(parts)
    assert torch.equal(mask.visible(2, 4, torch.device("cpu")).expand(1, 1, 2, 4)[0, 0], expected)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", [name for name in MASKS if name != "none"])
def test_masks_agree_with_their_definition(name, sizes):
    s = SIZES[sizes]
    parts, expected = seen_pairs(name, s)
    found = build_mask(parts).visible(s.queries, s.keys, torch.device("cpu"))
    assert torch.equal(found.expand(expected.shape), expected)


@pytest.mark.parametrize("engine", INNER_ENGINES)
def test_four_line_dot(engine):
    q, k, v = draw(2, 3, 6, 4), draw(2, 3, 7, 4), draw(2, 3, 7, 5)
    logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = torch.softmax(logits, dim=-1)
    expected = weights @ v
    found = regard.attention(q, k, v, engine=engine)
    torch.testing.assert_close(found, expected, **CLOSE)
    for x, y in zip(grads(found, [q, k, v]), grads(expected, [q, k, v]), strict=True):
        torch.testing.assert_close(x, y, **CLOSE)


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_four_line_additive_with_unequal_dims(engine):
    """Bahdanau's score as it is taught: queries of width 6, keys of width 3, 5 hidden units."""
    score = regard.Projected(regard.Additive(5), query_dim=6, key_dim=3).double()
    w_q, w_k, v_a = score.query_weight, score.key_weight, score.score.v[0]
    q, k, v = draw(2, 4, 6), draw(2, 7, 3), draw(2, 7, 5)
    hidden = torch.tanh((q @ w_q.T).unsqueeze(2) + (k @ w_k.T).unsqueeze(1))
    weights = torch.softmax(hidden @ v_a, dim=-1)
    expected = weights @ v
    found = regard.attention(q, k, v, score, engine=engine)
    torch.testing.assert_close(found, expected, **CLOSE)
    leaves = [q, k, v, w_q, w_k, score.score.v]
    for x, y in zip(grads(found, leaves), grads(expected, leaves), strict=True):
        torch.testing.assert_close(x, y, **CLOSE)


SDPA_CASES = {
    "plain": ((6, 7), {}, {}),
    "causal": ((6, 6), {"is_causal": True}, {"mask": regard.Mask.causal()}),
    "top left": ((5, 8), {"is_causal": True}, {"mask": regard.Mask.causal("top_left")}),
    "scale": ((6, 7), {"scale": 0.8}, {"temperature": 4**-0.5 / 0.8}),
    "dense": (
        (5, 6),
        {"attn_mask": torch.ones(5, 6).tril(2) > 0},
        {"mask": torch.ones(5, 6).tril(2) > 0},
    ),
    "bias": (
        (5, 6),
        {"attn_mask": torch.linspace(-2, 2, 30, dtype=torch.float64).view(5, 6)},
        {"bias": torch.linspace(-2, 2, 30, dtype=torch.float64).view(5, 6)},
    ),
}


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("case", SDPA_CASES)
@pytest.mark.parametrize("engine", INNER_ENGINES)
def test_scaled_dot_against_sdpa(engine, case, key_heads):
    """PyTorch's own attention, in its plain implementation, gives the same output and gradients."""
    (queries, keys), theirs, ours = SDPA_CASES[case]
    leaves = [draw(2, 4, queries, 4), draw(2, key_heads, keys, 4), draw(2, key_heads, keys, 3)]
    with sdpa_kernel(SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(*leaves, **theirs, enable_gqa=True)
    found = regard.attention(*leaves, **ours, engine=engine)
    torch.testing.assert_close(found, expected, **CLOSE)
    for x, y in zip(grads(found, leaves), grads(expected, leaves), strict=True):
        torch.testing.assert_close(x, y, **CLOSE)
