"""`make gpu`, with stubs in place of a GPU: every step runs, and the exit status tells of all."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parents[2]
OUTPUT = "========= COMPUTE-SANITIZER\n11 calls on cuda\n========= ERROR SUMMARY: 0 errors\n"


class Machine:
    """Answers commands in place of a machine with a GPU; `ran` has what was asked."""

    def __init__(self) -> None:
        self.ran: list[list[str]] = []
        self.codes: dict[str, int] = {}

    def run(self, command: list[str], **options: object) -> SimpleNamespace:
        self.ran.append(list(command))
        if "--version" in command:
            return SimpleNamespace(stdout="NVIDIA (R) Compute Sanitizer\nVersion 2025.3.1.0 (x)\n")
        code = next((code for word, code in self.codes.items() if word in command), 0)
        places = f"{ROOT}/tests/gpu/sanitize.py by {sys.executable}\n"
        return SimpleNamespace(returncode=code, stdout=OUTPUT + places)

    def steps(self) -> list[str]:
        words = ("pytest", "memcheck", "racecheck", "regard.bench")
        return [word for command in self.ran for word in words if word in command]


@pytest.fixture
def report(tmp_path: Path, monkeypatch) -> ModuleType:
    """The script, writing into an empty folder, where torch sees a GPU."""
    spec = importlib.util.spec_from_file_location("report", ROOT / "tests/gpu/report.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("pytestmark = pytest.mark.gpu\n")
    (tmp_path / "tests/test_b.py").write_text("import something_else\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.2.3")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    return module


@pytest.fixture
def machine(monkeypatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(subprocess, "run", made.run)
    return made


def test_all_steps_run_and_the_reports_are_written(report, machine, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(report, "ROOT", ROOT)
    monkeypatch.setattr(report, "SANITIZER", tmp_path / "sanitizer.txt")
    assert report.main(["--resume", "--budget", "9"]) == 0
    assert machine.steps() == ["pytest", "memcheck", "racecheck", "regard.bench"]
    assert machine.ran[-1][2:] == ["regard.bench", "--device", "cuda", "--resume", "--budget", "9"]
    text = (tmp_path / "sanitizer.txt").read_text()
    first = "compute-sanitizer 2025.3.1 on one NVIDIA H200, torch 1.2.3, triton 1.2.3: "
    assert text.startswith(f"{first}tests/gpu/sanitize.py\n\n$ compute-sanitizer --tool memcheck ")
    assert text.count("\n\n========= COMPUTE-SANITIZER\n") == 2
    assert str(ROOT) not in text and sys.executable not in text
    assert "kns=cudnn --error-exitcode 9 python tests/gpu/sanitize.py\n" in text


def test_only_files_with_tests_for_a_gpu_are_collected(report, machine) -> None:
    """Others may import what such a machine does not have."""
    assert report.main(["--steps", "tests"]) == 0
    (command,) = machine.ran
    assert command[-1] == "tests/test_a.py" and "tests/test_b.py" not in command
    assert "--report=reports/gpu.txt" in command and command[command.index("-m", 3) + 1] == "gpu"


@pytest.mark.parametrize("broken", ["pytest", "memcheck", "regard.bench"])
def test_a_step_that_fails_does_not_stop_the_next(report, machine, capsys, broken) -> None:
    machine.codes = {broken: 1}
    assert report.main([]) == 1
    assert machine.steps() == ["pytest", "memcheck", "racecheck", "regard.bench"]
    assert capsys.readouterr().out.count("FAILED") == 1


def test_a_step_that_breaks_does_not_stop_the_next(report, machine, monkeypatch, capsys) -> None:
    monkeypatch.setattr(report, "run_tests", lambda: 1 / 0)
    assert report.main([]) == 1
    assert machine.steps() == ["memcheck", "racecheck", "regard.bench"]
    assert "FAILED: ZeroDivisionError: division by zero" in capsys.readouterr().out


def test_without_the_sanitizer_it_says_so_and_goes_on(report, machine, monkeypatch, capsys) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert report.main([]) == 0
    assert machine.steps() == ["pytest", "regard.bench"]
    assert "not run: compute-sanitizer is not installed" in capsys.readouterr().out
    assert not (report.ROOT / report.SANITIZER).exists()


def test_without_a_gpu_nothing_runs(report, machine, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert report.main([]) == 2 and not machine.ran
    assert "torch sees no GPU here" in capsys.readouterr().err


def test_make_takes_the_python_that_is_named_and_installs_nothing() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")

    def planned(*words: str) -> str:
        command = ["make", "-n", "-o", ".venv/.stamp", "gpu", *words]
        # As if nobody's make had run the tests, which would hand its options on.
        own = {name: x for name, x in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
        done = subprocess.run(
            command, cwd=ROOT, env=own, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    steps = "tests/gpu/report.py --steps"
    assert f".venv/bin/python {steps} tests,sanitizer,bench --resume" in planned()
    named = planned("PYTHON=python3", "STEPS=bench", "BENCH=--quick")
    assert named.endswith(f" python3 {steps} bench --quick") and ".venv" not in named
