"""The sets, planted anomalies, measures and windows."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import types
from importlib.metadata import version

import numpy as np
import pytest

from regard.recipes.anomaly import load
from regard.recipes.anomaly.baselines import matrix_profile, median_distance, sub_pca
from regard.recipes.anomaly.measures import measured, vus_pr
from regard.recipes.anomaly.nab import TUNING, contents, series_of
from regard.recipes.anomaly.planted import ANOMALIES, pattern, planted
from regard.recipes.anomaly.windows import judged, moving_mean, rows_of, to_points, windows_of
from regard.recipes.estimator import RecipeError
from regard.recipes.sources import VARIABLE, DataError

from .test_anomaly_fit import wave


def test_aeon_is_one_that_has_the_sets():
    assert tuple(map(int, version("aeon").split(".")[:2])) >= (1, 6), (
        "pip takes an empty aeon 0.0.0"
    )


def test_embedded_sets_have_the_rows_that_they_say():
    data = load("kdd")
    assert data.train.x[0].shape == (1200, 1) and data.test.x[0].shape == (7501, 1)
    assert data.test.y[0].sum() == 12 and len(data.validation) == 12
    walk = load("daphnet", limit=1)
    assert walk.origin == "generated" and "planted" in walk.title.en
    assert (len(walk.train), len(walk.validation), len(walk.test)) == (1, 12, 24)
    assert all(one.shape == (1408, 9) for one in walk.test.x)
    with pytest.raises(RecipeError, match="the sets are kdd, daphnet, nab"):
        load("yahoo")


@pytest.mark.skipif(VARIABLE not in os.environ, reason="REGARD_DATA names no folder")
def test_nab_has_the_series_that_are_known():
    data = load("nab")
    assert (len(data.train), len(data.validation), len(data.test)) == (11, 5, 47)
    both = data.validation.y + data.test.y
    assert sum(map(len, both)) + sum(len(x) for x in data.train.x[:6]) == 365_558
    assert all((one == 1).any() and (one[: int(0.15 * len(one))] == -1).all() for one in both)


def test_points_of_nab_are_sorted_by_time_and_labelled_inside_windows():
    lines = [
        "timestamp,value",
        *(f"2026-01-01 00:{n:02d}:00,{n}" for n in (1, 0, *range(2, 40), 39)),
    ]
    values, labels = series_of(
        "\n".join(lines).encode(), [["2026-01-01 00:10:00.000000", "2026-01-01 00:12:00.000000"]]
    )
    assert values[:, 0].tolist() == [*range(40), 39]
    assert np.flatnonzero(labels == 1).tolist() == [10, 11, 12]
    assert (labels[:6] == -1).all() and labels[6] == 0


def test_an_archive_of_nab_that_is_changed_or_cut_off_is_refused(tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        entry = tarfile.TarInfo(TUNING[0])
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"abc"))
    place = tmp_path / "nab.tar.gz"
    place.write_bytes(stream.getvalue())
    with pytest.raises(DataError, match=r"lacks|sha256"):
        contents(tmp_path, False)
    place.write_bytes(stream.getvalue()[:-30])
    with pytest.raises(DataError, match="whole"):
        contents(tmp_path, False)


def test_nab_that_is_nowhere_says_where_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError, match=r"raw\.githubusercontent\.com/numenta/NAB"):
        load("nab")
    with pytest.raises(DataError, match="has no nab"):
        load("nab", data=tmp_path)


@pytest.mark.parametrize("kind", ANOMALIES)
def test_planted_anomalies_are_where_their_labels_are(kind):
    x = wave(300, channels=2)
    found, labels = planted(x, kind, 2.0, 30, seed=1)
    changed = np.abs(found - x).max(1) > 1e-9
    assert labels.sum() in (3, 30) and not changed[labels == 0].any()
    assert changed[labels == 1].mean() > 0.7
    assert np.abs(found - x).max() == pytest.approx(2 * x.std(0).max(), rel=0.1)
    assert pattern(kind, 50, 48, 30).shape == (50,)


@pytest.mark.parametrize("case", range(4))
def test_vus_is_that_of_aeon(case):
    metrics = pytest.importorskip("aeon.benchmarking.metrics.anomaly_detection")
    draw = np.random.default_rng(case)
    labels = np.zeros(300, np.int64)
    for first in draw.integers(0, 300, 3):
        labels[first : first + 20] = 1
    scores = draw.random(300).round(2 if case % 2 else 12)
    if case > 1:
        labels[:4] = labels[-7:] = 1
    wanted = metrics.range_pr_vus_score(labels, scores, max_buffer_size=30)
    assert vus_pr(labels, scores, 30) == pytest.approx(wanted, abs=1e-12)


def test_measures_do_not_adjust_points_and_leave_out_what_is_not_judged():
    labels, scores = np.zeros(100, np.int64), np.arange(100) / 100
    labels[50:60] = 1
    scores[55] = 2.0  # one point of the anomaly is found, which adjusting would count as ten
    assert measured(labels, scores)[0] < 0.3
    perfect = labels.astype(float)
    assert measured(labels, perfect)[0] == 1.0
    perfect[:10] = 5.0
    labels[:10] = -1
    assert measured(labels, perfect)[0] == 1.0


def test_points_have_the_mean_of_the_windows_that_hold_them():
    scores = np.random.default_rng(0).random(30)
    found, live = to_points(scores, 5), to_points(scores, 5, 3, trailing=True)
    assert found.shape == live.shape == (34,)
    assert found[12] == pytest.approx(scores[8:13].mean())
    assert (found[0], found[-1]) == pytest.approx((scores[0], scores[-1]))
    assert live[20] == pytest.approx(scores[14:17].mean())
    assert moving_mean(np.array([1.0, np.nan, 3.0]), 1, 1).tolist() == [1.0, 2.0, 3.0]


def test_windows_are_those_of_the_series():
    import torch

    x = torch.arange(24.0).reshape(12, 2)
    found = windows_of(x, 4)
    assert found.shape == (9, 4, 2) and found.data_ptr() == x.data_ptr()
    torch.testing.assert_close(rows_of(found, slice(3, 4))[0], x[3:7].flatten())
    assert judged(100, 64)[-1] == 99 and judged(1, 64).tolist() == [0]


@pytest.mark.parametrize(
    ("method", "own"),
    [
        (sub_pca, {"window": 16, "removed": 0}),
        (sub_pca, {"window": 16, "removed": 1}),
        (median_distance, {"window": 1}),
    ],
)
def test_baselines_find_a_spike_and_take_a_constant(method, own):
    x, labels = planted(wave(300, channels=2), "spike", 8.0, 30, seed=3)
    scores = method(x, **own)
    assert measured(labels, to_points(scores, len(x) - len(scores) + 1))[0] > 10 * labels.mean()
    assert np.isfinite(method(np.full((100, 1), 3.0), **own)).all()


def test_the_matrix_profile_is_a_mean_over_channels(monkeypatch):
    """With stumpy's definition written out: its own kernels take a minute to compile."""

    def stump(values, window, normalize):
        assert values.flags.c_contiguous and not normalize
        parts = np.lib.stride_tricks.sliding_window_view(values, window)
        found = np.linalg.norm(parts[:, None] - parts, axis=-1)
        places = np.arange(len(parts))
        found[np.abs(places[:, None] - places) <= -(-window // 4)] = np.inf
        return found.min(1)[:, None].astype(object)

    monkeypatch.setitem(sys.modules, "stumpy", types.SimpleNamespace(stump=stump))
    x, labels = planted(wave(300, channels=2), "spike", 8.0, 30, seed=3)
    scores = matrix_profile(x, window=16, normalize=False)
    assert measured(labels, to_points(scores, 16))[0] > 10 * labels.mean()
    each = [matrix_profile(x[:, [n]], window=16, normalize=False) for n in (0, 1)]
    np.testing.assert_allclose(scores, np.mean(each, 0))
    assert np.isfinite(matrix_profile(x[:18], window=16, normalize=False)).all()
