"""Gradients that are asked for around a transform of `torch.func`, or inside one."""

from __future__ import annotations

import pytest
import torch

import regard

from .tools import INTERPRETED, inputs, make_score

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
