"""Claim H4: translation with and without attention, and that its verdict can come out otherwise."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

pytest.importorskip("babel")
pytest.importorskip("tokenizers")

from regard.claims import ClaimVerdict, Run
from regard.claims.experiments.h4_translation import (
    CONTROL,
    NAMES,
    AlignedTranslation,
    by_length,
    decide,
    digit_pairs,
    summary,
    trace,
)

from .checking import check_figure, from_disk

TINY = {"epochs": 1, "width": 16, "encoder_width": 16, "vocabulary": 80}
SMALL = AlignedTranslation(quick=TINY, rows=(60, 60), tested=40)


@pytest.fixture(scope="module")
def numbers():
    told = []
    found = from_disk(SMALL.measure(Run(tell=told.append)))
    assert told == sorted(told) and told[-1] == pytest.approx(1)
    return found


def test_it_measures_both_and_the_control_and_draws(numbers):
    assert set(numbers["right"]) == {*NAMES, CONTROL} and set(numbers["digits"]) == set(NAMES)
    assert all(len(own["all"]) == 2 for own in numbers["right"].values())
    assert numbers["train"] == 60 and numbers["test"] == 40
    assert set(numbers["pictures"]) == set(NAMES)
    for picture in numbers["pictures"].values():
        shape = (len(picture["target"]), len(picture["source"]))
        assert np.array(picture["weights"]).shape == shape
    check_figure(SMALL, numbers)
    # Networks that learned nothing are all equally wrong, so none is shown to be ahead.
    found = SMALL.judge(numbers)
    assert found.verdict is not ClaimVerdict.HOLDS
    leads = [one for one in found.facts if one.label.en.endswith("over no attention")]
    assert len(leads) == 2 and all(one.low <= 0 for one in leads)


def made_up(ahead: float = 20.0, long: float = 5.0, hit: float = 90.0, mass: float = 80.0):
    """Numbers of two seeds in which all parts of the criterion are as given."""
    control = {"all": [50.0, 51.0], "short": [50.0, 51.0], "long": [50.0, 51.0]}

    def right():
        return {
            "all": [x + ahead for x in control["all"]],
            "short": [x + ahead for x in control["short"]],
            "long": [x + ahead + long for x in control["long"]],
        }

    one = {"mass": mass, "uniform": 8.0, "hit": hit, "digits": 100}
    digits = {part: [dict(one), dict(one)] for part in ("year", "day")}
    return {
        "right": {name: right() for name in NAMES} | {CONTROL: control},
        "digits": {name: copy.deepcopy(digits) for name in NAMES},
    }


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({}, ClaimVerdict.HOLDS),
        ({"ahead": -5.0}, ClaimVerdict.FAILS),
        ({"mass": 5.0}, ClaimVerdict.FAILS),
        ({"hit": 20.0}, ClaimVerdict.CONDITIONS),
        ({"long": -3.0}, ClaimVerdict.CONDITIONS),
    ],
)
def test_the_verdict_follows_the_criterion(given, verdict):
    found = SMALL.judge(made_up(**given))
    assert found.verdict == verdict
    assert (verdict == ClaimVerdict.HOLDS) != found.because.en.startswith("Not true here")


def test_one_of_the_two_is_a_condition_and_wide_intervals_decide_nothing():
    one = made_up()
    one["right"]["luong"] = {name: list(own) for name, own in one["right"][CONTROL].items()}
    one["right"]["luong"]["all"] = [40.0, 41.0]
    found = SMALL.judge(one)
    assert found.verdict == ClaimVerdict.CONDITIONS
    assert (
        "Luong (bilinear) is not ahead" in found.because.en and "Bahdanau" not in found.because.en
    )
    # A network that is behind everywhere has no lead that could be larger on long inputs.
    assert "lead of Luong" not in found.because.en
    assert all(one.low >= 0 and one.high <= 100 for one in found.facts if one.unit == "%")
    wide = made_up()
    wide["right"]["bahdanau"]["long"] = [30.0, 90.0]
    found = SMALL.judge(wide)
    assert found.verdict == ClaimVerdict.UNDECIDED
    assert found.because.en == (
        "More seeds are needed to decide whether the lead of Bahdanau (additive) is larger on long inputs."
    )
    assert "判定" in found.because.zh


def test_what_is_open_is_said_beside_what_is_not_true():
    parts = {name: dict.fromkeys(NAMES, True) for name in ("ahead", "long", "weight", "points")}
    parts["points"]["luong"], parts["long"]["luong"] = False, None
    verdict, because = decide(parts)
    assert verdict == ClaimVerdict.CONDITIONS
    assert because.en.index("mostly on another piece") < because.en.index("More seeds")


def test_digits_are_traced_to_the_pieces_that_they_come_from():
    source = ["▁di", "en", ",", "▁", "4", ".", "▁juli", "▁", "2", "0", "2", "8", "<eos>"]
    target = ["▁", "2", "0", "2", "8", "-", "0", "7", "-", "0", "4", "<eos>"]
    assert digit_pairs(source, target, "2028-07-04") == [
        ("year", 1, 8), ("year", 2, 9), ("year", 3, 10), ("year", 4, 11), ("day", 10, 4),
    ]  # fmt: skip
    two = [*source[:4], "1", "4", *source[5:]]
    assert digit_pairs(two, target, "2028-07-14")[-1] == ("day", 10, 5)
    in_digits = ["▁", "4", ".", "▁", "7", ".", "▁", "2", "0", "2", "8", "<eos>"]
    assert digit_pairs(in_digits, target, "2028-07-04") == [], "4 or 7 may be the day"
    assert digit_pairs(source, target[:4], "2028-07-04") == []


class Pointing:
    """A translator whose weights are on one place for each step."""

    def __init__(self, places: dict[int, int]) -> None:
        self.places = places

    def attend(self, sentence: str):
        source = ["▁", "4", ".", "▁juli", "▁", "2", "0", "2", "8", "<eos>"]
        target = ["▁", "2", "0", "2", "8", "-", "0", "7", "-", "0", "4", "<eos>"]
        weights = torch.full((len(target), len(source)), 0.05)
        for step, place in self.places.items():
            weights[step, place] = 0.55
        return source, target, weights


def test_hits_and_weights_are_those_of_the_right_pieces():
    rows = ["4. Juli 2028"] * 3, ["2028-07-04"] * 3
    right = {1: 5, 2: 6, 3: 7, 4: 8, 10: 1}
    for places, hit, mass in ((right, 100.0, 55.0), (dict.fromkeys(right, 9), 0.0, 5.0)):
        found = trace(Pointing(places), *rows, np.array([True, False, True]), 5)
        one = summary(found["year"])
        assert one["digits"] == 8 and summary(found["day"])["digits"] == 2
        assert (one["hit"], one["mass"], one["uniform"]) == pytest.approx((hit, mass, 10.0))
    none = trace(Pointing(right), *rows, np.array([False] * 3), 5)
    assert summary(none["year"]) == {"mass": 0.0, "uniform": 0.0, "hit": 0.0, "digits": 0}
    assert summary(trace(Pointing(right), *rows, np.array([True] * 3), 1)["day"])["digits"] == 1


def test_the_shorter_half_has_the_median():
    good, lengths = np.array([True, False, False, True]), np.array([3, 5, 5, 9])
    assert by_length(good, lengths) == pytest.approx({"all": 50, "short": 100 / 3, "long": 100})


@pytest.mark.slow
def test_a_quick_run_sees_that_additive_attention_is_ahead():
    numbers = from_disk(AlignedTranslation().measure(Run()))
    right = numbers["right"]
    assert min(right["bahdanau"]["all"]) > max(right[CONTROL]["all"]) + 20
    assert all(one["hit"] > 50 for one in numbers["digits"]["bahdanau"]["year"])
