"""Derivatives of derivatives on the CPU, and forward mode: whichever engine is picked has them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import regard
from regard import Mask
from regard.nn import MultiheadAttention, from_torch

PARTS = {
    "sdpa": (None, {}),
    "grouped": (None, {"key_heads": 1}),
    "unequal widths": (None, {"value_dim": 5}),
    "causal": (None, {"mask": Mask.causal()}),
    "padding": (None, {"mask": Mask.lengths(keys=[3, 0])}),
    "bias": (None, {"bias": True}),
    "cosine": ("cosine", {}),
    "gaussian": ("gaussian", {}),
    "soft cap": (None, {"softcap": 2.0}),
    "sink": (None, {"sink": True}),
    "one query": (None, {"queries": 1}),
    "temperature": (None, {"temperature": True}),
    "cpu, additive": (regard.Additive(3, 2), {"engine": "cpu"}),
    "cpu, additive, causal": (regard.Additive(3, 2), {"engine": "cpu", "mask": Mask.causal()}),
    "cpu, gatv2, grouped": (regard.GATv2(3, 2), {"engine": "cpu", "key_heads": 1}),
    "cpu, segments": (
        None,
        {"engine": "cpu", "mask": Mask.segments(torch.tensor([[0, 0, 1, 1]] * 2))},
    ),
    "cpu, bilinear": (
        regard.Bilinear(3, 3, 2),
        {"engine": "cpu", "mask": Mask.lengths(keys=[3, 2])},
    ),
    "plain": (regard.Additive(3, 2), {}),
}


def problem(case: str):
    """A function of tensors in fp64, and these tensors; sink, bias and temperature are among them."""
    torch.manual_seed(0)
    score, options = PARTS[case]
    options = dict(options)
    queries = options.pop("queries", 4)
    q = torch.randn(2, 2, queries, 3, dtype=torch.double)
    k = torch.randn(2, options.pop("key_heads", 2), 4, 3, dtype=torch.double)
    v = torch.randn(2, k.shape[1], 4, options.pop("value_dim", 3), dtype=torch.double)
    extra = {
        name: torch.rand(shape, dtype=torch.double) + 0.5
        for name, shape in (("bias", (queries, 4)), ("sink", (2,)), ("temperature", (2,)))
        if options.pop(name, False) is True
    }
    if isinstance(score, regard.Score):
        score = score.double()

    def run(q, k, v, *more):
        given = dict(zip(extra, more, strict=True))
        return regard.attention(q, k, v, score, **options, **given)

    return run, tuple(x.requires_grad_() for x in (q, k, v, *extra.values()))


@pytest.mark.parametrize("case", PARTS)
def test_second_derivatives(case: str) -> None:
    run, tensors = problem(case)
    assert torch.autograd.gradgradcheck(run, tensors, fast_mode=True)


@pytest.mark.parametrize("case", [case for case in PARTS if "cpu" not in case])
def test_forward_mode(case: str) -> None:
    run, tensors = problem(case)
    assert torch.autograd.gradcheck(
        run, tensors, check_forward_ad=True, check_backward_ad=False, fast_mode=True
    )


@pytest.mark.parametrize("want", ["lse", "entropy", "weights"])
@pytest.mark.parametrize("masked", [False, True])
def test_second_derivatives_of_statistics(want: str, masked: bool) -> None:
    _, tensors = problem("sdpa")
    mask = Mask.lengths(keys=[3, 0]) & Mask.causal("top_left") if masked else None

    def run(*x):
        found = getattr(regard.attend(*x, want=(want,), mask=mask, engine="cpu"), want)
        return torch.where(found == -torch.inf, 0, found)

    assert torch.autograd.gradgradcheck(run, tensors, fast_mode=True)


@pytest.mark.parametrize("score", [None, regard.Additive(3, 2).double()])
def test_raw_scores(score) -> None:
    _, (q, k, _) = problem("sdpa")
    assert torch.autograd.gradgradcheck(
        lambda q, k: regard.score(q, k, score), (q, k), fast_mode=True
    )


def test_third_derivatives() -> None:
    for engine in (None, "cpu"):
        q, k, v = (torch.randn(1, 1, 2, 2, dtype=torch.double, requires_grad=True) for _ in "qkv")

        def second(q, engine=engine, k=k, v=v):
            loss = regard.attention(q, k, v, engine=engine).square().sum()
            (first,) = torch.autograd.grad(loss, q, create_graph=True)
            return first.square()

        assert torch.autograd.gradgradcheck(second, (q,))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("score", [None, "additive"])
@pytest.mark.parametrize("weights", [True, False])
def test_hessians_of_the_module(score, weights: bool) -> None:
    """Of torch's own module where it has one (with weights), by every way to ask."""
    theirs = nn.MultiheadAttention(4, 2, batch_first=True).double()
    ours = from_torch(theirs, score)
    exact = MultiheadAttention(
        4, 2, batch_first=True, dtype=torch.double, score=ours.score, engine="reference"
    )
    exact.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 4, dtype=torch.double)

    def loss(x, module):
        return module(x, x, x, need_weights=weights)[0].square().sum()

    truth = theirs if score is None and weights else exact
    wanted = torch.autograd.functional.hessian(lambda x: loss(x, truth), x)
    for hessian in (
        lambda f: torch.autograd.functional.hessian(f, x),
        lambda f: torch.autograd.functional.hessian(f, x, vectorize=True),
        lambda f: torch.func.hessian(f)(x),
        lambda f: torch.func.jacrev(torch.func.jacrev(f))(x),
    ):
        torch.testing.assert_close(hessian(lambda x: loss(x, ours)), wanted)


def test_a_gradient_penalty_trains_every_parameter() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(6, 2, batch_first=True)
    ours = from_torch(theirs)
    x = torch.randn(2, 40, 6)
    grads = []
    for module, weights in ((theirs, True), (ours, False), (ours, True)):
        leaf = x.clone().requires_grad_()
        out = module(leaf, leaf, leaf, need_weights=weights)[0]
        (first,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        grads.append(torch.autograd.grad(first.square().sum(), list(module.parameters())[:3]))
    for found in grads[1:]:
        for got, want in zip(found, grads[0], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_usual_backward_keeps_no_tensor_alive() -> None:
    """The hook that serves second derivatives reads what autograd saved, and holds nothing itself."""
    q, k, v = (torch.randn(1, 2, 40, 8, requires_grad=True) for _ in range(3))
    out = regard.attention(q, k, v)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="freed"):
        out.sum().backward()


def test_explain_says_what_forward_mode_refuses() -> None:
    q = torch.randn(1, 2, 3, 4)
    assert regard.explain(q, q, q).engine == "sdpa"
    with forward_ad.dual_level():
        plan = regard.explain(q, q, q)
    assert plan.engine == "reference" and "forward-mode" in plan.refused["sdpa"][0]
    assert "no second derivative" in str(regard.explain(q, q, q, dropout=0.5, engine="cpu"))
