"""Claims D1 to D3: attention as statistics. Each verdict can come out another way."""

from __future__ import annotations

import math
import pickle
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from regard.claims import ClaimVerdict, Numbers, Run, find
from regard.claims.experiments.d1_kernel_smoothing import KernelSmoothing
from regard.claims.experiments.d2_adaptive_bandwidth import AdaptiveBandwidth, chirp
from regard.claims.experiments.d3_soft_retrieval import Neighbours, SoftRetrieval, scores
from regard.claims.tools.learning import Budget

from .checking import check_figure, from_disk, verdict

LEARNERS = {name: scores()[name] for name in ("scaled dot", "bilinear")}
SMALL = {
    "D1": KernelSmoothing(),
    "D2": AdaptiveBandwidth(
        budget=Budget(steps=100, batch=32, rates=(1e-1,), examples=600, held=200)
    ),
    "D3": SoftRetrieval(
        scores=LEARNERS, budget=Budget(steps=200, batch=32, rates=(1e-1,), examples=4096, held=256)
    ),
}


@cache
def measured(name: str) -> Numbers:
    """Once for all tests that look at them."""
    return from_disk(SMALL[name].measure(Run()))


@pytest.mark.parametrize("name", SMALL)
def test_holds_and_has_its_figure(name: str) -> None:
    claim = SMALL[name]
    judgement = claim.judge(measured(name))
    assert judgement.verdict is ClaimVerdict.HOLDS, judgement
    check_figure(claim, measured(name))


@pytest.mark.parametrize("name", SMALL)
def test_claims_go_to_other_processes(name: str) -> None:
    (claim,) = find([name])
    assert pickle.loads(pickle.dumps(claim)).id == name  # noqa: S301 # our own bytes


def test_d1_fails_at_another_bandwidth() -> None:
    claim = KernelSmoothing(bandwidth=math.sqrt, dims=(2, 8))
    assert verdict(claim) is ClaimVerdict.FAILS


def test_d1_needs_keys_of_one_norm_and_queries_of_any() -> None:
    numbers = measured("D1")
    assert max(numbers["long queries"]) < 1e-12
    assert numbers["unequal keys"][0] < 1e-12 < 1e-3 < numbers["unequal keys"][-1]


def test_d2_fails_for_a_score_that_ignores_norms() -> None:
    short = Budget(steps=2, batch=8, rates=(1e-2,), examples=20, held=20)
    assert verdict(AdaptiveBandwidth(score="cosine", budget=short)) is ClaimVerdict.FAILS


def even(place: Tensor) -> Tensor:
    """As rough everywhere."""
    return torch.sin(8 * math.pi * place)


def test_d2_fails_where_roughness_does_not_vary() -> None:
    assert verdict(replace(SMALL["D2"], curve=even)) is not ClaimVerdict.HOLDS


def test_d2_is_open_where_seeds_disagree() -> None:
    numbers = deepcopy(measured("D2"))
    numbers["error"]["learned"] = [e * r for e, r in zip(
        numbers["error"]["fixed"], (0.2, 3.0, 0.5, 2.0, 1.0), strict=True
    )]  # fmt: skip
    assert SMALL["D2"].judge(numbers).verdict is ClaimVerdict.UNDECIDED


def test_the_chirp_is_rougher_on_the_right() -> None:
    place = torch.linspace(0, 1, 1001, dtype=torch.float64)
    left, right = chirp(place).diff().abs().chunk(2)
    assert right.mean() > 3 * left.mean()


def test_d3_fails_where_answers_say_nothing_of_the_nearest_item() -> None:
    short = Budget(steps=60, batch=32, rates=(1e-1,), examples=512, held=64)
    claim = replace(SMALL["D3"], task=partial(Neighbours, shuffled=True), budget=short)
    assert verdict(claim) is ClaimVerdict.FAILS


def test_d3_names_the_scores_that_fall_short() -> None:
    numbers = deepcopy(measured("D3"))
    numbers["recall"]["bilinear"] = [0.6, 0.61, 0.6, 0.59]
    judgement = SMALL["D3"].judge(numbers)
    assert judgement.verdict is ClaimVerdict.CONDITIONS
    assert "bilinear 60%" in judgement.because.en
