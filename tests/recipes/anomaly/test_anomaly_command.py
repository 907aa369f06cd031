"""What `regard recipe anomaly` prints, writes and draws."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from regard.cli.app import group
from regard.recipes.anomaly import AnomalyDetector, load

from .test_anomaly_fit import SMALL, wave


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a model under the name that the commands look for, and a series."""
    place = tmp_path_factory.mktemp("anomaly")
    model = AnomalyDetector(epochs=1, **SMALL).fit(wave())
    model.save(place / "anomaly.safetensors")
    lines = [
        f"2026-01-01 {n // 60:02d}:{n % 60:02d}:00,{value[0]:.4f}"
        for n, value in enumerate(wave(200))
    ]
    lines[150] = "2026-01-01 02:30:00,25.0"
    (place / "series.csv").write_text("time,value\n" + "\n".join(lines) + "\n")
    return place


@pytest.fixture
def command(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("REGARD_DATA", raising=False)

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(group, ["recipe", "anomaly", *words], prog_name="regard")

    return invoke


def test_train_says_what_it_reads_how_good_it_is_and_where_it_saved(command, tmp_path):
    path = tmp_path / "small.safetensors"
    found = command("train", "--epochs", "1", "--out", str(path))
    assert found.exit_code == 0, found.output
    assert "1 training rows, 12 validation, 1 test (package)." in found.stderr
    quality, saved = found.stdout.splitlines()
    assert quality.startswith("average precision: ") and saved == f"Saved: {path}"
    assert AnomalyDetector.load(path).epochs == 1


def test_predict_prints_a_line_for_each_point_and_finds_the_spike(command):
    found = command("predict", "--file", "series.csv")
    assert found.exit_code == 0, found.output
    rows = [line.split("\t") for line in found.stdout.splitlines()]
    assert [number for number, _ in rows] == [str(n) for n in range(200)]
    alarms = {int(number) for number, alarm in rows if alarm == "1"}
    assert 150 in alarms and len(alarms) < 60


@pytest.mark.parametrize("language", ["en", "zh"])
def test_show_draws_in_both_languages(command, folder, language):
    found = command("show", "--lang", language, "--to", f"{language}.svg")
    assert found.exit_code == 0, found.output
    wanted = {"en": ("strangest window", "threshold"), "zh": ("最异常的窗口", "阈值")}
    drawn = (folder / f"{language}.svg").read_text()
    assert all(one in drawn for one in wanted[language])


def test_a_model_of_many_channels_draws_the_embedded_set_that_fits_it(command, folder):
    data = load("daphnet", limit=1)
    model = AnomalyDetector(epochs=1, **SMALL).fit(data.train.x)
    model.save(folder / "walk.safetensors")
    found = command("show", "--model", "walk.safetensors", "--to", "walk.png")
    assert found.exit_code == 0, found.output
    three = AnomalyDetector(epochs=1, **SMALL).fit(wave(channels=3))
    three.save(folder / "three.safetensors")
    refused = command("show", "--model", "three.safetensors")
    assert refused.exit_code == 2 and "no embedded series has 3 channels" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "1", "2"], "fewer than the 16"),
        (["predict", "1", "two"], "'two' is no number"),
        (["predict", ""], "empty"),
        (["train", "--set", "yahoo"], "its sets are kdd, daphnet, nab"),
        (["train", "--set", "nab"], "raw.githubusercontent.com"),
        (["train", "--score", "gausian"], "did you mean 'gaussian'"),
    ],
)
def test_mistakes_are_one_line(command, words, said):
    found = command(*words)
    assert found.exit_code == 2 and found.stdout == ""
    assert said in found.stderr.splitlines()[-1]
    assert "Traceback" not in found.stderr and found.stderr.count("Error") == 1
