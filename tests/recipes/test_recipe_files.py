"""Inputs, models and outputs of `regard recipe`: encodings, and places that cannot be written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("verb", ["predict", "show"])
def test_argument_that_is_no_utf8_is_one_line(tmp_path: Path, verb: str) -> None:
    """Python reads such bytes as surrogates, which nothing can print."""
    command = [sys.executable, "-m", "regard.cli", "recipe", "letters", verb, b"caf\xe9"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (2, b"Error: an input is no text in UTF-8\n")


def test_mark_at_the_start_of_a_file_is_no_input(run) -> None:
    assert run("fake train").exit_code == 0
    Path("marked").write_bytes(b"\xef\xbb\xbf1,2\n3,4\n")
    Path("plain").write_bytes(b"1,2\n3,4\n")
    for more in ({}, {"input": Path("marked").read_bytes()}):
        line = "fake predict" if more else "fake predict --file marked"
        result = run(line, **more)
        assert result.exit_code == 0, result.stderr
        assert result.stdout == run("fake predict --file plain").stdout


def test_folder_that_cannot_be_written_is_found_before_the_training(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found when the first checkpoint was written."""

    def refused(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("regard.cli.recipe_files.TemporaryFile", refused)
    Path("fake.safetensors").touch()
    for line, option in (
        ("fake train --out a.safetensors", "--out a.safetensors"),
        ("fake show --to a.svg", "--to a.svg"),
        ("fake predict 1,2 --to a", "--to a"),
    ):
        result = run(line)
        assert result.exit_code == 2
        assert result.stderr == f"Error: {option}: Read-only file system\n"


def test_folder_in_the_place_of_the_checkpoint_is_one_line(run) -> None:
    Path("fake.safetensors.checkpoint").mkdir()
    result = run("fake train")
    assert result.exit_code == 2
    assert "checkpoint='fake.safetensors.checkpoint' exists and is not a file" in result.stderr
    assert "Going on" not in result.stderr


def test_model_of_the_demo_is_found(run) -> None:
    """`make demo` and comparisons write into this folder."""
    assert run("fake train").exit_code == 0
    told = run("fake predict 1,2").stdout
    Path("regard-recipes").mkdir()
    Path("fake.safetensors").rename("regard-recipes/fake.safetensors")
    result = run("fake predict 1,2")
    assert (result.exit_code, result.stdout) == (0, told)
    assert result.stderr == "Model: regard-recipes/fake.safetensors\n"
    assert run("fake show --model fake.safetensors").exit_code == 2, "one that is named is meant"


@pytest.mark.parametrize("verb", ["predict", "show"])
def test_missing_model_is_said_before_torch_is_loaded(tmp_path: Path, verb: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"sys.argv[1:] = ['recipe', 'letters', '{verb}', 'a']\n"
        "from regard_command import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    said = "there is no model letters.safetensors: `regard recipe letters train` makes one"
    assert (done.returncode, done.stderr) == (2, f"Error: {said}\n")
