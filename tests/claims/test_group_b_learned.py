"""Claims B3 to B6: what scores can be fitted to. Each verdict can come out another way."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import regard
from regard.claims import ClaimVerdict, Numbers, Run, find
from regard.claims.experiments.b3_angle_response import AngleResponse
from regard.claims.experiments.b4_boundaries import Boundaries, adding
from regard.claims.experiments.b5_universal import Universal, product
from regard.claims.experiments.b6_posterior import Posterior
from regard.claims.tools.fitting import Pairs, fit_additive, fit_bilinear
from regard.claims.tools.learning import Budget

from .checking import check_figure, from_disk, verdict

SMALL = {
    "B3": AngleResponse(hidden=160),
    "B4": Boundaries(budget=Budget(steps=150, rates=(3e-2,), held=256)),
    "B5": Universal(widths=(8, 32, 128)),
    "B6": Posterior(items=4, query_dim=3),
}
EXPECTED = {
    "B3": ClaimVerdict.CONDITIONS,
    "B4": ClaimVerdict.HOLDS,
    "B5": ClaimVerdict.CONDITIONS,
    "B6": ClaimVerdict.HOLDS,
}


@cache
def measured(name: str) -> Numbers:
    """Once for all tests that look at them."""
    return from_disk(SMALL[name].measure(Run()))


@pytest.mark.parametrize("name", SMALL)
def test_verdict_and_figure(name: str) -> None:
    claim = SMALL[name]
    judgement = claim.judge(measured(name))
    assert judgement.verdict is EXPECTED[name], judgement
    check_figure(claim, measured(name))


@pytest.mark.parametrize("name", SMALL)
def test_claims_go_to_other_processes(name: str) -> None:
    (claim,) = find([name])
    assert pickle.loads(pickle.dumps(claim)).id == name  # noqa: S301 # our own bytes


def test_the_bilinear_fit_is_exact_where_it_can_be() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, matrix = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((50, 3), (50, 2), (3, 2))
    )
    target = torch.einsum("na,ab,nb->n", query, matrix, key).unsqueeze(-1) + 5
    (fit,) = fit_bilinear(Pairs(query, key, target))
    torch.testing.assert_close(fit.score.weight[0], matrix)
    assert fit.constant == pytest.approx(5)


def test_the_additive_fit_is_the_score_it_says() -> None:
    """What `regard.score` gives is what least squares fitted: an additive target is met."""
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 300, 2, generator=generator, dtype=torch.float64)
    pairs = Pairs(query, key, torch.tanh(query.sum(-1) - key.sum(-1) + 0.5).unsqueeze(-1))
    (fit,) = fit_additive(pairs, pairs, 64, True, generator)
    assert fit.unexplained(pairs, 0) < 0.05
    found = regard.score(query[:1], key[:1], fit.score).item() + fit.constant
    assert found == pytest.approx(fit(query, key)[0].item())


def test_b3_fails_where_the_curve_is_the_cosine() -> None:
    claim = AngleResponse(curves={"cosine": torch.clone}, hidden=64)
    assert verdict(claim) is ClaimVerdict.FAILS


def test_b3_holds_where_parity_does_not_matter() -> None:
    numbers = deepcopy(measured("B3"))
    numbers["left"]["odd"] = numbers["left"]["bias"]
    assert SMALL["B3"].judge(numbers).verdict is ClaimVerdict.HOLDS


def beside(offset: Tensor) -> Tensor:
    """Keys to the right of the query: a half-plane finds them all."""
    return offset[..., 0] > 0


def test_b4_fails_where_a_plane_is_right() -> None:
    short = Budget(steps=50, rates=(3e-2,), held=256)
    assert verdict(Boundaries(inside=beside, budget=short)) is ClaimVerdict.FAILS


@pytest.mark.slow
def test_b4_fails_where_the_multiplicative_score_curves_too() -> None:
    bent = {"scaled dot": adding, "additive": adding}
    assert verdict(replace(SMALL["B4"], scores=bent)) is ClaimVerdict.FAILS


def jagged(query: Tensor, key: Tensor) -> Tensor:
    """A target that no width tried here can follow."""
    return torch.sign(torch.sin(60 * query[:, 0]) * torch.sin(60 * key[:, 0]))


def test_b5_fails_on_a_target_that_jumps_everywhere() -> None:
    claim = Universal(targets={"bilinear": product, "not bilinear": jagged}, widths=(8, 32, 64))
    assert verdict(claim) is ClaimVerdict.FAILS


def test_b5_sees_that_the_bilinear_target_needs_no_width() -> None:
    left = measured("B5")["left"]
    assert max(left["bilinear"]["bilinear"]) < 1e-20
    assert min(left["bilinear"]["not bilinear"]) > 0.1
    because = SMALL["B5"].judge(measured("B5")).because.en
    assert because.endswith("only for: target exp(−2‖q−k‖²).")


def rectified(query: Tensor, key: Tensor, score: regard.Score | str, prior: Tensor) -> Tensor:
    """Weights in proportion to positive scores: no exponential family."""
    found = torch.relu(regard.score(query, key, score)) * prior.exp() + 1e-3
    return found / found.sum(-1, keepdim=True)


def test_b6_fails_for_weights_that_are_no_softmax() -> None:
    assert verdict(replace(SMALL["B6"], weigh=rectified)) is ClaimVerdict.FAILS
