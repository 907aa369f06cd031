"""Every score on every quick engine, mask, option and dtype: refusals, errors and gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch

import regard
from regard import stabilize
from regard.testing import (
    DTYPES,
    QUICK_ENGINES,
    SCORES,
    Call,
    Case,
    Report,
    check_cases,
    check_derivatives,
    check_hidden,
    check_sides,
    expected_support,
)

STATISTICS = ("lse", "entropy", "weights")


def on_cuda(test: Callable[..., None]) -> Callable[..., None]:
    """A test for a GPU; its first backward there warns that it makes the context itself."""
    return pytest.mark.gpu(pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")(test))


def hold(score: str, dtype: str, **options) -> None:
    """All engines in one test: they are measured against the same run of the textbook."""
    report = Report()
    for engine in QUICK_ENGINES:
        report.merge(check_cases(SCORES[score], engine, DTYPES[dtype], **options))
    report.raise_failures()
    assert report.served and report.refused


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", SCORES)
def test_contract(score: str, dtype: str) -> None:
    """Every mask alone, every option under a mask, and in fp32 lengths around a tile's."""
    hold(score, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", SCORES)
def test_contract_in_full(score: str, dtype: str) -> None:
    """Every mask with every option, and all lengths in every dtype."""
    hold(score, dtype, thorough=True)


@on_cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", SCORES)
def test_contract_on_cuda(score: str, dtype: str) -> None:
    """The cpu engine takes part too: it has to refuse."""
    hold(score, dtype, device="cuda")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", SCORES)
def test_sides_lowered_apart_give_the_same_logits(score: str, dtype: str) -> None:
    assert check_sides(SCORES[score], DTYPES[dtype]) == []


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("score", SCORES)
def test_derivatives_match_difference_quotients(score: str, engine: str) -> None:
    """First and second derivatives, in fp64."""
    assert check_derivatives(SCORES[score], engine, second=True) == []


def hidden_cases(device: str) -> list[tuple[str, str, bool]]:
    """(score, engine, whether statistics are asked for) of all that should be served."""
    return [
        (name, engine, bool(want))
        for name, row in SCORES.items()
        for engine in QUICK_ENGINES
        for want in (STATISTICS, ())
        if expected_support(engine, Call(Case(row), want, device=device))
    ]


@pytest.mark.parametrize(("score", "engine", "statistics"), hidden_cases("cpu"))
def test_nan_in_padding_changes_nothing(score: str, engine: str, statistics: bool) -> None:
    assert check_hidden(SCORES[score], engine, statistics=statistics) == []


@on_cuda
@pytest.mark.parametrize(("score", "engine", "statistics"), hidden_cases("cuda"))
def test_nan_in_padding_changes_nothing_on_cuda(score: str, engine: str, statistics: bool) -> None:
    assert check_hidden(SCORES[score], engine, statistics=statistics, device="cuda") == []


def test_every_score_of_the_library_is_under_contract() -> None:
    """A score that is exported but missing from the table would be tested by nobody."""
    public = [
        kind
        for module in (regard, stabilize)
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, regard.Score)
    ]
    abstract = {regard.Score, regard.InnerScore, regard.PairwiseScore, stabilize.Stabilized}
    built = [row.make(regard.testing.SIZES["tiny"]) for row in SCORES.values()]
    used = {type(part) for score in built for part in score.modules()}
    assert set(public) - abstract - used == set()


def test_building_a_score_leaves_the_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    SCORES["bilinear"].make(regard.testing.SIZES["tiny"], seed=5)
    assert torch.equal(torch.rand(3), expected)
