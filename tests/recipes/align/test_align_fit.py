"""The aligner learns, saves, loads, resumes to the bit, starts as DTW itself, and works with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier

pytest.importorskip("aeon")
pytest.importorskip("tslearn")

from aeon.distances import dtw_distance, pairwise_distance

from regard import Additive, Gaussian
from regard.recipes import training
from regard.recipes.align import KIT, SeriesAligner
from regard.recipes.align.data import LeftOut, load, tasks
from regard.recipes.align.net import SQUARED, StepScore
from regard.recipes.align.warping import cost_distances, hard_path, resampled, soft_costs, soft_path
from regard.recipes.align.windows import left_out_accuracy
from regard.recipes.estimator import RecipeError
from regard.scores.lookup import SIZED

from ..killing import KillAtStep, Killed, same_weights

FAST = {"epochs": 4, "steps": 16, "batch": 12, "window": 0.2, "slope": 0.0, "rate": 0.05}
DISTANCES = [one for one in SIZED if one != "gat"]


def bumps(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two channels: a bump, up or down by the class, at any time; and noise that is ten times as loud."""
    draw = np.random.default_rng(seed)
    y = np.arange(count) % 2
    at = draw.uniform(6, 14, count)[:, None]
    shape = np.exp(-0.5 * ((np.arange(20) - at) / 2) ** 2) * np.where(y, 1, -1)[:, None]
    return np.stack([shape, draw.normal(0, 3, shape.shape)], 1), y


@pytest.fixture(scope="module")
def rows():
    return (*bumps(24, 0), *bumps(60, 1))


@pytest.fixture(scope="module")
def trained(rows):
    x, y, _, _ = rows
    return SeriesAligner(**FAST | {"epochs": 12}).fit(x, y)


def test_learns_which_channel_matters(rows, trained):
    x, y, test_x, test_y = rows
    start = SeriesAligner(learn=False, **FAST).fit(x, y).quality(test_x, test_y)
    assert trained.learned_ and trained.quality(test_x, test_y) > start + 10
    assert trained.history_.losses[-1] < trained.history_.losses[0]
    assert is_classifier(trained)


def test_without_learning_it_is_dtw_with_the_window_that_is_best_left_out():
    data = load("italypower", limit=40)
    model = SeriesAligner(learn=False, slope=0.0).fit_dataset(data)
    x, test = np.stack(data.train.x), np.stack(data.test.x[:100])
    near = pairwise_distance(test, x, method="dtw", window=model.window_).argmin(1)
    np.testing.assert_array_equal(model.predict(test), data.train.y[near])
    best = left_out_accuracy(
        pairwise_distance(x, method="dtw", window=model.window_), np.asarray(data.train.y)
    )
    assert model.score_part(data.validation) == pytest.approx(best)


@pytest.mark.parametrize("score", DISTANCES)
def test_cost_of_every_score_is_0_for_equal_steps_and_grows_with_a_difference(score):
    model = StepScore(1, score)
    x = torch.zeros(1, 3, 21)
    x[0, 0] = torch.linspace(-1, 1, 21)
    x[0, 2] = 1.0
    features = model(x)
    with torch.no_grad():
        costs = model.cost(features, features)[0]
    torch.testing.assert_close(costs, costs.T)
    torch.testing.assert_close(costs.diagonal(), torch.zeros(21), atol=1e-5, rtol=0)
    if score != "low_rank":  # its factors start at random, and may ignore the value
        assert (costs[10, 11:].diff() > 0).all()


