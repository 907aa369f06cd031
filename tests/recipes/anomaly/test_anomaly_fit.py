"""The detector learns, saves, loads, resumes to the bit, and works with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from regard import Additive
from regard.recipes import training
from regard.recipes.anomaly import KIT, AnomalyDetector, load, planted
from regard.recipes.anomaly.net import READINGS
from regard.recipes.estimator import RecipeError
from regard.scores.lookup import SIZED

from ..killing import KillAtStep, Killed, same_weights

SMALL = {
    "window": 16,
    "width": 8,
    "keys": 64,
    "batch": 32,
    "smooth": 1,
    "false_alarms": 0.05,
    "device": "cpu",
}


def wave(length: int = 400, seed: int = 0, channels: int = 1) -> np.ndarray:
    """A sine with noise in each channel (T, C)."""
    draw = np.random.default_rng(seed)
    places = np.arange(length)[:, None] / 25 + np.arange(channels)
    return np.sin(2 * np.pi * places) + 0.1 * draw.normal(size=(length, channels))


@pytest.fixture(scope="module")
def trained() -> AnomalyDetector:
    return AnomalyDetector(epochs=2, **SMALL).fit(wave())


def test_learns_to_explain_windows_and_finds_the_anomaly():
    data = load()
    model = AnomalyDetector(**KIT.arguments("kdd"), device="cpu").fit_dataset(data)
    history = model.history_
    assert history.best > history.validations[0][1], "the residual falls"
    (found,) = model.statistics(data.test.x, data.test.y)
    assert found[0] > 0.8, "random scores have 0.002"
    (alarms,) = model.predict(data.test.x)
    assert alarms[data.test.y[0] == 1].any() and alarms.mean() < 0.02


@pytest.mark.parametrize("kind", ["spike", "shift", "frequency"])
def test_every_planted_anomaly_is_ranked_above_the_rest(kind):
    model = AnomalyDetector(epochs=2, **SMALL).fit(wave(800))
    x, y = planted(wave(800, seed=1), kind, 3.0, 32, seed=2)
    assert model.quality(x, y) > 10 * y.mean()
    assert model.score(x, y) == model.quality(x, y)


def test_equal_weights_do_not_learn_and_scores_of_a_constant_are_zero():
    model = AnomalyDetector("mean", epochs=2, **SMALL).fit(wave())
    losses = model.history_.losses
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    constant = AnomalyDetector(epochs=1, **SMALL).fit(np.full(200, 7.0))
    assert np.abs(constant.point_scores(np.full(200, 7.0))).max() < 1e-9
    assert not constant.predict(np.full(200, 7.0)).any()


def test_a_window_never_attends_to_one_that_shares_points_with_it(trained):
    found = trained.attend(wave(), 100)
    near = np.abs(found.places - 100) < trained.window
    assert near.any() and found.weights[near].max() == 0
    assert found.weights.sum() == pytest.approx(1, abs=1e-5)
    shown = (((found.expected - found.window) / wave().std()) ** 2).mean()
    assert found.residual.mean() == pytest.approx(shown, rel=1e-3), "that of what is shown"
    expected = np.tensordot(found.weights, found.others, 1)
    np.testing.assert_allclose(found.expected, expected)


def test_a_series_of_the_training_is_recognised_and_does_not_find_itself(trained, tmp_path):
    own = trained.point_scores(wave())
    assert trained.point_scores(wave() + 1e-9).mean() < own.mean()
    trained.save(tmp_path / "model")
    again = AnomalyDetector.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(again.point_scores(wave()), own)
    assert (own > trained.threshold_).mean() == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("asking", ["context", "global"])
@pytest.mark.parametrize("memory", ["own", "fitted"])
def test_every_reading_saves_and_loads_to_the_same_scores(reading, asking, memory, tmp_path):
    options = {"reading": reading, "asking": asking, "memory": memory, "heads": 2}
    model = AnomalyDetector(epochs=1, **options, **SMALL).fit(wave(channels=2))
    x = wave(seed=3, channels=2)
    found = model.point_scores(x)
    assert found.shape == (400,) and np.isfinite(found).all() and found.std() > 0
    model.save(tmp_path / "model")
    again = AnomalyDetector.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(again.point_scores(x), found)
    assert (again.threshold_, again.stream_threshold_) == (
        model.threshold_,
        model.stream_threshold_,
    )


@pytest.mark.parametrize("score", [*SIZED, None, "mean", Additive(8, 1)], ids=str)
def test_every_score_trains(score):
    model = AnomalyDetector(score, epochs=1, **SMALL).fit(wave(200))
    assert np.isfinite(model.point_scores(wave(200))).all()


def test_several_series_are_scored_one_by_one(trained):
    first, second = wave(seed=1), wave(300, seed=2)
    each = trained.point_scores([first, second])
    np.testing.assert_array_equal(each[0], trained.point_scores(first))
    np.testing.assert_array_equal(each[1], trained.point_scores(second))
    assert [one.shape for one in trained.predict([first, second])] == [(400,), (300,)]


def test_labels_have_no_part_in_the_training():
    x, y = planted(wave(), "spike", 4.0, 16, seed=0)
    with_labels = AnomalyDetector(epochs=1, **SMALL).fit(x, y, validation=(x, y))
    without = AnomalyDetector(epochs=1, **SMALL).fit(x, None, validation=(x, None))
    assert same_weights(with_labels, without)


def test_a_killed_training_resumes_to_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_PAUSE", 0.0)
    model, path = AnomalyDetector(epochs=3, **SMALL), tmp_path / "checkpoint"
    whole = clone(model).fit([wave(), wave(300, seed=1)])
    with pytest.raises(Killed):
        clone(model).fit([wave(), wave(300, seed=1)], checkpoint=path, progress=KillAtStep(70))
    resumed = clone(model).fit([wave(), wave(300, seed=1)], checkpoint=path)
    assert same_weights(whole, resumed) and whole.threshold_ == resumed.threshold_


def test_clone_keeps_every_argument():
    model = AnomalyDetector("additive", reading="forecast", window=20, smooth=5, false_alarms=0.2)
    assert clone(model).get_params() == model.get_params()


def test_a_score_object_is_refused_by_save_with_a_reason(tmp_path):
    model = AnomalyDetector(Additive(8, 1), epochs=1, **SMALL).fit(wave(200))
    with pytest.raises(RecipeError, match="score="):
        model.save(tmp_path / "model")


def test_a_file_that_does_not_fit_its_arguments_is_refused(trained):
    facts = trained.learned()
    with pytest.raises(RecipeError, match="windows are kept"):
        AnomalyDetector(keys=4).restore(facts)
    with pytest.raises(RecipeError, match="scale"):
        AnomalyDetector().restore(facts | {"scale": [[0.0], [0.0]]})


def test_kit_arguments_build_for_every_set():
    for name in KIT.sets:
        AnomalyDetector(**KIT.arguments(name)).check_arguments()
