"""Sinks: one more outcome with a logit and the value 0."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

from .tools import INF, OWN_PAIRS, all_finite, assert_same, gradients, inputs, make_score

WANT = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")
LEVELS = [-100.0, -35.0, -25.0, -22.0, -18.0, -5.0, 0.0, 5.0, 25.0, 100.0]


def by_hand(tensors, score, sink):
    """The sink as a real column of the logits, and a value of 0 for it."""
    logits = regard.score(*tensors[:2], score)
    column = sink.view(-1, 1, 1).expand(*logits.shape[:-1], 1)
    weights = torch.cat([logits, column], -1).softmax(-1)
    lse = torch.cat([logits, column], -1).logsumexp(-1)
    entropy = torch.special.entr(weights).sum(-1)
    return weights[..., :-1] @ tensors[2], lse, entropy, weights


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_a_sink_is_one_more_key(engine, name, level):
    """Far below and far above the logits, where a softplus with a threshold loses digits."""
    score, tensors = make_score(name, 2), inputs()
    sink = torch.tensor([level, level + 0.5], dtype=torch.float64, requires_grad=True)
    output, lse, entropy, weights = by_hand(tensors, score, sink)
    result = regard.attend(*tensors, score, want=WANT, sink=sink, engine=engine)
    assert_same(
        [result.output, result.lse, result.weights], [output, lse, weights[..., :-1]], rtol=1e-11
    )
    torch.testing.assert_close(result.entropy, entropy, rtol=1e-9, atol=1e-12)
    assert_same([result.max_weight], [weights[..., :-1].amax(-1).detach()])
    wanted = [*tensors, sink]
    for field, x in (("output", output), ("lse", lse)):
        assert_same(gradients(getattr(result, field), wanted), gradients(x, wanted), rtol=1e-10)


@pytest.mark.parametrize("level", [-25.0, 0.0, 25.0])
@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_the_jacobian_with_a_sink_is_that_over_the_keys(engine, name, level):
    score, tensors = make_score(name, 2), inputs()
    sink = torch.tensor([level], dtype=torch.float64)
    p = by_hand(tensors, score, sink.expand(2))[3][..., :-1].detach()
    jacobian = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    result = regard.attend(*tensors, score, want="jacobian", sink=sink, engine=engine)
    assert_same([result.jacobian], [torch.linalg.matrix_norm(jacobian)])


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_a_sink_of_minus_inf_is_no_sink(engine, name):
    """0 * (lse - -inf) is NaN: an absent outcome has no surprise."""
    score, tensors = make_score(name, 2), inputs()
    sink = torch.full((2,), -INF, dtype=torch.float64, requires_grad=True)
    plain = regard.attend(*tensors, score, want=WANT, engine=engine)
    result = regard.attend(*tensors, score, want=WANT, sink=sink, engine=engine)
    assert_same(list(result), list(plain), rtol=1e-12)
    wanted = [*tensors, *score.parameters()]
    for field in ("output", "lse", "entropy", "weights"):
        grads = gradients(getattr(result, field), [*wanted, sink])
        assert all_finite(*grads), field
        assert (grads[-1] == 0).all()
        assert_same(grads[:-1], gradients(getattr(plain, field), wanted), rtol=1e-10)


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_one_head_with_and_one_without_a_sink(engine, name):
    score, tensors = make_score(name, 2), inputs()
    sink = torch.tensor([1.0, -INF], dtype=torch.float64)
    result = regard.attend(*tensors, score, want=WANT, sink=sink, engine=engine)
    plain = regard.attend(*tensors, score, want=WANT, engine=engine)
    assert_same([x[:, 1] for x in result], [x[:, 1] for x in plain], rtol=1e-12)
    assert (result.lse[:, 0] > plain.lse[:, 0]).all()


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_a_row_that_sees_nothing_gives_all_to_the_sink(engine, name):
    score, tensors = make_score(name, 2), inputs()
    sink = torch.tensor([0.5, -INF], dtype=torch.float64, requires_grad=True)
    mask = Mask.lengths(keys=torch.tensor([0, 6]))
    result = regard.attend(*tensors, score, want=WANT, sink=sink, mask=mask, engine=engine)
    assert (result.output[0] == 0).all() and (result.weights[0] == 0).all()
    assert (result.lse[0, 0] == 0.5).all() and (result.lse[0, 1] == -INF).all()
    for field in ("entropy", "max_weight", "jacobian"):
        assert (getattr(result, field)[0] == 0).all(), field
    (grad,) = torch.autograd.grad(result.lse[0, 0].sum(), sink, retain_graph=True)
    assert grad.tolist() == [5.0, 0.0]
    assert all_finite(*gradients(result.output, [*tensors, sink]))


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_sinks_for_each_head_or_for_all(engine, shape):
    tensors, sink = inputs(), torch.full(shape, 0.3, dtype=torch.float64, requires_grad=True)
    output = regard.attention(*tensors, sink=sink, engine=engine)
    expected = by_hand(tensors, None, torch.full((2,), 0.3, dtype=torch.float64))[0]
    assert_same([output], [expected])
    assert gradients(output, [sink])[0].shape == shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_the_sink_takes_its_share_before_rounding(engine, dtype):
    """One rounding to the dtype at the end, not one before the share and one after."""
    tensors = [x.detach() for x in inputs(4, 2, 64, 64, dtype=dtype)]
    sink = torch.tensor([2.0, 3.0])
    output = regard.attention(*tensors, sink=sink, engine=engine)
    exact = regard.attention(*(x.double() for x in tensors), sink=sink.double(), engine="reference")
    error = (output.double() - exact).abs() / exact.abs().clamp(min=1e-3)
    assert float(error.max()) < 0.75 * torch.finfo(dtype).eps
