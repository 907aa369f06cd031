"""Bad input of the detector and of its command line: defined behaviour, or one clear error."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from regard.recipes.anomaly import AnomalyDetector
from regard.recipes.anomaly.kit import read, write
from regard.recipes.anomaly.series import checked_series
from regard.recipes.estimator import RecipeError

from .test_anomaly_fit import SMALL, wave

TIMES = pd.date_range("2026-01-01", periods=400, freq="h")


@pytest.fixture(scope="module")
def trained() -> AnomalyDetector:
    return AnomalyDetector(epochs=1, **SMALL).fit(wave())


@pytest.mark.parametrize(
    ("x", "said"),
    [
        ([], "empty"),
        (np.zeros((0, 1)), "empty"),
        (np.zeros((5, 0)), "empty"),
        (np.zeros((4, 4, 4)), "points, channels"),
        (["a", "b"], "of numbers"),
        (np.array([1.0, np.inf] * 40), "inf at point 1"),
        (np.full(80, np.nan), "no number in channel 0"),
        (np.zeros(20), "fewer than the 48 that window=16 needs"),
        ([wave(100), wave(100, channels=2)], "2 channels"),
        (pd.Series(wave()[:, 0], TIMES[::-1]), "does not ascend"),
        (pd.Series(wave()[:, 0], TIMES[:200].append(TIMES[:200]).sort_values()), "twice"),
    ],
    ids=str,
)
def test_series_that_cannot_be_used_are_refused(x, said):
    with pytest.raises(RecipeError, match=said):
        AnomalyDetector(epochs=1, **SMALL).fit(x)


def test_gaps_are_filled_along_a_line_with_a_warning():
    x = np.arange(100.0)
    x[[0, 40, 41, 99]] = np.nan
    with pytest.warns(UserWarning, match="lacks 4 of 100 values"):
        (found,) = checked_series(x)
    np.testing.assert_allclose(found[:, 0], np.clip(np.arange(100.0), 1, 98))


@pytest.mark.parametrize(
    "form", [list, tuple, torch.tensor, pd.Series, lambda x: pd.Series(x, TIMES)]
)
def test_a_series_may_come_in_any_form(form, trained):
    x = wave(seed=9)[:, 0]
    found = trained.point_scores(form(x.tolist()))
    np.testing.assert_allclose(found, trained.point_scores(x), rtol=1e-4)  # a tensor is float32


def test_a_frame_has_a_channel_in_each_column():
    x = wave(channels=2)
    model = AnomalyDetector(epochs=1, **SMALL).fit(pd.DataFrame(x, index=TIMES))
    np.testing.assert_array_equal(model.point_scores(x), model.point_scores(pd.DataFrame(x)))
    with pytest.raises(RecipeError, match="1 channels, those of the training have 2"):
        model.point_scores(x[:, 0])


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (None, "missing"),
        (np.zeros(399), "400 points"),
        (np.full(400, 2), "0 or 1"),
        (np.zeros(400), "no anomaly among its 400"),
        (np.ones(400), "nothing but anomalies"),
        (np.full(400, -1), "no anomaly|nothing"),
    ],
    ids=["none", "short", "two", "calm", "all", "unjudged"],
)
def test_labels_that_say_nothing_are_refused(trained, y, said):
    with pytest.raises(RecipeError, match=said):
        trained.score(wave(), y)


def test_labels_of_another_number_of_series_are_refused(trained):
    with pytest.raises(RecipeError, match="labels of 1 series, x has 2"):
        trained.score([wave(), wave()], [np.zeros(400)])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reading": "guess"}, "reading must be one of"),
        ({"asking": "none"}, "asking must be one of"),
        ({"memory": "all"}, "memory must be one of"),
        ({"window": 1}, "window must be an integer of 2 or more"),
        ({"window": 16.0}, "window must be"),
        ({"false_alarms": 0}, "false_alarms must be between 0 and 1"),
        ({"false_alarms": 1e-5}, "points to calibrate on"),
        ({"smooth": 0}, "smooth"),
        ({"keys": 0}, "keys"),
        ({"heads": 0}, "heads"),
        ({"epochs": 0}, "epochs"),
        ({"score": "gausian"}, "did you mean 'gaussian'"),
    ],
    ids=str,
)
def test_arguments_that_cannot_work_are_named(given, said):
    with pytest.raises(RecipeError, match=said):
        AnomalyDetector(**SMALL | {"epochs": 1} | given).fit(wave())


def test_a_window_outside_of_the_series_is_refused(trained):
    with pytest.raises(RecipeError, match="start must be 0 to 384"):
        trained.attend(wave(), 385)


def test_lines_are_points_with_or_without_times_and_a_header():
    np.testing.assert_array_equal(read(["1", "2.5", "-3e2"]), [[1], [2.5], [-300]])
    np.testing.assert_array_equal(read(["a,b", "1,2", "", "3,4"]), [[1, 2], [3, 4]])
    timed = [
        "time,value",
        "2026-01-01 00:00:00,1",
        "2026-01-01 00:05:00,nan",
        "2026-01-01T00:10:00,",
    ]
    np.testing.assert_array_equal(read(timed), [[1], [np.nan], [np.nan]])
    assert write(read(["1", "2"]), np.array([0, 1])) == ["0\t0", "1\t1"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "empty"),
        (["value"], "empty"),
        (["1,2", "3"], "line 2 has 1 numbers, line 1 has 2"),
        (["1", "two"], "line 2: 'two' is no number"),
        (["2026-01-02,1", "2026-01-01,2"], "line 2 has an earlier time"),
        (["2026-01-02,1", "2026-01-02,2"], "line 2 has the same time"),
        (["2026-01-02,1", "soon,2"], "line 2: 'soon' is no time"),
        (["2026-01-02T00:00+00:00,1", "2026-01-03,2"], "time zone"),
        (["2026-01-02", "2026-01-03"], "0 numbers"),
    ],
    ids=str,
)
def test_lines_that_are_no_series_are_refused(lines, said):
    with pytest.raises(RecipeError, match=said):
        read(lines)
