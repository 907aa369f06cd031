"""Gradients that are asked for around a transform of `torch.func`, or inside one."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard.sine import series

from .tools import INTERPRETED, inputs, make_score

# PyTorch says once that it calls an operator for each entry of a batch.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
ENGINES = [("cpu", "additive"), ("cpu", "bilinear"), ("plain", "additive"), *INTERPRETED]


@pytest.mark.parametrize(("engine", "name"), ENGINES)
def test_a_gradient_around_vmap(engine: str, name: str) -> None:
    """Inside vmap no tensor says that it wants a gradient."""
    query, key, value = inputs(batch=3)
    score = make_score(name, 2).requires_grad_(False)

    def one(q, k, v):
        return regard.attention(q[None], k[None], v[None], score, engine=engine)[0]

    leaves = (query, key, value)
    output = torch.func.vmap(one)(*leaves)
    wanted = torch.autograd.grad(regard.attention(*leaves, score, engine=engine).sum(), leaves)
    for found, truth in zip(torch.autograd.grad(output.sum(), leaves), wanted, strict=True):
        torch.testing.assert_close(found, truth)


@pytest.mark.parametrize(("engine", "name"), ENGINES)
def test_a_gradient_inside(engine: str, name: str) -> None:
    query, key, value = (x.detach() for x in inputs())
    score = make_score(name, 2)

    def loss(q):
        return regard.attention(q, key, value, score, engine=engine).sum()

    leaf = query.clone().requires_grad_()
    (truth,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(query), truth)


@pytest.mark.parametrize(("engine", "name"), ENGINES)
def test_vmap_with_parameters_that_learn(engine: str, name: str) -> None:
    """Batches, gradients of each entry, and Jacobians."""
    query, key, value = (x.detach() for x in inputs(batch=3))
    score = make_score(name, 2)

    def one(q, k, v):
        return regard.attention(q[None], k[None], v[None], score, engine=engine)[0]

    def loss(q, k, v):
        return one(q, k, v).square().sum()

    output = torch.func.vmap(one)(query, key, value)
    torch.testing.assert_close(
        output, regard.attention(query, key, value, score, engine="reference")
    )
    leaf = query.clone().requires_grad_()
    truth = torch.autograd.grad(output_loss(leaf, key, value, score), leaf)[0]
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(query, key, value), truth)
    jacobian = torch.func.jacrev(one)(query[0], key[0], value[0])
    rows = [
        torch.func.grad(lambda q, i=i: one(q, key[0], value[0]).flatten()[i])(query[0])
        for i in (0, 5)
    ]
    torch.testing.assert_close(jacobian.flatten(0, 2)[[0, 5]], torch.stack(rows))


def output_loss(query, key, value, score):
    return regard.attention(query, key, value, score, engine="reference").square().sum()


def test_an_error_under_vmap_leaves_the_series_out() -> None:
    """Its choice on the CPU reads numbers, which a batch does not tell."""
    query, key, value = (x.detach().float() for x in inputs(batch=3))
    score = make_score("additive", 2, torch.float32)

    def one(q, k, v):
        return regard.attention(q[None], k[None], v[None], score, error=0.05)[0]

    wanted = regard.attention(query, key, value, score, engine="reference")
    torch.testing.assert_close(torch.func.vmap(one)(query, key, value), wanted)


def test_fake_tensors_leave_nothing_behind(monkeypatch) -> None:
    """Tables that are loaded under somebody's mode are real ones."""
    monkeypatch.setattr("regard.sine.series._loaded", {})
    real = [x.detach().float() for x in inputs()]
    score = make_score("additive", 2, torch.float32).requires_grad_(False)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [mode.from_tensor(x) for x in real]
        found = regard.attention(*fake, score, error=0.05)
        assert found.shape == (*real[0].shape[:-1], real[2].shape[-1])
        series.load("uniform", 6)
    wanted = regard.attention(*real, score, engine="reference")
    found = regard.attention(*real, score, error=0.05)
    assert float((found - wanted).abs().max()) < 0.05 * float(real[2].abs().max())
