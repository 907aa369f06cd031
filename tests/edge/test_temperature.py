"""Temperatures: numbers, tensors, and 0, the hard look-up."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

from .tools import OWN_PAIRS, assert_same, draw, gradients, inputs, make_score

WANT = ("entropy", "max_weight", "jacobian", "weights")


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_ties_go_to_the_lowest_index(engine, tiny_tiles):
    """Also where the tie is in another tile, and where lower indices are hidden."""
    keys = 3 * tiny_tiles
    key = torch.ones(keys, 2)
    key[[0, 1, keys - 3]] = -1
    value = torch.arange(keys, dtype=torch.float32).view(keys, 1)
    query = torch.ones(3, 2)
    hidden = torch.ones(3, keys, dtype=torch.bool)
    hidden[1, : tiny_tiles + 2] = False
    hidden[2] = False
    output = regard.attention(query, key, value, temperature=0, mask=hidden, engine=engine)
    assert output.flatten().tolist() == [2, tiny_tiles + 2, 0]


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_the_gradient_of_a_hard_look_up_goes_to_the_values_alone(engine, name):
    score, tensors = make_score(name, 2), inputs()
    output = regard.attention(*tensors, score, temperature=0.0, engine=engine)
    grads = gradients(output, [*tensors, *score.parameters()])
    best = regard.score(*tensors[:2], score).argmax(-1)
    chosen = torch.nn.functional.one_hot(best, 6).double()
    incoming = torch.cos(torch.arange(output.numel()).double()).reshape(output.shape)
    assert_same([output, grads[2]], [chosen @ tensors[2], chosen.mT @ incoming])
    assert all((grad == 0).all() for i, grad in enumerate(grads) if i != 2)


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_statistics_of_a_hard_look_up(engine, name):
    score, tensors = make_score(name, 2), inputs()
    result = regard.attend(
        *tensors, score, want=WANT, temperature=0, mask=Mask.lengths(keys=[0, 6]), engine=engine
    )
    assert (result.entropy == 0).all() and (result.jacobian == 0).all()
    assert (result.max_weight[0] == 0).all() and (result.max_weight[1] == 1).all()
    assert (result.weights[0] == 0).all()
    assert (result.weights[1].sum(-1) == 1).all() and (result.weights[1].amax(-1) == 1).all()


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_zeros_in_a_tensor_are_hard_rows_among_soft_ones(engine, name):
    score, tensors = make_score(name, 2), inputs()
    temperature = torch.tensor([[0.0, 1.0, 0.5, 0.0, 2.0]]).double().view(1, 1, 5, 1)
    temperature = temperature.expand(2, 2, 5, 1).clone().requires_grad_()
    output = regard.attention(*tensors, score, temperature=temperature, engine=engine)
    hard = regard.attention(*tensors, score, temperature=0.0, engine=engine)
    rows = torch.tensor([1, 2, 4])
    soft_temperature = temperature.detach()[:, :, rows]
    soft = regard.attention(
        tensors[0][:, :, rows], *tensors[1:], score, temperature=soft_temperature, engine=engine
    )
    assert_same([output[:, :, [0, 3]], output[:, :, rows]], [hard[:, :, [0, 3]], soft])
    grads = gradients(output, [*tensors, temperature])
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][:, :, [0, 3]] == 0).all() and (grads[3][:, :, [0, 3]] == 0).all()
    assert grads[3][:, :, rows].abs().sum() > 0


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_a_tensor_of_one_number_is_that_number(engine):
    tensors = inputs()
    expected = regard.attention(*tensors, temperature=0.7, engine=engine)
    for shape in ((), (1,), (2,), (1, 1), (5, 1), (1, 1, 1, 1), (2, 2, 5, 1)):
        temperature = torch.full(shape, 0.7, dtype=torch.float64)
        output = regard.attention(*tensors, temperature=temperature, engine=engine)
        assert_same([output], [expected])


@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
@pytest.mark.parametrize("name", ["gaussian", "bilinear"])
def test_dividing_by_the_temperature_is_scaling_the_score(engine, name):
    """The terms of query and key alone are divided too."""
    score, (q, k, v) = make_score(name, 2), inputs()
    output = regard.attention(q, k, v, score, temperature=0.5, engine=engine)
    weights = (regard.score(q, k, score) / 0.5).softmax(-1)
    assert_same([output], [weights @ v])


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["gaussian", "additive"])
def test_the_order_is_temperature_then_softcap_then_bias(engine, name):
    score, (q, k, v), bias = make_score(name, 2), inputs(), draw(5, 6)
    result = regard.attend(
        q, k, v, score, want="lse", temperature=0.5, softcap=2.0, bias=bias, engine=engine
    )
    logits = 2 * torch.tanh(regard.score(q, k, score) / 0.5 / 2) + bias
    assert_same([result.output, result.lse], [logits.softmax(-1) @ v, logits.logsumexp(-1)])


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_a_finite_bias_and_a_soft_cap_do_not_matter_at_temperature_0(engine):
    tensors, bias = inputs(), 10 * draw(5, 6)
    bias[:, 2] = -torch.inf
    output = regard.attention(*tensors, temperature=0, bias=bias, softcap=0.1, engine=engine)
    seen = torch.ones(5, 6, dtype=torch.bool)
    seen[:, 2] = False
    expected = regard.attention(*tensors, temperature=0, mask=seen, engine=engine)
    assert torch.equal(output, expected)


@pytest.mark.parametrize("temperature", [0, 0.0, 1, 2, 1e-3])
def test_integers_are_numbers_too(temperature):
    tensors = inputs()
    expected = regard.attention(*tensors, temperature=float(temperature))
    assert torch.equal(regard.attention(*tensors, temperature=temperature), expected)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_temperature_for_each_query_without_a_head_dim(engine):
    q, k, v = (draw(2, 5, 4) for _ in range(3))
    temperature = draw(2, 5, 1).abs()
    output = regard.attention(q, k, v, temperature=temperature, engine=engine)
    expected = ((q @ k.mT / 2 / temperature).softmax(-1)) @ v
    assert_same([output], [expected])
