"""Function transforms, second derivatives and what else people do with a module."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import regard
from regard import Mask

BUILDS = {
    "bilinear": lambda: regard.Bilinear(4, 4, 2),
    "cosine": lambda: regard.Cosine(2),
    "additive": lambda: regard.Additive(4, 2, bias=True),
    "projected": lambda: regard.Projected(regard.GATv2(3, 2), 4, 4),
}


def given(dtype=torch.float64):
    return [torch.randn(2, 2, n, 4, dtype=dtype) for n in (5, 6, 6)]


class Model(torch.nn.Module):
    def __init__(self, name: str, engine: str | None) -> None:
        super().__init__()
        self.score, self.engine = BUILDS[name]().double(), engine

    def forward(self, q, k, v):
        return regard.attention(q, k, v, self.score, mask=Mask.causal(), engine=self.engine)


@pytest.mark.parametrize("engine", [None, "cpu", "reference"])
@pytest.mark.parametrize("name", BUILDS)
def test_func_grad_over_the_parameters_of_a_score(name, engine):
    """torch.func.grad and functional_call, as meta-learning and influence functions need them."""
    model, tensors = Model(name, engine), given()
    parameters = {key: p.detach() for key, p in model.named_parameters()}

    def loss(parameters):
        return functional_call(model, parameters, tuple(tensors)).square().sum()

    found = torch.func.grad(loss)(parameters)
    wanted = torch.autograd.grad(model(*tensors).square().sum(), list(model.parameters()))
    for got, want in zip(found.values(), wanted, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("engine", [None, "cpu", "reference"])
def test_func_vjp_over_the_inputs(engine):
    q, k, v = given()
    output, pull = torch.func.vjp(lambda *x: regard.attention(*x, engine=engine), q, k, v)
    wanted = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(regard.attention(*wanted).sum(), wanted)
    for got, want in zip(pull(torch.ones_like(output)), expected, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_second_derivatives_of_the_reference(name):
    model, tensors = Model(name, "reference"), [x.requires_grad_() for x in given()]
    tensors = [x.detach()[:1, :, :3].requires_grad_() for x in tensors]
    assert torch.autograd.gradgradcheck(lambda *x: model(*x), tuple(tensors))


@pytest.mark.parametrize("loss", ["sum", "square"])
@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_a_gradient_penalty_of_the_cpu_engine(name, loss):
    """With `sum` the incoming gradient is a constant, and the penalty still has a gradient."""
    model, found, data = Model(name, "cpu"), [], given()
    for engine in ("cpu", "reference"):
        model.engine = engine
        tensors = [x.clone().requires_grad_() for x in data]
        output = model(*tensors)
        total = output.sum() if loss == "sum" else output.square().sum()
        grads = torch.autograd.grad(total, tensors[:2], create_graph=True)
        penalty = sum(g.square().sum() for g in grads)
        found.append(torch.autograd.grad(penalty, [*tensors, *model.parameters()]))
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours, exact)


def test_a_second_derivative_with_dropout_raises():
    """Never a silent zero: a gradient penalty would train without its penalty."""
    q, k, v = [x.requires_grad_() for x in given()]
    output = regard.attention(q, k, v, dropout=0.5, engine="cpu")
    (grad,) = torch.autograd.grad(output.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match=r"second derivative with dropout.*reference"):
        (grad.square().sum() + q.square().sum()).backward()


@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_create_graph_alone_is_no_error(name):
    """Some optimisers pass create_graph=True and never differentiate twice."""
    model, tensors = Model(name, "cpu"), [x.requires_grad_() for x in given()]
    found = torch.autograd.grad(model(*tensors).square().sum(), tensors, create_graph=True)
    wanted = torch.autograd.grad(model(*tensors).square().sum(), tensors)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_explain_says_which_calls_have_no_second_derivative():
    tensors = given()
    for engine in ("cpu", "sdpa", "reference"):
        notes = regard.explain(*tensors, engine=engine).notes
        assert not any("second derivative" in note for note in notes), engine
    notes = regard.explain(*tensors, engine="cpu", dropout=0.5).notes
    assert any("second derivative" in note for note in notes)


@pytest.mark.parametrize("name", ["bilinear", "additive"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_checkpointing_recomputes_the_same(name, dropout):
    """The seed of dropout comes from torch's generator, which checkpoint restores."""
    score, tensors = BUILDS[name]().double(), [x.requires_grad_() for x in given()]

    def call(q, k, v):
        return regard.attention(q, k, v, score, dropout=dropout, engine="cpu")

    found = []
    for run in (call, lambda *x: checkpoint(call, *x, use_reentrant=False)):
        torch.manual_seed(0)
        output = run(*tensors)
        found.append([output, *torch.autograd.grad(output.square().sum(), tensors)])
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_vmap_of_the_reference(name):
    model, tensors = Model(name, "reference"), given()
    batched = [torch.stack([x, 2 * x]) for x in tensors]
    output = torch.func.vmap(model)(*batched)
    torch.testing.assert_close(output[1], model(*(2 * x for x in tensors)))


@pytest.mark.parametrize("engine", ["cpu", "sdpa", "reference"])
def test_inference_mode_and_threads(engine):
    """Calls from several threads do not share state."""
    tensors = given()
    with torch.inference_mode():
        expected = regard.attention(*tensors, engine=engine)
    with ThreadPoolExecutor(2) as pool:
        for output in pool.map(lambda _: regard.attention(*tensors, engine=engine), range(8)):
            assert torch.equal(output, expected)
