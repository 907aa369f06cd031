"""How the command `regard` begins: help, versions and mistakes without torch, then the whole library.

Each in a process of its own, by the entry point that is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import click
import pytest
import torch

import regard
import regard_command
from regard.cli.app import version_in

from .test_contract import CASES, PATHS

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "numpy", "rich", "matplotlib", "optuna", "transformers"}
LATE = {"choose", "doctor", "plot"}  # names of the package that are loaded when they are asked for
# When the command has ended, the last line of stderr says what is loaded, and what `regard` holds.
RUN = """
import json, sys
from regard_command import main
try:
    main()
finally:
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    print(json.dumps([files, list(vars(sys.modules["regard"]))]), file=sys.__stderr__)
"""
# Whether each verb asks for the library before it imports torch, which is not waited for here.
ORDER = """
import json, sys
import regard_command

class Asked(BaseException): pass

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        assert name != "torch", "torch before load_library"

def ask(): raise Asked

regard_command.load_library = ask
regard_command.without_torch()
sys.meta_path.insert(0, NoTorch())
from regard.cli.app import group

found = {}
for line in sys.argv[1:]:
    try:
        group.main(line.split(), "regard")
    except Asked:
        found[line.split()[0]] = "asks"
    except SystemExit as stop:
        found[line.split()[0]] = stop.code
print(json.dumps(found), file=sys.stderr)
"""
WITHOUT = ("recipe", "play", "completion")  # verbs that need nothing of the library
STARTS = {
    **{f"{path} --help".strip(): 0 for path in PATHS},
    "": 0,
    "--version": 0,
    "frobnicate": 2,
    "--frobnicate": 2,
    "explain": 2,
    "explain --shape d_q=x,len=3": 2,
    "choose --minutes": 2,
    "choose --data none.npz": 2,
    "bench --suite nope": 2,
    "claims run --frobnicate": 2,
    "claims frobnicate": 2,
    "doctor": 2,
    "doctor healthy --rate inf": 2,
    "recipe frobnicate": 2,
    "recipe graph frobnicate": 2,
    "recipe graph": 0,
    "recipe --json": 0,
    **{f"{verb} {CASES[verb].quick}": 0 for verb in WITHOUT},
}


def started(code: str, arguments: list[str], folder: Path) -> tuple[int, str, str, Any]:
    """Exit code, stdout, stderr, and what the last line of stderr tells."""
    result = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], cwd=folder, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    *said, last = result.stderr.splitlines(keepends=True) or [""]
    assert last[:1] in ("[", "{"), result.stderr
    return result.returncode, result.stdout, "".join(said), json.loads(last)


@pytest.mark.parametrize(("line", "status"), STARTS.items(), ids=[x or "nothing" for x in STARTS])
def test_no_torch_before_a_verb_runs(tmp_path: Path, line: str, status: int) -> None:
    code, out, err, (files, _) = started(RUN, line.split(), tmp_path)
    assert code == status, err
    assert (err.count("\n"), out == "") == ((0, False) if status == 0 else (1, True))
    assert "click" in files and not HEAVY & set(files)


def test_the_version_is_that_of_the_modules(tmp_path: Path) -> None:
    _, out, _, _ = started(RUN, ["--version"], tmp_path)
    assert out == f"regard {regard.__version__}, torch {torch.__version__}\n"


def test_a_verb_asks_for_the_library_before_torch(tmp_path: Path) -> None:
    """Else parts of the package would be imported into one whose `__init__` has not run."""
    lines = [f"{verb} {case.quick}" for verb, case in CASES.items()]
    *_, found = started(ORDER, lines, tmp_path)
    assert found == {verb: 0 if verb in WITHOUT else "asks" for verb in CASES}


def test_a_verb_runs_in_the_whole_package(tmp_path: Path) -> None:
    line = ["explain", *CASES["explain"].quick.split()]
    code, out, err, (files, held) = started(RUN, line, tmp_path)
    assert (code, err) == (0, "") and "\nengine " in out
    assert {"__version__", "cli", *regard.__all__} - LATE <= set(held)
    ours = [file for name, file in files.items() if name.partition(".")[0] == "regard"]
    assert len(ours) == len(set(ours))  # no file is there under two names


BROKEN = "libcudart.so.12: cannot open shared object file"


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("--version", 0, f"regard {regard.__version__}, torch not found\n"),
        ("explain --shape d_q=4,len=3", 1, f"Error: torch cannot be loaded: {BROKEN}\n"),
        ("bench --list", 1, f"Error: torch cannot be loaded: {BROKEN}\n"),
    ],
)  # fmt: skip
def test_a_torch_that_cannot_be_loaded_is_one_line(
    tmp_path: Path, line: str, status: int, said: str
) -> None:
    """It was a traceback, and for --version the name of a file that nobody knows."""
    (tmp_path / "torch.py").write_text(f"raise ImportError({BROKEN!r})")
    result = subprocess.run(
        [sys.executable, "-P", "-c", "from regard_command import main; main()", *line.split()],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert (result.returncode, result.stdout + result.stderr) == (status, said)


def test_a_torch_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "regard", types.ModuleType("regard"))
    with pytest.raises(click.ClickException, match=r"^torch cannot be loaded: .*torch"):
        regard_command.load_library()
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert version_in("torch", "version.py") == "not found"


def test_python_m_regard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["regard", "frobnicate"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("regard", run_name="__main__")
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("Error: No such command 'frobnicate'")


def test_the_entry_point_is_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"regard": "regard_command:main"}
    shipped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert "src/regard_command.py" in shipped and (ROOT / "src/regard_command.py").is_file()
