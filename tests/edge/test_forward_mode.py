"""Forward-mode derivatives, which engines with operators of their own do not have, and say so."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import regard

from .tools import INTERPRETED, Stop, inputs, make_score

ENGINES = [("cpu", "additive"), ("cpu", "bilinear"), *INTERPRETED]


@pytest.mark.parametrize(("engine", "name"), [("reference", "additive"), ("plain", "additive")])
def test_plain_pytorch_has_them(engine: str, name: str) -> None:
    query, key, value = (x.detach() for x in inputs())
    score, tangent = make_score(name, 2), torch.ones_like(query)

    def run(x: torch.Tensor) -> torch.Tensor:
        return regard.attention(x, key, value, score, engine=engine)

    _, found = torch.func.jvp(run, (query,), (tangent,))
    step = 1e-6
    quotient = (run(query + step * tangent) - run(query - step * tangent)) / (2 * step)
    torch.testing.assert_close(found, quotient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("engine", "name"), ENGINES)
def test_a_tangent_is_not_dropped_in_silence(engine: str, name: str) -> None:
    query, key, value = (x.detach() for x in inputs())
    score = make_score(name, 2).requires_grad_(False)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(query, torch.ones_like(query))
        with pytest.raises(NotImplementedError, match="jvp"):
            regard.attention(dual, key, value, score, engine=engine)


@pytest.mark.parametrize(("engine", "name"), ENGINES)
def test_nor_one_of_a_gradient(engine: str, name: str) -> None:
    query, key, value = inputs()
    output = regard.attention(query, key, value, make_score(name, 2), engine=engine)
    with forward_ad.dual_level():
        seed = forward_ad.make_dual(torch.ones_like(output), torch.ones_like(output))
        with pytest.raises((NotImplementedError, RuntimeError), match=r"jvp|forward"):
            torch.autograd.grad((output * seed).sum(), query)


@pytest.mark.parametrize(("engine", "name"), ENGINES)
def test_where_no_gradient_comes_in_none_goes_out(engine: str, name: str) -> None:
    query, key, value = inputs()
    output = regard.attention(query, key, value, make_score(name, 2), engine=engine)
    (found,) = torch.autograd.grad(Stop.apply(output).sum(), query, allow_unused=True)
    assert found is None or (found == 0).all()
