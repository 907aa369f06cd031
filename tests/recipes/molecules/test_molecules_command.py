"""What `regard recipe molecules` prints and writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("rdkit")

from regard.cli.app import group
from regard.recipes.molecules import MoleculePredictor

SMILES = ["CCO", "CC(=O)O", "C", "c1ccccc1", "CCN", "C#N"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a model under the name that the commands look for."""
    place = tmp_path_factory.mktemp("molecules")
    model = MoleculePredictor(width=16, heads=2, layers=1, epochs=1, device="cpu")
    model.fit(SMILES, range(6)).save(place / "molecules.safetensors")
    return place


@pytest.fixture
def command(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("REGARD_DATA", raising=False)

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(group, ["recipe", "molecules", *words], prog_name="regard")

    return invoke


def test_train_says_what_it_reads_how_good_it_is_and_where_it_saved(command, tmp_path):
    path = tmp_path / "small.safetensors"
    found = command("train", "--limit", "30", "--epochs", "1", "--out", str(path))
    assert found.exit_code == 0, found.output
    assert "30 training rows, 102 validation, 101 test (package)." in found.stderr
    quality, saved = found.stdout.splitlines()
    assert quality.startswith("RMSE: ") and quality.endswith(" on test rows.")
    assert saved == f"Saved: {path}" and MoleculePredictor.load(path).epochs == 1
    assert [one.name for one in tmp_path.iterdir()] == [path.name], "the checkpoint is removed"


def test_predict_prints_one_line_for_each_molecule(command, folder):
    (folder / "some.smi").write_text("CCO ethanol\n\nC methane\n")
    found = command("predict", "--file", "some.smi")
    assert found.exit_code == 0, found.output
    names, values = zip(*(line.split("\t") for line in found.stdout.splitlines()), strict=True)
    assert names == ("CCO", "C") and all(map(float, values))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "C1CC"], "'C1CC' is not a SMILES that RDKit can parse"),
        (["predict", "CCO", "C1CC"], "line 2: 'C1CC' is not"),
        (["predict", ""], "the input is empty"),
        (["show", "C1CC"], "'C1CC' is not"),
        (["predict", "CCO", "--model", "none.safetensors"], "regard recipe molecules train"),
        (["train", "--score", "scald_dot"], "did you mean 'scaled_dot'?"),
        (["train", "--set", "esol"], "sha256"),
        (["train", "--set", "qm9"], "its sets are chembl2321810, esol, freesolv, bbbp"),
    ],
)
def test_mistakes_are_one_line(command, words, said):
    found = command(*words)
    assert found.exit_code == 2 and found.stdout == ""
    assert said in found.stderr.splitlines()[-1]
    assert "Traceback" not in found.stderr and found.stderr.count("Error") == 1


@pytest.mark.parametrize("language", ["en", "zh"])
def test_show_draws_in_both_languages(command, folder, language):
    found = command("show", "CC(=O)Oc1ccccc1C(=O)O", "--lang", language, "--to", f"{language}.svg")
    assert found.exit_code == 0, found.output
    wanted = {"en": ("most attended bonds", "prediction: "), "zh": ("最受关注的键", "预测：")}
    drawn = (folder / f"{language}.svg").read_text()
    assert all(one in drawn for one in wanted[language])


def test_a_png_is_drawn_where_no_font_has_chinese(command, folder, monkeypatch):
    """Matplotlib warned once for each character, 30 times for one picture; warnings are errors here."""
    monkeypatch.setattr("regard.figures.canvas.CHINESE", [])
    found = command("show", "C", "--lang", "zh", "--to", "picture.png")
    assert found.exit_code == 0, found.output
    assert (folder / "picture.png").stat().st_size > 5000
