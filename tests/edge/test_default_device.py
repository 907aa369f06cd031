"""`with torch.device(...)` around a call: what the library makes lies where its inputs lie.

The meta device stands for a GPU: a tensor made there by mistake cannot be mixed with the others.
"""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

from .tools import OWN_PAIRS, SHORT_PAIRS, assert_same, gradients, inputs, make_score

LENGTHS = torch.tensor([3, 6])
IDS = torch.tensor([0, 0, 1, 1, 2, 2])
MASKS = {
    "none": lambda: None,
    "causal": lambda: Mask.causal() & Mask.window(left=2),
    "lengths": lambda: Mask.lengths(keys=LENGTHS, queries=LENGTHS.clamp(max=5)),
    "segments": lambda: Mask.segments(IDS[:5], IDS),
    "two segments": lambda: Mask.segments(IDS[:5], IDS) & Mask.segments(IDS[:5] % 2, IDS % 2),
    "dense": lambda: Mask.dense(torch.ones(5, 6, dtype=torch.bool, device="cpu")),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_masks(engine, name, mask):
    score, tensors = make_score(name, 2), inputs()
    output = regard.attention(*tensors, score, mask=MASKS[mask](), engine=engine)
    expected = [output, *gradients(output, tensors)]
    grad = torch.cos(torch.arange(output.numel(), dtype=output.dtype)).reshape(output.shape)
    with torch.device("meta"):
        output = regard.attention(*tensors, score, mask=MASKS[mask](), engine=engine)
        found = [output, *torch.autograd.grad(output, tensors, grad)]
    assert_same(found, expected)


OPTIONS = {
    "hard": {"temperature": 0.0},
    "hard rows": {"temperature": torch.tensor([0.0, 1.0], dtype=torch.float64)},
    "sink": {"sink": torch.tensor([0.5, 1.0], dtype=torch.float64)},
    "softcap": {"softcap": 2.0},
    "bias": {"bias": torch.linspace(0, 1, 6, dtype=torch.float64).view(1, 6)},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_options_and_statistics(engine, name, option):
    score, tensors = make_score(name, 2), inputs()
    want = ("entropy", "max_weight", "jacobian", "weights")
    call = {"want": want, "engine": engine, **OPTIONS[option]}
    expected = list(regard.attend(*tensors, score, **call))
    with torch.device("meta"):
        found = list(regard.attend(*tensors, score, **call))
    assert found[0].device.type == "cpu"
    pairs = [(x, y) for x, y in zip(found, expected, strict=True) if y is not None]
    assert_same([x for x, _ in pairs], [y for _, y in pairs])


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_dropout(engine, name):
    score, tensors = make_score(name, 2), inputs()
    with torch.device("meta"):
        output = regard.attention(*tensors, score, dropout=0.5, engine=engine)
    assert output.device.type == "cpu"
    assert output.isfinite().all()


def test_the_gaussian_score():
    query, key, value = inputs()
    expected = regard.attention(query, key, value, "gaussian")
    with torch.device("meta"):
        assert_same([regard.attention(query, key, value, "gaussian")], [expected])
