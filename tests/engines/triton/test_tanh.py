"""The fast form of tanh: half precision, 16 queries or more, two hidden units for one reciprocal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard.engines import lineup
from regard.problem import Problem

from .tools import check, draw, forget_bound_calls, inputs, score_of

pytestmark = pytest.mark.interpreted
HALF = [torch.float16, torch.bfloat16]


def scores(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """Raw scores (B, H, Q, L) by the kernels."""
    problem = Problem(score_of(v).lower(a, b), b)
    assert not lineup.TRITON.refusals(problem)
    return lineup.TRITON.scores(problem).detach()


def exact(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    units = torch.tanh(a.double().unsqueeze(-2) + b.double().unsqueeze(-3))
    return (units * v.double()[:, None, None]).sum(-1)


def assert_scores(a: Tensor, b: Tensor, v: Tensor, least: float = 0.0) -> None:
    """Errors of fp32: 2e-6 of |v|_1 in each head, and `least`."""
    error = (scores(a, b, v).double() - exact(a, b, v)).abs().amax((0, 2, 3))
    assert (error <= 2e-6 * v.double().abs().sum(-1) + least).all(), error


@pytest.mark.parametrize("hidden", [1, 2, 3, 16, 33])
@pytest.mark.parametrize("dtype", HALF)
def test_the_fast_form_is_tanh(hidden, dtype):
    """Also with an odd number of units, where one of a pair is not there."""
    a, b = (draw(1, 2, n, hidden, dtype=dtype) for n in (17, 20))
    assert_scores(a, b, draw(2, hidden, dtype=dtype))


@pytest.mark.parametrize(
    ("dtype", "spread"),
    [(torch.float16, x) for x in (1e-3, 9.0, 9.1875, 9.25, 100.0)] + [(torch.bfloat16, 9.0)],
)
def test_sides_that_are_large_and_cancel(dtype, spread):
    """Below 9.2 the exponentials serve, above it the plain form has to: exp(2 * 100) is no number."""
    signs = torch.tensor([1.0, -1.0]).repeat(10).view(1, 1, 20, 1)
    a = (spread * signs[:, :, :18] + 0.5 * torch.randn(1, 2, 18, 3)).to(dtype)
    b = (-spread * signs + 0.5 * torch.randn(1, 2, 20, 3)).to(dtype)
    if 9.0 < spread < 9.25:  # not beyond the bound by the noise
        a, b = (x.clamp(-spread, spread) for x in (a, b))
    assert_scores(a, b, torch.randn(2, 3).to(dtype))
    check(
        [x.clone().requires_grad_() for x in (a, b, torch.randn(1, 2, 20, 4).to(dtype))],
        score_of(torch.randn(2, 3).to(dtype)),
    )


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("size", [-100.0, 6e4])
def test_heads_of_which_some_are_bounded(size, side):
    """Each head takes its own form; a shared key counts for all heads that read it."""
    tensors = inputs(20, 18, heads=4, key_heads=2, dtype=torch.float16)
    with torch.no_grad():
        tensors[side][0, 1, 7, 1] = size
    check(tensors, regard.Additive(3, 4).half())


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("weight", [0.0, -0.0, 6e-8, 1e-4, -1e-4, 100.0, 6e4])
def test_weights_of_every_size(weight, dtype):
    """One unit of weight 0, tiny or huge among ordinary ones, at either place of a pair."""
    a, b = (3 * torch.randn(1, 2, n, 4).to(dtype) for n in (16, 17))
    v = torch.randn(2, 4).to(dtype)
    v[0, 0] = v[1, 3] = weight
    assert_scores(a, b, v, least=4e-9)


@pytest.mark.parametrize("weight", [1e-30, -1e-38, 1e9, -1e15])
def test_weights_that_only_bf16_holds(weight):
    a, b = (3 * torch.randn(1, 2, n, 4).bfloat16() for n in (16, 17))
    v = torch.full((2, 4), weight).bfloat16()
    assert_scores(a, b, v, least=8e-9)


def test_all_weights_are_0():
    """All scores are 0, the output is the mean of the values, and v alone has a gradient."""
    tensors = inputs(16, 20, dtype=torch.float16)
    score = score_of(torch.zeros(2, 3).half())
    output, of_q, of_k, _, of_v = check(tensors, score)
    mean = tensors[2].detach().float().mean(-2, keepdim=True).expand(1, 2, 16, 4)
    torch.testing.assert_close(output.float(), mean, rtol=0, atol=1e-3)
    assert (of_q == 0).all() and (of_k == 0).all() and of_v.abs().sum() > 0


@pytest.mark.parametrize("queries", [15, 16])
def test_both_sides_of_the_fewest_queries(queries, monkeypatch):
    """Fewer queries do not repay the exponentials: nothing is laid out for them."""
    from regard.engines.triton import prepare

    launched, laid_out = set(), prepare.laid_out

    def spy(*args, **options):
        sides, found = laid_out(*args, **options)
        launched.update(form.form_name for form in found)
        return sides, found

    monkeypatch.setattr(prepare, "laid_out", spy)
    forget_bound_calls()
    check(inputs(queries, 33, hidden=5, dtype=torch.float16), regard.Additive(5, 2).half())
    assert launched == (set() if queries == 15 else {"fast", "plain"})


@pytest.mark.parametrize("size", [1e-3, 1e-6, 6e-8])
def test_small_gradients_are_not_lost_in_fp16(size):
    """The gradient of a mean over many is small; products in fp16 would round it to 0."""
    tensors = inputs(16, 33, dtype=torch.float16)
    grad = (size * torch.randn(1, 2, 16, 4)).half()
    score = regard.Additive(3, 2).half()
    check(tensors, score, grad)
