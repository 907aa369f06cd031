"""Dropout: the weights that are dropped are read off the output, and the rest follows from them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import regard
from regard.testing import SCORES, Case, Sizes, textbook
from regard.testing.run import build_mask, draw_inputs, gradients, learned, seen_pairs

RATE = 0.4
KEYS = 9
SQUARE = Sizes(keys=KEYS, value_dim=KEYS)


@pytest.mark.parametrize("mask", ["none", "causal & lengths", "dense empty rows"])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("score", ["scaled_dot", "gaussian", "additive", "projected additive"])
def test_gradients_are_those_of_the_weights_that_were_kept(score, engine, mask):
    """With unit vectors as values the output is the kept weights themselves."""
    drawn = draw_inputs(Case(SCORES[score], torch.float64, mask, sizes=SQUARE))
    unit = torch.eye(KEYS, dtype=torch.float64).expand_as(drawn.tensors["value"])
    inputs = dataclasses.replace(drawn, tensors=drawn.tensors | {"value": unit})
    own, tensors = inputs.copy(torch.float64, "cpu")
    torch.manual_seed(1)
    result = regard.attend(
        **tensors, score=own, mask=build_mask(inputs.parts), dropout=RATE, engine=engine,
        want=("weights", "entropy"),
    )  # fmt: skip
    seen = seen_pairs(mask, SQUARE)[1]
    keep = torch.where(seen, result.output.detach() / result.weights.detach(), 0)
    assert ((keep == 0) | ((keep * (1 - RATE) - 1).abs() < 1e-12)).all()
    dropped = (keep == 0) & seen
    assert 0.2 < dropped.sum() / seen.sum() < 0.6

    theirs, leaves = inputs.copy(torch.float64, "cpu")
    logits = inputs.case.score.formula(theirs, leaves["query"], leaves["key"])
    kept = (~dropped).double() / (1 - RATE)
    expected = textbook(logits, leaves["value"], seen, keep=kept)
    # Statistics are those of the weights before dropout.
    torch.testing.assert_close(result.weights, expected.weights, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(result.entropy, expected.entropy, rtol=1e-10, atol=1e-12)
    ours = gradients({"output": result.output}, own, tensors, inputs.upstream)
    truth = gradients({"output": expected.output}, theirs, leaves, inputs.upstream)
    assert len(truth) == len(learned(theirs, leaves))
    for name, grad in truth.items():
        torch.testing.assert_close(ours[name], grad, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_the_mean_over_many_draws_is_attention_without_dropout(score, engine):
    """4,000 copies in one batch: each weight's mean is within 5 standard errors of the weight."""
    copies = 4000
    drawn = draw_inputs(Case(SCORES[score], torch.float64, sizes=Sizes(1, 1, 1, 1, 2, 4, 4, 4)))
    own, tensors = drawn.copy(torch.float64, "cpu")
    value = torch.eye(4, dtype=torch.float64).view(1, 1, 4, 4)
    q, k = tensors["query"].detach(), tensors["key"].detach()
    weights = regard.attention(q, k, value, own, engine=engine)
    wide = [x.expand(copies, -1, -1, -1) for x in (q, k, value)]
    with torch.no_grad():
        mean = regard.attention(*wide, own, dropout=RATE, engine=engine).mean(0, keepdim=True)
    error = weights * (RATE / (1 - RATE) / copies) ** 0.5
    assert ((mean - weights).abs() < 5 * error).all()


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_the_same_seed_drops_the_same_weights(score, engine):
    own, tensors = draw_inputs(Case(SCORES[score])).copy(torch.float32, "cpu")
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(regard.attention(**tensors, score=own, dropout=RATE, engine=engine))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
