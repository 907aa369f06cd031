"""The tasks that come with the library: every candidate runs on them, and their data is sound."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from regard.choosing.present import margin, price
from regard.choosing.suite import Suite, run_suite
from regard.choosing.tasks.embedded import MADE, all_tasks, two_criteria
from regard.choosing.tasks.real import FOLDER, Sets, folder_tasks, split
from regard.choosing.tasks.task import Task
from regard.choosing.training.candidates import ScoreSizes, candidates
from regard.claims import all_claims


def every_candidate(task: Task) -> None:
    options = task.options
    heads = options.get("heads", (1,))
    made = candidates(
        ScoreSizes(*task.dims, options["width"], True), options["scores"],
        options.get("stabilizers", ("none",)), options["hidden"], heads,
    )  # fmt: skip
    parts = task.data(0)  # type: ignore[operator] # a function of the seed
    *inputs, target = (x[:16] for x in parts[0])
    for one in made:
        output = task.build(one.make())(*inputs)
        assert output.isfinite().all() and len(output) == len(target)
    again = task.data(0)[2]  # type: ignore[operator]
    assert all(torch.equal(x, y) for x, y in zip(parts[2], again, strict=True))


@pytest.mark.parametrize("name", MADE)
def test_every_candidate_runs_on_every_task(name: str) -> None:
    task = MADE[name]()
    assert task.name == name and set(task.claims) <= set(all_claims())
    every_candidate(task)


def test_a_former_name_of_a_task_is_taken_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    from regard.cli.choose import pick_tasks

    found = pick_tasks(False, {"tasks": "digits, long range"})
    assert [task.name for task in found] == ["digits", "one of many keys"]
    assert (
        capsys.readouterr().err == "Note: the task 'long range' is now called 'one of many keys'.\n"
    )


def test_tasks_of_the_data_folder() -> None:
    if not os.environ.get(FOLDER):
        pytest.skip(f"{FOLDER} names no folder")
    tasks = folder_tasks()
    assert tasks, f"{FOLDER} names a folder without a set that is known"
    for task in tasks:
        every_candidate(task)


def test_without_a_folder_there_are_only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    assert [task.name for task in all_tasks()] == list(MADE)


def test_sets_have_one_right_key_and_share_no_example() -> None:
    y = torch.arange(200) % 5
    x = torch.stack([y, torch.arange(200)], -1).float()  # the class, and which example it is
    parts = split(x, y)
    query, key, right = Sets(parts, keys=3, rows=(50, 50, 50))(0)[2]
    alike = query[:, None, 0] == key[..., 0]
    assert alike.sum(-1).eq(1).all() and torch.equal(alike.int().argmax(-1), right)
    numbers = [set(part[0][:, 1].tolist()) for part in parts]
    assert not (numbers[0] & numbers[1] or numbers[1] & numbers[2] or numbers[0] & numbers[2])


def test_a_suite_goes_on_after_a_task_without_a_verdict(tmp_path) -> None:
    good = replace(two_criteria(), options=two_criteria().options | {"steps": 10, "rates": (1e-2,)})
    bad = replace(good, name="bad", build=lambda score: 1 / 0)
    suite: Suite = run_suite(
        [bad, good], minutes=1, storage=tmp_path / "a.journal", tell=lambda *told: None, seeds=2,
        vitals=False,
    )  # fmt: skip
    assert [one.task.name for one in suite.failed] == ["bad"]
    assert "ZeroDivisionError" in suite.failed[0].reason
    verdict = suite.answers[1].verdict
    assert verdict is not None and margin(verdict) and price(verdict, verdict.rows[0])
    assert suite.as_dict()["tasks"][0]["reason"]
