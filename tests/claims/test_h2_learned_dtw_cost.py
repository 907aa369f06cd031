"""Claim H2: a cost for DTW that is learned, and that its verdict can come out otherwise."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("aeon")
pytest.importorskip("tslearn")

from regard.claims import ClaimVerdict, Run
from regard.claims.experiments.h2_learned_dtw_cost import (
    SCORES,
    STAGES,
    STEPS,
    LearnedWarpingCost,
    off,
    truth,
)

from .checking import check_figure, from_disk

SMALL = LearnedWarpingCost(
    train_rows=(16, 16), pairs=(4, 4), epochs=(5, 5), seed_counts=(2, 2), classes=2
)


@pytest.fixture(scope="module")
def numbers():
    shares = []
    found = from_disk(SMALL.measure(Run(tell=shares.append)))
    assert shares[-1] == 1.0 and shares == sorted(shares)
    return found


def test_it_measures_every_score_before_and_after_and_draws(numbers):
    for part in ("lag", "path"):
        assert set(numbers[part]) == set(SCORES)
        assert all(len(own[stage]) == 2 for own in numbers[part].values() for stage in STAGES)
    check_figure(SMALL, numbers)


def test_learning_helps_already_after_a_short_training(numbers):
    for own in numbers["path"].values():
        assert np.mean(own["learned"]) < np.mean(own["start"])


def test_without_learning_it_does_not_hold():
    """A rate of almost 0 leaves every path where it was."""
    still = replace(SMALL, arguments={**SMALL.arguments, "rate": 1e-12})
    found = still.judge(still.measure(Run()))
    assert found.verdict != ClaimVerdict.HOLDS
    assert "learning brings the path nearer" in found.because.en


def test_without_other_channels_nothing_has_to_be_learned():
    """Plain DTW finds the alignment where every channel that varies counts."""
    calm = replace(SMALL, walks=1e-6, noise=0.02)
    found = calm.measure(Run())
    assert max(found["path"]["scaled_dot"]["start"]) < 1
    assert min(found["lag"]["scaled_dot"]["start"]) == 100


def test_the_true_alignment_of_a_series_with_itself_is_the_diagonal():
    draw = np.random.default_rng(0)
    one = SMALL.warped(SMALL.templates(draw), 4, draw)
    same = one._replace(time=one.time[[0, 0]])
    inner = slice(2, -2)  # at the ends time may stand still
    np.testing.assert_allclose(truth(same)[inner], np.arange(STEPS)[inner])
    flat = np.stack([np.arange(STEPS)] * 2, 1)
    assert off(flat, same) < 0.2
    assert (np.diff(one.time, axis=1) >= 0).all()


def made_up(lag=99.0, path=1.0, start=4.0, wide=0.1):
    """Numbers of five seeds, all near what is given; `wide` is the spread of the paths before learning."""
    near = np.linspace(-0.5, 0.5, 5)
    return {
        "lag": {k: {"start": [10.0] * 5, "learned": (lag + near).tolist()} for k in SCORES},
        "path": {
            k: {"start": (start + wide * near).tolist(), "learned": (path + near / 10).tolist()}
            for k in SCORES
        },
        "diagonal": [2.0] * 5,
    }


@pytest.mark.parametrize(
    ("given", "verdict", "said"),
    [
        ({}, ClaimVerdict.HOLDS, "With every score the lag is found"),
        (
            {"lag": 60.0},
            ClaimVerdict.CONDITIONS,
            "the energy is least at the true lag (dot, cosine",
        ),
        ({"path": 3.0}, ClaimVerdict.CONDITIONS, "the path is the true alignment (dot"),
        ({"lag": 90.1}, ClaimVerdict.UNDECIDED, "Not decided: the energy is least"),
        ({"start": 1.0, "wide": 9.0}, ClaimVerdict.UNDECIDED, "Not decided: learning brings"),
        ({"start": 0.5}, ClaimVerdict.FAILS, "Not true here: learning brings the path nearer"),
    ],
)
def test_every_verdict_can_be_reached(given, verdict, said):
    found = SMALL.judge(made_up(**given))
    assert found.verdict == verdict and said in found.because.en
    assert found.because.zh
