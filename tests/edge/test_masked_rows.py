"""Fully masked rows: output 0, every gradient 0, LSE -inf; never NaN, never a uniform average."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

from .tools import (
    NAN,
    OWN_PAIRS,
    PAIRS,
    PAIRS_AND_PLAIN,
    SHORT_PAIRS,
    all_finite,
    gradients,
    inputs,
    make_score,
    run,
)

QUERIES, KEYS = 5, 6


def nothing_for_row_1() -> dict[str, dict]:
    """Every way to hide all keys from query 1, and from that query alone."""
    allowed = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    allowed[1] = False
    ids = torch.zeros(QUERIES, dtype=torch.int64)
    ids[1] = 7
    return {
        "dense": {"mask": allowed},
        "dense for each head": {"mask": allowed.expand(1, 2, QUERIES, KEYS)},
        "segments": {"mask": Mask.segments(ids, torch.zeros(KEYS, dtype=torch.int64))},
        "bias": {"bias": torch.zeros(QUERIES, KEYS).masked_fill(~allowed, -torch.inf)},
    }


@pytest.mark.parametrize("how", nothing_for_row_1())
@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_a_row_that_sees_nothing_is_zero_forward_and_backward(engine, name, how):
    """pytorch#103749, #110213: NaN; with finfo.min in place of -inf: the uniform mean."""
    score, tensors = make_score(name, 2), inputs(queries=QUERIES, keys=KEYS)
    output, grads = run(tensors, score, engine, **nothing_for_row_1()[how])
    assert torch.equal(output[:, :, 1], torch.zeros_like(output[:, :, 1]))
    assert all_finite(output, *grads)
    assert torch.equal(grads[0][:, :, 1], torch.zeros_like(grads[0][:, :, 1]))
    assert output[:, :, 0].abs().sum() > 0


@pytest.mark.parametrize(("engine", "name"), PAIRS_AND_PLAIN)
def test_everything_hidden_gives_zero_gradients_to_everything(engine, name):
    """pytorch#41508: one hidden sequence made the gradient of every weight NaN."""
    score, tensors = make_score(name, 2), inputs(keys=KEYS)
    hidden = Mask.lengths(keys=torch.tensor([0, 0]))
    output, grads = run(tensors, score, engine, mask=hidden)
    assert torch.equal(output, torch.zeros_like(output))
    for grad in grads:
        assert torch.equal(grad, torch.zeros_like(grad))


@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_a_hidden_sequence_does_not_change_its_neighbours_in_the_batch(engine, name):
    score, tensors = make_score(name, 2), inputs(batch=3)
    lengths = torch.tensor([6, 0, 4])
    _, grads = run(tensors, score, engine, mask=Mask.lengths(keys=lengths))
    seen = [x.detach()[[0, 2]].requires_grad_() for x in tensors]
    mask = Mask.lengths(keys=lengths[[0, 2]])
    alone = regard.attention(*seen, score, mask=mask, engine=engine)
    together = regard.attention(*tensors, score, mask=Mask.lengths(keys=lengths), engine=engine)
    torch.testing.assert_close(together[[0, 2]], alone, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(grad[1], torch.zeros_like(grad[1])) for grad in grads[:3])


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_statistics_of_a_row_that_sees_nothing(engine, name):
    """pytorch#134650: the LSE of an empty row is -inf, and exp(-inf + inf) must not be formed."""
    score, tensors = make_score(name, 2), inputs(queries=QUERIES, keys=KEYS)
    want = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")
    mask = nothing_for_row_1()["dense"]["mask"]
    result = regard.attend(*tensors, score, want=want, mask=mask, engine=engine)
    assert (result.lse[:, :, 1] == -torch.inf).all()
    assert (result.max_logit[:, :, 1] == -torch.inf).all()
    for name in ("entropy", "max_weight", "jacobian", "weights"):
        assert (getattr(result, name)[:, :, 1] == 0).all(), name
    assert all_finite(result.lse[:, :, 0], result.entropy, result.jacobian, result.weights)


@pytest.mark.parametrize("statistic", ["lse", "entropy", "weights"])
@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_gradients_through_statistics_of_empty_rows_are_zero(engine, name, statistic):
    """-inf is not differentiable; its row must still give 0 and not NaN."""
    score, tensors = make_score(name, 2), inputs(queries=QUERIES, keys=KEYS)
    mask = nothing_for_row_1()["dense"]["mask"]
    result = regard.attend(*tensors, score, want=statistic, mask=mask, engine=engine)
    grads = gradients(getattr(result, statistic), tensors[:2])
    assert all_finite(*grads)
    assert (grads[0][:, :, 1] == 0).all()
    assert grads[0][:, :, 0].abs().sum() > 0


@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_hidden_rows_do_not_read_their_incoming_gradient(engine, name):
    """A loss over padded rows may hand back NaN for rows that were never computed."""
    score, tensors = make_score(name, 2), inputs(queries=QUERIES, keys=KEYS)
    mask = Mask.lengths(queries=torch.tensor([3, 3]))
    output = regard.attention(*tensors, score, mask=mask, engine=engine)
    clean = torch.ones_like(output)
    dirty = clean.clone()
    dirty[:, :, 3:] = NAN
    wanted = [*tensors, *score.parameters()]
    expected = torch.autograd.grad(output, wanted, clean, retain_graph=True)
    for got, want in zip(torch.autograd.grad(output, wanted, dirty), expected, strict=True):
        torch.testing.assert_close(got, want)
