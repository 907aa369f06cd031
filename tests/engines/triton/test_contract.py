"""The contract on the engine `triton`, in Triton's interpreter: a chosen part of all cases.

A case takes about a second there, and the whole table hours. So masks, options and sizes are walked
in step, each list in a circle of its own: every mask, option and size comes for every form, in
combinations that differ from score to score.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from regard.testing import (
    DTYPES,
    MASKS,
    OPTIONS,
    SCORES,
    Call,
    Case,
    Sizes,
    check_case,
    check_hidden,
    poisoned,
)
from regard.testing.run import expect, measure, run_engine

pytestmark = pytest.mark.interpreted

# Lengths around the sides of tiles: 64 or 16 queries by 64 keys forward, 32 by 32 backward. Widths
# around 16, the hidden units summed at once, and around powers of 2, to which values are padded.
# Groups of heads whose keys and values are not shared alike, and operands that are broadcast.
BORDERS = [
    Sizes(2, 1, 1, 1, queries=7, keys=9, dim=3, value_dim=5),
    Sizes(1, 2, 1, 2, queries=1, keys=65, dim=3, value_dim=5),
    Sizes(1, 2, 2, 1, queries=15, keys=31, dim=1, value_dim=1),
    Sizes(1, 2, 1, 1, queries=16, keys=33, dim=2, value_dim=40),
    Sizes(1, 1, 1, 1, queries=17, keys=63, dim=15, value_dim=65),
    Sizes(
        2, 1, 1, 1, queries=31, keys=16, dim=3, value_dim=5, shared_keys=True, shared_values=True
    ),
    Sizes(1, 1, 1, 1, queries=33, keys=15, dim=17, value_dim=130),
    Sizes(1, 1, 1, 1, queries=63, keys=17, dim=33, value_dim=1),
    Sizes(1, 1, 1, 1, queries=65, keys=2, dim=16, value_dim=5),
    Sizes(1, 1, 1, 1, queries=3, keys=130, dim=2, value_dim=300),
    Sizes(1, 1, 1, 1, queries=130, keys=1, dim=2, value_dim=5),
    Sizes(2, 1, 1, 1, queries=17, keys=32, dim=2, value_dim=16, shared_queries=True),
    Sizes(1, 6, 2, 3, queries=2, keys=5, dim=2, value_dim=5),
    Sizes(
        2, 2, 2, 2, queries=16, keys=4, dim=3, value_dim=64, shared_queries=True, shared_keys=True
    ),
]
# How many cases of each score in each dtype.
COUNTS = {
    "fp32": {
        "additive": 14,
        "additive bias norm": 3,
        "gatv2": 6,
        "soft capped gatv2": 3,
        "scaled_dot": 18,
        "gaussian": 5,
    },
    "fp64": {"additive": 2, "gatv2": 1, "scaled_dot": 2},
    "fp16": {"additive": 4, "gatv2": 1, "scaled_dot": 2, "gaussian": 1},
    "bf16": {"additive": 2, "scaled_dot": 1},
}


def in_step(score: str, dtype: str, start: int) -> Iterator[Case]:
    """Cases of one score without end, from place `start` of each list on."""
    row = SCORES[score]
    lists = [itertools.islice(itertools.cycle(x), start, None) for x in (MASKS, OPTIONS, BORDERS)]
    for mask, option, sizes in zip(*lists, strict=True):
        case = Case(row, DTYPES[dtype], mask, option, sizes)
        if row.softcap is None or "softcap" not in Call(case).options:
            yield case


def chosen() -> list:
    """The cases of `COUNTS`, named for pytest; each score starts where the one before ended."""
    found, start = [], 0
    for dtype, counts in COUNTS.items():
        for score, count in counts.items():
            for case in itertools.islice(in_step(score, dtype, start), count):
                shape = "x".join(str(n) for n in case.sizes[:8])
                name = f"{score}, {dtype}, {case.mask}, {case.option}, {shape}"
                found.append(pytest.param(case, id=name))
            start += count
    return found


def hold(case: Case) -> None:
    """All statistics and gradients; few queries also without statistics, by a kernel of their own."""
    expected = expect(case)  # outside, so that only the engine meets the poison
    with poisoned():
        report = check_case(case, "triton")
        if case.sizes.queries < 16 and case.score.form == "pairwise":
            found = run_engine(expected.inputs, "triton", (), True, "cpu")
            report.add("triton", case, measure(expected, found))
    report.raise_failures()
    assert report.served


@pytest.mark.parametrize("case", chosen())
def test_contract(case):
    hold(case)


def test_every_mask_option_and_size_is_met_by_both_forms():
    cases = [param.values[0] for param in chosen()]
    for form in ("pairwise", "inner"):
        met = [case for case in cases if case.score.form == form]
        assert {case.mask for case in met} == set(MASKS)
        assert {case.option for case in met} == set(OPTIONS)
        assert {case.sizes for case in met} == set(BORDERS)


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("score", ["additive", "scaled_dot"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_every_option_under_some_masks(score, option, dtype):
    for mask in ("none", "causal & lengths", "segments padded", "dense empty rows"):
        hold(Case(SCORES[score], DTYPES[dtype], mask, option, BORDERS[5]))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", BORDERS, ids=str)
@pytest.mark.parametrize("score", ["additive", "soft capped gatv2", "gaussian"])
def test_every_size_under_some_masks(score, sizes):
    for mask in ("none", "causal & window & dense", "first blocks hidden"):
        hold(Case(SCORES[score], DTYPES["fp32"], mask, "plain", sizes))


@pytest.mark.slow
@pytest.mark.parametrize("score", SCORES)
def test_every_score(score):
    for dtype in DTYPES:
        hold(Case(SCORES[score], DTYPES[dtype], "causal & lengths", "sink", BORDERS[5]))


@pytest.mark.slow
@pytest.mark.parametrize("score", ["additive", "gaussian", "gatv2", "scaled_dot"])
def test_nan_in_padding_changes_nothing(score):
    assert check_hidden(SCORES[score], "triton") == []
