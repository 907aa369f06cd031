"""`regard recipe translate` with a model of seconds: typed sentences, whole files, warnings, pictures."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from regard.cli import recipe_progress
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


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0c", "\x1e"])
def test_only_a_line_feed_ends_a_sentence_of_a_file(run, tmp_path, mark):
    """Python's `splitlines` also splits at these; a translation of each line must line up with its source."""
    (tmp_path / "in.txt").write_bytes(f"zwei Hunde{mark}\r\neine Katze\n".encode())
    assert run("predict", "--file", "in.txt").stdout.count("\n") == 2


def test_a_long_file_is_translated_in_parts_with_the_time_left(run, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe_progress, "PART", 2)
    monkeypatch.setattr(recipe_progress, "LINE_PAUSE", 0.0)
    (tmp_path / "in.txt").write_text("zwei Hunde\n\neine Katze\n" * 3, encoding="utf-8")
    found = run("predict", "--file", "in.txt")
    assert found.stdout == "two dogs\n\na cat\n" * 3
    assert (
        re.search(r"4 of 9, (about|less than) \d+ s left", found.stderr)
        and "9 of 9" in found.stderr
    )


def test_where_to_write_is_checked_before_anything_is_translated(run, tmp_path):
    found = run("predict", "--to", "nowhere/out.txt", "zwei Hunde")
    assert (
        found.exit_code == 2 and "--to nowhere/out.txt: there is no folder nowhere" in found.stderr
    )


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
