"""Bad input has one clear error or a defined result: shapes, gaps, constant and short series, arguments, files."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.text import Text as MplText
from sklearn.exceptions import NotFittedError

pytest.importorskip("aeon")
pytest.importorskip("tslearn")

from regard.recipes import catalog
from regard.recipes.align import KIT, SeriesAligner, align, load
from regard.recipes.align.contenders import mean_over_sets
from regard.recipes.align.data import PUBLIC, in_turn
from regard.recipes.align.series import checked_series, normalized
from regard.recipes.estimator import RecipeError
from regard.recipes.sources import DataError
from regard.text import LANGUAGES

NAN = float("nan")
X = [np.sin(np.arange(n) / 2) * (1 + n % 2) for n in range(6, 14)]
Y = [n % 2 for n in range(6, 14)]


def small(**more) -> SeriesAligner:
    return SeriesAligner(**{"epochs": 1, "steps": 8, "window": 0.3, "slope": 0.0} | more)


@pytest.fixture(scope="module")
def model():
    return small().fit(X, Y)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        ("abc", "x must be an array"),
        ({"a": [1.0]}, "x must be an array"),
        (3.0, "x must be an array"),
        ([1.0, 2.0, 3.0], "single series: put it into a list"),
        ([[1.0, NAN, 2.0]], r"series 0 has a gap \(NaN\) at step 1: fill gaps first"),
        ([[1.0], [1.0, float("inf")]], "series 1 has an infinite value at step 1"),
        ([[1.0], []], "series 1 is empty"),
        ([["a", "b"]], "series 0 must be numbers"),
        ([[[[1.0]]]], "1 or 2 dims"),
        (
            [[[1.0, 2.0]], [[1.0], [2.0]]],
            r"series 1 has 2 channels, expected 1: .*layout='tslearn'",
        ),
        ([np.zeros((2, 5))], "series 0 has 2 channels, expected 1"),
    ],
)
def test_series_that_cannot_be_used_are_named(model, x, text):
    with pytest.raises(RecipeError, match=text):
        model.predict(x)


def test_gaps_inside_are_no_padding_of_tslearn():
    table = np.array([[[1.0], [NAN], [2.0], [NAN]]])
    with pytest.raises(RecipeError, match=r"gap \(NaN\) at step 1"):
        checked_series(table, "tslearn")
    (kept,) = checked_series(table[:, 2:], "tslearn")
    np.testing.assert_array_equal(kept, [[2.0]])
    with pytest.raises(RecipeError, match="series 0 is empty"):
        checked_series(np.full((1, 3, 1), NAN), "tslearn")


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (X, None, "y is missing"),
        (X, Y[:3], "one entry for each of the 8 series"),
        (X, [*Y[:7], None], "None in row 7"),
        (X, [*map(float, Y[:7]), NAN], "nan in row 7"),
        (X, [1] * 8, "two classes or more, got 8 series of 1"),
        ([], [], "two classes or more"),
        (X, ["a", *Y[1:]], "all words or all numbers"),
    ],
)
def test_classes_are_checked(x, y, text):
    with pytest.raises(RecipeError, match=text):
        small().fit(x, y)


def test_empty_input(model):
    assert model.predict([]).shape == (0,)
    assert model.transform([]).shape == (0, 8)
    with pytest.raises(RecipeError, match="x is empty"):
        model.score([], [])


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_series_of_one_step_and_constant_ones_are_classified(score):
    x = [[0.0], [5.0], np.full(7, 0.1), np.full(9, 5.1)]
    found = small(score=score, learn=False).fit(x, ["low", "high"] * 2)
    assert found.predict([[0.2], np.full(4, 4.0), [4.9]]).tolist() == ["low", "high", "high"]
    same = small(score=score).fit(np.ones((6, 5)), [0, 1] * 3)
    assert np.isfinite(same.transform(np.ones((2, 5)))).all()


def test_normalised_constant_series_are_0():
    np.testing.assert_array_equal(normalized(np.full((1, 5), 0.1)), np.zeros((1, 5)))
    found = normalized(np.array([[1.0, 2.0, 3.0]]))
    assert found.mean() == pytest.approx(0) and found.std() == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window", 1.5), ("window", "wide"), ("slope", -0.1), ("steps", 1), ("batch", 2.5), ("gamma", 0),
        ("layout", "time"), ("score", "scald_dot"), ("epochs", 0), ("rate", -1.0),
    ],
)  # fmt: skip
def test_arguments_are_named_in_their_errors(name, value):
    with pytest.raises(RecipeError, match=name):
        small(**{name: value}).fit(X, Y)


def test_not_fitted_is_said():
    for use in (lambda one: one.predict(X), lambda one: one.align(X[0], X[1])):
        with pytest.raises(NotFittedError):
            use(small())


# Alignment of one pair.


def noisy(lag: int, noise: float, seed: int, steps: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """A smooth random walk and the same `lag` steps later, each with noise of its own."""
    draw = np.random.default_rng(seed)
    walk = np.convolve(draw.normal(size=steps + 90), np.hanning(15), "valid")
    walk = walk / walk.std()
    one, two = walk[40 : 40 + steps], walk[40 - lag : 40 - lag + steps]
    return one + draw.normal(0, noise, steps), two + draw.normal(0, noise, steps)


@pytest.mark.parametrize("score", ["scaled_dot", "cosine", "additive", "gatv2"])
@pytest.mark.parametrize("lag", [-25, 0, 7])
def test_energy_is_least_at_the_true_lag(score, lag):
    x, y = noisy(lag, 0.2, 0)
    found = align(x, y, score=score)
    assert found.lag == lag and found.lags[found.energy.argmin()] == lag
    assert found.interval[0] <= lag <= found.interval[1]


def test_interval_holds_the_true_lag_as_often_as_it_says_and_is_wider_for_more_noise():
    wide, held = [], []
    for noise in (0.3, 2.0):
        found = [align(*noisy(5, noise, seed), max_lag=30, window=0.0) for seed in range(60)]
        wide.append(np.mean([np.ptp(one.interval) for one in found]))
        held.append(np.mean([one.interval[0] <= 5 <= one.interval[1] for one in found]))
    assert min(held) >= 0.85, held
    assert wide[0] < wide[1] / 2, wide


def test_nothing_is_known_of_the_lag_of_constant_series():
    found = align(np.ones(20), np.ones(20))
    assert found.lag == 0 and found.interval == (-10, 10)
    np.testing.assert_array_equal(found.energy, 0)


def test_path_of_a_warped_series_is_the_warp():
    time = np.arange(60)
    warp = 59 * (time / 59) ** 1.5
    x = np.sin(2 * np.pi * time / 25) + time / 30
    y = np.interp(warp, time, x)
    found = align(x, y)
    error = np.abs(found.path[:, 0] - warp[found.path[:, 1]])
    assert error.mean() < 1
    assert found.path[0].tolist() == [0, 0] and found.path[-1].tolist() == [59, 59]
    steps = np.diff(found.path, axis=0)
    assert set(map(tuple, steps.tolist())) <= {(0, 1), (1, 0), (1, 1)}
    assert found.soft[0, 0] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 9), (9, 1), (30, 12), (12, 30)])
def test_any_two_lengths_align(first, second):
    draw = np.random.default_rng(0)
    found = align(draw.normal(size=first), draw.normal(size=second), window=0.1)
    assert found.costs.shape == (first, second)
    assert found.path[-1].tolist() == [first - 1, second - 1]
    assert found.interval[0] <= found.lag <= found.interval[1]
    assert np.isfinite(found.energy).all() and len(found.energy) == len(found.lags)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"window": 2.0}, "window"),
        ({"max_lag": 6}, "max_lag must be an integer from 0 to 5"),
        ({"max_lag": 1.5}, "max_lag"),
        ({"layout": "rows"}, "layout"),
        ({"score": "gat"}, "gives no cost"),
    ],
)
def test_arguments_of_a_single_alignment(more, text):
    with pytest.raises(RecipeError, match=text):
        align(X[0], X[1], **more)


def test_a_pair_that_does_not_fit_the_model_is_refused(model):
    with pytest.raises(RecipeError, match="x and y, series 0 has 2 channels"):
        model.align(np.zeros((2, 5)), np.zeros((2, 5)))
    assert model.align(X[0], X[3]).path[-1].tolist() == [5, 8]


# Files, lines and pictures.


def test_lines_are_read_as_series():
    one, two = KIT.read(["1 2,3", "", " 4,5 6 ; 7 8 9 "])
    np.testing.assert_array_equal(one, [[1, 2, 3]])
    np.testing.assert_array_equal(two, [[4, 5, 6], [7, 8, 9]])
    for lines, text in (
        ([" "], "the input is empty"),
        (["1 2", "1 x"], "line 2 is not a series of numbers"),
        (["1 2; 3"], r"line 1: its channels differ in length: \[2, 1\]"),
    ):
        with pytest.raises(RecipeError, match=text):
            KIT.read(lines)


@pytest.mark.parametrize("given", [None, [X[0][None]], [X[0][None], X[5][None]]])
@pytest.mark.parametrize("language", LANGUAGES)
def test_pictures_are_labelled(model, given, language):
    figure = KIT.show(model, given, language)
    texts = " ".join(one.get_text() for one in figure.findobj(MplText))
    wanted = {"en": ("matched steps", "energy over shifts"), "zh": ("匹配的步", "移位能量")}
    assert all(one in texts for one in wanted[language])


def test_a_set_that_is_not_there_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError, match="sha256"):
        load("coffee")
    with pytest.raises(RecipeError, match="there is no set 'tea' of series; the sets are gunpoint"):
        load("tea")


def test_a_damaged_file_is_refused(tmp_path):
    for name in ("Coffee_TRAIN", "Coffee_TEST"):
        (tmp_path / f"{name}.txt.gz").write_bytes(b"1 0.5 0.25\n")
    with pytest.raises(DataError, match=r"Coffee_TRAIN.*sha256"):
        load("coffee", data=str(tmp_path))


def test_a_file_of_a_folder_is_read(tmp_path, monkeypatch):
    import hashlib

    from regard.recipes.align import data as module
    from regard.recipes.sources import PublicSet, RemoteFile

    files = []
    for name in ("Coffee_TRAIN", "Coffee_TEST"):
        stream = io.BytesIO()
        np.savetxt(stream, [[1, 0.5, 0.25], [2, 0.125, 0.0]])
        content = stream.getvalue()
        (tmp_path / f"{name}.txt.gz").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        files.append(RemoteFile(f"{name}.txt.gz", "https://example.org", digest))
    monkeypatch.setattr(module, "PUBLIC", PublicSet("ucr", tuple(files), "none"))
    found = load("coffee", data=str(tmp_path))
    np.testing.assert_array_equal(found.train.x[0], [[0.5, 0.25]])
    assert found.test.y.tolist() == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "rows", "channels"), [("trace", (100, 100), 1), ("basicmotions", (40, 40), 6), ("japanesevowels", (270, 370), 12)]
)  # fmt: skip
def test_sets_of_packages_have_their_shapes(name, rows, channels):
    found = load(name)
    assert (len(found.train), len(found.test)) == rows and found.origin == "package"
    assert all(one.shape[0] == channels for one in found.train.x)
    checked_series(found.train.x)


def test_aeon_is_the_real_one():
    """With a newer pandas pip silently takes an empty aeon 0.0.0."""
    import aeon

    assert tuple(map(int, aeon.__version__.split(".")[:2])) >= (1, 6)
    assert not catalog.missing(catalog.listed("align"))


def test_public_files_are_named_after_their_sets():
    assert len(PUBLIC.files) == 14
    assert all(one.address.endswith(one.name.removesuffix(".gz")) for one in PUBLIC.files)


def test_rows_in_turn_have_every_class_in_every_stretch():
    y = np.repeat(["a", "b", "c"], [10, 20, 30])
    order = in_turn(y, 0)
    assert sorted(order.tolist()) == list(range(60))
    for part in np.split(y[order], 5):
        counts = [int((part == one).sum()) for one in "abc"]
        assert all(abs(n - wanted) <= 1 for n, wanted in zip(counts, (2, 4, 6), strict=True))


def test_the_mean_over_sets_weighs_sets_alike():
    rows = np.array([[1.0, 0], [0.0, 0], [1.0, 2], [1.0, 2], [1.0, 2]])
    assert mean_over_sets(rows) == 75.0
