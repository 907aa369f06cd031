"""Claims E1 and E4: times and memory of textbook forms and of ours. Times themselves are not tested."""

from copy import deepcopy
from dataclasses import replace

import pytest

from regard.claims import ClaimVerdict, Run
from regard.claims.experiments.e1_speed_of_additive import SpeedOfAdditive
from regard.claims.experiments.e4_quadratic_time import QuadraticTime
from regard.claims.tools import timing

from .checking import check_figure, from_disk


def short(length, width, generator):
    """The same forms on sequences of an eighth of the length."""
    return timing.passes(length // 8, width, generator)


def textbook(length, width, generator):
    """Ours is the textbook's after all."""
    forms = short(length, width, generator)
    return forms | {"additive": forms["textbook additive"]}


def times(**milliseconds):
    """Rounds that differ by a few percent, as on a quiet machine."""
    scatter = [1.0, 1.03, 0.97, 1.01, 0.99]
    return {name.replace("_", " "): [x * s for s in scatter] for name, x in milliseconds.items()}


TIMES = times(textbook_dot=10, dot=10, textbook_additive=700, additive=100, sine_additive=100)
PEAKS = {
    "textbook dot": 3e6, "dot": 1e6, "textbook additive": 2e8, "additive": 1e7, "sine additive": 1e7,
}  # fmt: skip


def test_e1_measures_every_form():
    numbers = from_disk(replace(SpeedOfAdditive(), forms=short).measure(Run()))
    assert set(numbers["seconds"]) == set(numbers["peak_bytes"]) == set(timing.WORDS)
    assert numbers["peak_bytes"]["textbook additive"] > 5 * numbers["peak_bytes"]["textbook dot"]
    check_figure(SpeedOfAdditive(), numbers)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ClaimVerdict.CONDITIONS),
        ({"additive": 15.0}, ClaimVerdict.CONDITIONS),  # its memory is not near that of dot
        ({"textbook_additive": 20.0}, ClaimVerdict.FAILS),  # not slow as taught
        ({"additive": 650.0}, ClaimVerdict.FAILS),  # not faster than as taught
    ],
)
def test_e1_can_come_out_otherwise(changed, expected):
    numbers = {"length": 512, "width": 64, "seconds": TIMES | times(**changed), "peak_bytes": PEAKS}
    assert SpeedOfAdditive().judge(numbers).verdict == expected


def test_e1_holds_where_ours_is_as_fast_and_lean_as_dot():
    numbers = {"length": 512, "width": 64, "seconds": TIMES | times(additive=15)}
    numbers["peak_bytes"] = PEAKS | {"additive": 1.5e6}
    assert SpeedOfAdditive().judge(numbers).verdict == ClaimVerdict.HOLDS


def test_e1_is_undecided_where_times_scatter_across_the_bar():
    noisy = {"textbook additive": [700.0, 20, 700, 15, 60]}
    numbers = {"length": 512, "width": 64, "seconds": TIMES | noisy, "peak_bytes": PEAKS}
    assert SpeedOfAdditive().judge(numbers).verdict == ClaimVerdict.UNDECIDED


def test_e4_memory_of_ours_is_not_quadratic_and_of_the_textbook_is():
    claim = QuadraticTime(width=4, quick=2048)
    numbers = from_disk(claim.measure(Run()))
    *_, taught, ours = claim.judge(numbers).facts
    assert taught.value > 1.7
    assert ours.value < 1.25
    check_figure(claim, numbers)


def test_e4_fails_where_ours_is_the_textbook():
    claim = QuadraticTime(forms=textbook, width=4)
    found = claim.judge(claim.measure(Run()))
    assert found.verdict == ClaimVerdict.FAILS
    assert found.facts[-1].value > 1.7


def power_laws(**exponents):
    """Numbers of E4 whose times and memory follow these exponents exactly, but for some scatter."""
    lengths = [512, 1024, 2048]
    seconds = {
        name: [[s * n**p for n, s in zip(lengths, row, strict=True)] for row in SCATTER]
        for name, (p, _) in exponents.items()
    }
    peaks = {name: [n**p for n in lengths] for name, (_, p) in exponents.items()}
    return {
        "lengths": dict.fromkeys(exponents, lengths), "width": 4,
        "seconds": {k.replace("_", " "): x for k, x in seconds.items()}, "peak_bytes": peaks,
    }  # fmt: skip


SCATTER = [[1.0, 1.02, 0.99], [0.98, 1.0, 1.01], [1.01, 0.99, 1.0]]
LAWS = {
    "textbook dot": (2.0, 2.0), "textbook additive": (2.1, 2.0),
    "dot": (1.9, 1.0), "additive": (2.0, 0.1), "sine additive": (2.0, 1.0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ClaimVerdict.HOLDS),
        ({"dot": (1.2, 1.0)}, ClaimVerdict.CONDITIONS),
        ({"additive": (2.0, 2.0)}, ClaimVerdict.FAILS),
        (dict.fromkeys(("textbook dot", "textbook additive"), (1.0, 2.0))
         | dict.fromkeys(("dot", "additive", "sine additive"), (1.0, 1.0)), ClaimVerdict.FAILS),
        ({"dot": (1.6, 1.0)}, ClaimVerdict.UNDECIDED),
    ],
)  # fmt: skip
def test_e4_can_come_out_otherwise(changed, expected):
    numbers = power_laws(**deepcopy(LAWS) | changed)
    assert QuadraticTime().judge(numbers).verdict == expected
