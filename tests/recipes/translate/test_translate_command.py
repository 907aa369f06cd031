"""`regard recipe translate` with a model of seconds: typed sentences, whole files, warnings, pictures."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from regard.cli.app import group
from regard.recipes.translate import Translator

X = ["ein Hund", "eine Katze", "zwei Hunde", "zwei Katzen"] * 3
Y = ["a dog", "a cat", "two dogs", "two cats"] * 3


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "translate.safetensors"
    fixed = {"width": 32, "layers": 1, "vocabulary": 60, "batch_tokens": 16, "dropout": 0.0}
    model = Translator("bahdanau", epochs=30, rate=1e-2, warmup=5, average=None, max_length=8,
                       validate_every=30, device="cpu", **fixed)  # fmt: skip
    model.fit(X, Y, validation=(X[:4], Y[:4])).save(path)
    return path


@pytest.fixture
def run(saved, tmp_path, monkeypatch):
    """Runs `regard recipe translate ...` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)  # other tests keep theirs

    def invoke(*words: str) -> Result:
        given = ["recipe", "translate", words[0], "--model", str(saved), *words[1:]]
        return CliRunner(env={"COLUMNS": "80"}).invoke(group, given, prog_name="regard")

    return invoke


def test_typed_sentences_and_whole_files_are_translated_alike(run, tmp_path):
    typed = run("predict", "zwei Hunde", "", "eine Katze")
    assert typed.exit_code == 0 and typed.stdout == "two dogs\n\na cat\n"
    (tmp_path / "in.txt").write_text("zwei Hunde\n\neine Katze\n", encoding="utf-8")
    whole = run("predict", "--file", "in.txt", "--to", "out.txt")
    assert whole.exit_code == 0
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == typed.stdout


def test_several_best_are_separated_by_tabs(run):
    found = run("predict", "--best", "3", "--beam", "4", "ein Hund")
    first, *others = found.stdout.rstrip("\n").split("\t")
    assert first == "a dog" and len(others) == 2
    few = run("predict", "--best", "3", "--beam", "2", "ein Hund")
    assert few.exit_code == 2 and "beam of at least 3" in few.stderr


def test_a_warning_is_a_line_without_the_place_in_the_code(run):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        found = run("predict", "ein Hund " * 9)
    assert found.exit_code == 0
    assert found.stderr.startswith("Warning: longer than max_length=8 pieces: 1 of 1 sentences")
    assert "recipe.py" not in found.stderr and found.stdout.startswith("a dog")


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_an_alignment_is_drawn(run, tmp_path, suffix):
    found = run("show", "zwei Katzen", "--to", f"picture.{suffix}", "--lang", "zh")
    assert found.exit_code == 0, found.output
    assert (tmp_path / f"picture.{suffix}").stat().st_size > 3000
    empty = run("show", "")
    assert empty.exit_code == 2 and "the sentence is empty" in empty.stderr
