"""Live data: the same scores as of the whole series, and the stated rate of false alarms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from regard.recipes.anomaly import AnomalyDetector, Stream
from regard.recipes.anomaly.judging import fitted, window_scores
from regard.recipes.anomaly.threshold import calibrated
from regard.recipes.anomaly.windows import standardised, to_points
from regard.recipes.estimator import RecipeError

from .test_anomaly_fit import SMALL, wave


@pytest.fixture(scope="module", params=["reconstruction", "forecast", "density"])
def detector(request) -> AnomalyDetector:
    given = SMALL | {"smooth": 5, "window": 12}
    return AnomalyDetector(reading=request.param, epochs=1, **given).fit(wave(channels=2))


def test_a_stream_gives_the_trailing_scores_of_the_whole_series(detector):
    x, live = wave(120, seed=5, channels=2), Stream(detector)
    answers = [live.add(point) for point in x]
    ready = standardised(x, detector.scale_)
    scores = window_scores(detector.model_, ready, fitted(detector.model_), None)
    wanted = to_points(scores, detector.window, 5, trailing=True)
    first = detector.window - 1
    assert all(math.isnan(one.score) and not one.alarm for one in answers[:first])
    np.testing.assert_allclose(
        [one.score for one in answers[first:]], wanted[first:], rtol=2e-4, atol=1e-6
    )
    assert [one.alarm for one in answers[first:]] == [
        one.score > detector.stream_threshold_ for one in answers[first:]
    ]


def test_a_spike_raises_an_alarm_as_it_comes(detector):
    live, quiet = Stream(detector), wave(60, seed=6, channels=2)
    for point in quiet:
        live.add(point)
    assert any(live.add([9.0, -9.0]).alarm for _ in range(5))


def test_the_detector_has_a_stream_of_its_own(detector):
    x = wave(30, seed=7, channels=2)
    own, apart = [detector.stream(point) for point in x], Stream(detector)
    other = [apart.add(point) for point in x]
    assert [one.score for one in own[11:]] == [one.score for one in other[11:]]


def test_a_training_again_begins_a_new_stream():
    model = AnomalyDetector(epochs=1, **SMALL).fit(wave())
    for value in wave(20)[:, 0]:
        last = model.stream(value)
    assert not math.isnan(last.score)
    model.fit(wave(seed=1))
    assert math.isnan(model.stream(0.0).score)


def test_gaps_take_the_last_value(detector):
    first, second = Stream(detector), Stream(detector)
    for n in range(20):
        a = first.add([1.0, 2.0] if n % 3 == 0 else [math.nan, 2.0])
        b = second.add([1.0, 2.0])
    assert a == b


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ([1.0], "2 numbers"),
        ([1.0, math.inf], "finite"),
        (["a", 1.0], "of numbers"),
        ([math.nan, 1.0], "first point"),
    ],
)
def test_points_that_cannot_be_scored_are_refused(detector, point, said):
    with pytest.raises(RecipeError, match=said):
        Stream(detector).add(point)


def test_the_rate_of_false_alarms_is_the_stated_one():
    """On fresh series of the same law, at once and live: the mean over five trainings is near the rate."""
    rate, batch, live = 0.05, [], []
    given = SMALL | {"keys": 256, "false_alarms": rate, "epochs": 1}
    for seed in range(5):
        model = AnomalyDetector(**given).fit(wave(3000, seed=seed))
        batch.append(model.predict(wave(3000, seed=100 + seed)).mean())
        stream = Stream(model)
        alarms = [stream.add(point).alarm for point in wave(1000, seed=200 + seed)]
        live.append(np.mean(alarms[model.window - 1 :]))
    assert 0.6 * rate < np.mean(batch) < 1.5 * rate
    assert 0.5 * rate < np.mean(live) < 1.7 * rate


def test_calibration_is_the_order_statistic_of_conformal_prediction():
    scores = np.arange(1.0, 100.0)
    assert calibrated(scores, 0.1) == 90.0 and calibrated(scores, 0.01) == 99.0
    with pytest.raises(RecipeError, match="needs 999 points"):
        calibrated(scores, 0.001)
    draw, above = np.random.default_rng(0), 0
    for _ in range(4000):
        sample = draw.normal(size=20)
        above += sample[-1] > calibrated(sample[:-1], 0.1)
    assert above / 4000 == pytest.approx(0.1, abs=0.015)
