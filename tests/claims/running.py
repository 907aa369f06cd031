"""Fixtures of the tests that run claims: a claim to run, and workers that start at once."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from regard.claims.running import runner
from regard.claims.running.worker import serve


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Makes claims: `fake("A1", value=2.0)`."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    claim = importlib.import_module("fake_claims").Fake()
    marks = tmp_path / "marks"
    marks.mkdir()
    yield lambda name="A1", **ingredients: replace(claim, id=name, marks=str(marks), **ingredients)
    sys.modules.pop("fake_claims")


@pytest.fixture
def ran(tmp_path: Path):
    """How often each claim was measured."""

    def count() -> dict[str, int]:
        files = (tmp_path / "marks").iterdir()
        return {path.name: path.read_text().count("began") for path in sorted(files)}

    return count


class ThreadWorker:
    """A worker in a thread of this process: a new process takes seconds."""

    def __init__(self) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        threading.Thread(target=serve, args=(theirs,), daemon=True).start()

    def stop(self) -> None:
        self.connection.close()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are threads. One at a time: what they print is caught for the whole process."""
    monkeypatch.setattr(runner, "Worker", ThreadWorker)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)  # other tests keep theirs
