"""Runs beside one another in a storage, the time left, and a doctor that fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.choosing.report import compose
from regard.choosing.suite import Answer, Suite
from regard.choosing.tasks.embedded import lookup
from regard.choosing.training import show, vitals
from regard.choosing.training.data import parts_of
from regard.choosing.training.series import fingerprint, left_behind, pick_name, unfinished
from regard.choosing.training.stages import SEARCH_SEED
from regard.choosing.training.storage import enqueue, open_study, opened, quiet
from regard.cli import choose as command

from .conftest import Finished
from .known import small

DATA = [(torch.arange(8.0) + part, torch.arange(8) + part) for part in range(3)]
CELLS = [{"candidate": "scaled_dot", "rate": rate} for rate in (0.1, 0.2, 0.3)]


def stopped(storage: Any, name: str, results: int, **settings: Any) -> None:
    """A comparison with so many results and the rest in the queue."""
    study = open_study(storage, f"{name}/search")
    known = {"data": fingerprint(parts_of(DATA, SEARCH_SEED)), **settings}
    study.set_user_attr("settings", known)
    enqueue(study, CELLS)
    for _ in range(results):
        study.tell(study.ask(), 1.0)


def test_going_on_takes_the_run_that_came_furthest(tmp_path: Path) -> None:
    place = tmp_path / "a.journal"
    with quiet(), opened(place) as storage:
        assert pick_name(storage, "x", resume=True) == pick_name(storage, "x", resume=False) == "x"
        stopped(storage, "x", 2, steps=10)
        assert unfinished(storage, "x") and pick_name(storage, "x", resume=False) == "x-2"
        stopped(storage, "x-2", 1, steps=10)  # begun anew, told, stopped
        assert pick_name(storage, "x", resume=True) == "x"
        stopped(storage, "x-3", 1, steps=20)  # other settings: nothing else is like it
        assert pick_name(storage, "x", resume=True) == "x-3"


def test_an_unfinished_run_of_the_same_data_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], finished: Finished
) -> None:
    place, task = tmp_path / "a.journal", replace(lookup(), name="x", data=DATA)
    command.tell_unfinished([task], place)
    assert capsys.readouterr().err == ""
    with quiet(), opened(place) as storage:
        stopped(storage, "x", 2)
    command.tell_unfinished([task], place)
    assert "--resume" in capsys.readouterr().err
    other = [tuple(x + 1 for x in part) for part in DATA]
    assert not left_behind(place, "x", other)
    with quiet(), opened(finished.copy(tmp_path)) as storage:
        assert not unfinished(storage, "choose")


def test_the_function_tells_of_an_unfinished_run_as_the_command_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --resume it did, and `regard.choose` began anew without a word."""
    place, task = tmp_path / "a.journal", replace(lookup(), name="x", data=DATA)
    with quiet(), opened(place) as storage:
        stopped(storage, "x", 2)
    monkeypatch.setattr("regard.choosing.training.run.run", lambda order: order.name)

    def said(**more: Any) -> str:
        small(place, **{"data": DATA, "name": "x", "progress": True} | more)
        return capsys.readouterr().err

    command.tell_unfinished([task], place)
    words = capsys.readouterr().err
    assert said() == words.replace("--resume", "resume=True") != ""
    assert not said(resume=True) and not said(name="y") and not said(progress=False)
    assert not said(progress=lambda label, part, left: None)  # whose words are its user's own


def test_the_time_left_is_said_when_it_is_known_and_does_not_jump(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    left = show.TimeLeft()
    assert left(0.0, 360.0) == ""
    now[0] = 104.0
    assert left(0.2, 16.0) == ""  # too early
    now[0] = 110.0
    assert left(0.1, 240.0) == "about 2 min left"
    now[0] = 120.0
    assert left(0.2, 16.0) == "about 80 s left"
    now[0] = 121.0
    assert left(0.5, 16.0) == "about 67 s left"  # a leap of the part counts a fifth


def test_a_doctor_that_fails_is_told_in_plain_words(
    capsys: pytest.CaptureFixture[str], finished: Finished
) -> None:
    lost = vitals.vitals_of(None)  # type: ignore[arg-type]
    assert lost["notes"] == [vitals.FAILED] and "AttributeError" in lost["error"]
    rows = [replace(row, vitals=lost) for row in finished.verdict.rows]
    suite = Suite([Answer(lookup(), replace(finished.verdict, rows=rows))])
    page = compose(suite)
    assert vitals.FAILED in page and "无法检查" in page and "AttributeError" not in page
    command.tell_unexamined(suite)
    assert capsys.readouterr().err.count("the doctor could not examine") == 1