@pytest.mark.parametrize("score", SQUARED)
def test_squared_costs_are_distances_of_points(score):
    torch.manual_seed(0)
    model = StepScore(2, score, 0.5, unit=3.0)
    model.shake()
    if score == "gaussian":
        model.score.log_factor.data.fill_(0.3)
    with torch.no_grad():
        x, y = (model(torch.randn(1, 5, n)) for n in (7, 9))
        apart = torch.cdist(model.points(x), model.points(y)).square()
        torch.testing.assert_close(model.cost(x, y), apart, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("window", [0.0, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("lengths", [(9, 9), (6, 11), (1, 5)])
def test_three_ways_to_the_cost_of_a_path_agree(window, lengths):
    """Aeon on series, tslearn on one matrix and our kernel on many are the same hard DTW."""
    torch.manual_seed(0)
    sides = [torch.randn(n, 3) for n in lengths]
    x, y = (one.T.double().numpy() for one in sides)
    wanted = dtw_distance(x, y, window=window)
    model = StepScore(1, "dot")
    with torch.no_grad():
        costs = 2 * model.cost(sides[0][None], sides[1][None])[0].double().numpy()
    assert hard_path(costs, window)[1] == pytest.approx(wanted, rel=1e-4)
    kernel = 2 * cost_distances(model, sides[:1], sides[1:], window)
    assert kernel[0, 0] == pytest.approx(wanted, rel=1e-4)
    soft = soft_costs(torch.tensor(costs[None], dtype=torch.float32), 1e-4, window)
    assert float(soft) == pytest.approx(wanted, rel=1e-2)


def test_soft_path_is_the_derivative_and_hardens_as_gamma_falls():
    draw = np.random.default_rng(0)
    costs, step = draw.uniform(size=(6, 8)), 1e-2
    soft = soft_path(costs, 1.0, 1.0)
    for cell in ((0, 0), (2, 3), (5, 7)):
        moved = [costs.copy(), costs.copy()]
        moved[0][cell] += step
        moved[1][cell] -= step
        up, down = (
            float(soft_costs(torch.tensor(one[None], dtype=torch.float32), 1.0, 1.0))
            for one in moved
        )
        assert soft[cell] == pytest.approx((up - down) / (2 * step), abs=2e-3)
    path, _ = hard_path(costs, 1.0)
    hard = np.zeros_like(costs)
    hard[tuple(path.T)] = 1
    np.testing.assert_allclose(soft_path(costs, 1e-3, 1.0), hard, atol=1e-3)


@pytest.mark.parametrize(
    "score", [*DISTANCES, None, Gaussian(0.5), Additive(10, bias=True)], ids=str
)
def test_every_score_trains_on_series_of_unequal_length(score):
    x = [np.sin(np.arange(n) / 3) * (1 + n % 2) for n in range(8, 20)]
    y = [n % 2 for n in range(8, 20)]
    if isinstance(score, Additive):  # as many hidden units as there are features
        score = Additive(3, bias=True)
    model = SeriesAligner(score, **FAST | {"epochs": 1}).fit(x, y)
    assert set(model.predict(x)) <= {0, 1}
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1)


def test_a_score_that_gives_no_cost_is_refused(rows):
    with pytest.raises(RecipeError, match=r"score='gat' gives no cost.*gatv2"):
        SeriesAligner("gat", **FAST).fit(*rows[:2])


def test_learned_costs_that_do_not_gain_are_dropped(rows):
    """A rate that throws the weights about leaves the start, whose predictions are those without learning."""
    x, _, test_x, _ = rows
    y = np.arange(24) % 3  # classes that the series do not have
    model = SeriesAligner(**FAST | {"rate": 1e-9}).fit(x, y)
    start = SeriesAligner(learn=False, **FAST).fit(x, y)
    assert model.history_.best_epoch >= 0
    if not model.learned_:
        np.testing.assert_array_equal(model.predict(test_x), start.predict(test_x))
        assert torch.equal(model.network.change, torch.zeros_like(model.network.change))


def test_saved_and_loaded_predicts_the_same(rows, trained, tmp_path):
    trained.save(tmp_path / "model.safetensors")
    again = SeriesAligner.load(tmp_path / "model.safetensors", device="cpu")
    np.testing.assert_array_equal(again.transform(rows[2]), trained.transform(rows[2]))
    np.testing.assert_array_equal(again.predict(rows[2]), trained.predict(rows[2]))


def test_a_killed_training_resumes_to_the_same_weights(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_PAUSE", 0.0)
    x, y, _, _ = rows
    model = SeriesAligner("additive", **FAST)
    whole = clone(model).fit(x, y)
    path = tmp_path / "checkpoint"
    with pytest.raises(Killed):
        clone(model).fit(x, y, checkpoint=path, progress=KillAtStep(5))
    assert path.exists()
    resumed = clone(model).fit(x, y, checkpoint=path)
    assert same_weights(whole, resumed)
    assert len(resumed.history_.losses) == FAST["epochs"]


def test_validation_rows_decide_where_they_are_given(rows):
    x, y, test_x, test_y = rows
    model = SeriesAligner(**FAST).fit(x, y, validation=(test_x, test_y))
    if model.learned_:
        assert model.history_.best == pytest.approx(model.quality(test_x, test_y), abs=2e-3)


def test_layouts_of_aeon_and_tslearn_give_the_same(rows):
    x, y, test_x, _ = rows
    one = SeriesAligner(learn=False, **FAST).fit(x, y)
    turned = SeriesAligner(learn=False, layout="tslearn", **FAST)
    turned.fit(x.transpose(0, 2, 1), y)
    np.testing.assert_array_equal(
        one.transform(test_x), turned.transform(test_x.transpose(0, 2, 1))
    )
    padded = np.full((2, 30, 2), np.nan)
    padded[0, :20], padded[1, :13] = test_x[0].T, test_x[1, :, :13].T
    want = one.transform([test_x[0], test_x[1, :, :13]])
    np.testing.assert_array_equal(turned.transform(padded), want)


def test_clone_keeps_every_argument():
    model = SeriesAligner("cosine", window=0.1, steps=32, normalize=True, layout="tslearn")
    assert clone(model).get_params() == model.get_params()


def test_the_archive_is_many_sets(monkeypatch):
    from regard.recipes.align import data as module

    monkeypatch.setattr(module, "ARCHIVED", ("gunpoint", "italypower"))
    found = load("ucr", limit=10)
    own = tasks(found)
    assert list(own) == ["gunpoint", "italypower"]
    np.testing.assert_array_equal(own["italypower"].test.y, load("italypower").test.y)
    assert isinstance(own["gunpoint"].validation, LeftOut) and len(own["gunpoint"].train) == 10
    with pytest.raises(RecipeError, match=r"ucr is many sets.*--set gunpoint"):
        SeriesAligner().fit_dataset(found)


def test_kit_arguments_build_for_every_set():
    for name in KIT.sets:
        KIT.estimator(**KIT.arguments(name)).check_arguments()  # type: ignore[attr-defined]


def test_resampling_keeps_ends_and_lines():
    line = torch.linspace(0, 9, 10)[:, None]
    torch.testing.assert_close(resampled(line, 4), torch.tensor([[0.0], [3.0], [6.0], [9.0]]))
    assert resampled(line, 10) is line
