"""`benchmarks/recipes_gpu.sh` here, on a CPU, over a recipe of milliseconds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = "recipes.fake_recipe:points"


def script(results: Path, *words: object, **more: str) -> subprocess.CompletedProcess:
    known = {"PYTHON": sys.executable, "DEVICE": "cpu", "JOBS": "1", "MORE": "--quick"}
    environment = os.environ | known | {"PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["sh", ROOT / "benchmarks/recipes_gpu.sh", results, *map(str, words)],
        env=environment | more, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def written(results: Path) -> dict[str, int]:
    """The files of runs, and the second in which each was written."""
    return {path.name: int(path.stat().st_mtime) for path in (results / "runs").iterdir()}


@pytest.mark.slow
def test_results_are_packed_and_gone_on_with(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "missing_here-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("missing_here/__init__.py", "")
    with zipfile.ZipFile(wheels / "numpy-0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("numpy/__init__.py", "raise SystemExit('another numpy')")
    results = tmp_path / "found"
    first = script(results, 5, STEP, WHEELS=str(wheels))
    assert first.returncode == 0, first.stderr
    assert "no missing_here" in first.stdout and "numpy" not in first.stdout
    assert json.loads((results / "fake-points.json").read_bytes())["reference"] == "scaled_dot"
    runs = written(results)
    with tarfile.open(tmp_path / "found.tar.gz") as packed:
        assert {f"found/runs/{name}" for name in runs} < set(packed.getnames())
    shutil.rmtree(results)
    again = script(results, 5, STEP)
    assert again.returncode == 0, again.stderr
    assert written(results) == runs, "runs of the first call are not repeated"


@pytest.mark.slow
def test_a_step_that_fails_does_not_stop_the_next_and_without_time_there_is_none(
    tmp_path: Path,
) -> None:
    found = script(tmp_path / "found", 5, "recipes.nonesuch:points", STEP)
    assert found.returncode == 1
    assert (tmp_path / "found" / "fake-points.json").is_file()
    late = script(tmp_path / "late", 0, STEP)
    assert late.returncode == 0 and "no time left" in late.stdout
    assert not (tmp_path / "late" / "runs").exists()
    wrong = script(tmp_path / "late")
    assert wrong.returncode == 2 and "RESULTS MINUTES" in wrong.stderr
