"""Comparisons in several processes: one that dies, a full disk, a parent that is killed, and going on after it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from regard.recipes.comparing import Compared, compare
from regard.recipes.comparing.runner import CompareRunner, OutOfTime
from regard.recipes.comparing.work import WorkSource, facts_of

pytestmark = pytest.mark.slow  # each process loads torch
TESTS = Path(__file__).parents[1]
SOURCE = WorkSource("recipes.crew_recipe", device="cpu")


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that tells the odd contender what to do."""
    monkeypatch.syspath_prepend(str(TESTS))
    monkeypatch.setenv("CREW", str(tmp_path))
    return tmp_path


def run(folder: Path, what: str, **options: Any) -> Compared:
    (folder / "what").write_text(what)
    comparison, data = SOURCE.load()
    return compare(comparison, folder, jobs=2, source=SOURCE, dataset=facts_of(data), **options)


def runs(folder: Path) -> set[str]:
    return {path.name for path in (folder / "runs").glob("*.json")}


def test_process_that_dies_costs_its_run_alone_and_the_next_call_repeats_that(crew: Path) -> None:
    found = run(crew, "die")
    assert found.failed == {"odd": "seed 1: its process died with status 7"}
    assert {row.name for row in found.rows} == {"scaled_dot", "additive", "no attention"}
    before = runs(crew)
    whole = run(crew, "work")
    assert not whole.failed
    assert before < runs(crew)
    assert len(whole.rows) == 4


def test_full_disk_in_a_process_ends_the_run(crew: Path) -> None:
    with pytest.raises(OSError, match="No space left") as error:
        run(crew, "disk")
    assert error.value.errno == errno.ENOSPC
    assert not run(crew, "work").failed


def test_time_limit_ends_the_processes(crew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = CompareRunner.check_time

    def soon(runner: CompareRunner, left: int) -> None:
        """Let the limit be reached once both processes are busy."""
        if len(list(crew.glob("waits-*"))) == 2:
            runner.until = 0.0
        check(runner, left)

    monkeypatch.setattr(CompareRunner, "check_time", soon)
    with pytest.raises(OutOfTime, match="time limit with 2 runs"):
        run(crew, "wait", minutes=10)
    assert gone(crew)


def gone(folder: Path) -> bool:
    """Whether the processes that waited end soon."""
    waiting = [int(path.name.split("-")[1]) for path in folder.glob("waits-*")]
    until = time.monotonic() + 30
    while any(map(alive, waiting)) and time.monotonic() < until:
        time.sleep(0.1)
    return bool(waiting) and not any(map(alive, waiting))


def alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{number}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_killed_parent_leaves_runs_and_no_processes(crew: Path, number: signal.Signals) -> None:
    (crew / "what").write_text("wait")
    words = ["-m", "regard.recipes.comparing", "--recipe", "recipes.crew_recipe", "--quick"]
    command = [sys.executable, *words, "--jobs", "2", "--out", str(crew)]
    environment = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as parent:
        until = time.monotonic() + 240
        while len(list(crew.glob("waits-*"))) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        parent.send_signal(number)
        assert parent.stderr is not None
        said = parent.stderr.read()
    assert gone(crew), "processes end with their parent"
    if number == signal.SIGINT:
        assert parent.returncode == 130
        assert "the same command continues" in said
    kept = runs(crew)
    assert len(kept) == 6
    (crew / "what").write_text("work")
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert kept < runs(crew)
    assert Compared.load(crew / "fake-points.json").failed == {}
