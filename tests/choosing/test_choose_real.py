"""The experiment on real sets: its parts share no example, and its counting can fail."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    found = [importlib.import_module(name) for name in ("choose_real", "choose_real_sets")]
    yield tuple(found)
    for module in found:
        sys.modules.pop(module.__name__, None)


@pytest.mark.parametrize("classes", [True, False])
def test_no_example_is_in_two_parts(modules, classes: bool) -> None:
    _, sets = modules
    x = torch.arange(200.0).unsqueeze(1).expand(200, 2).clone()
    y = torch.arange(200) % 4 if classes else torch.randn(200)
    data, fresh = sets.resplit(sets.Examples(x, y), 0)
    seen = [
        set(torch.cat([one[0][:, 0], one[1][..., 0].flatten()]).tolist()) for one in (*data, fresh)
    ]
    assert sum(map(len, seen)) == len(set.union(*seen)) <= 200


def test_the_right_key_is_of_the_class_of_the_query(modules) -> None:
    _, sets = modules
    y = torch.arange(120) % 5
    query, key, right = sets.rows_of_class(
        y.float().unsqueeze(1), y, 1, torch.Generator().manual_seed(0)
    )
    same = key[..., 0] == query
    assert same.sum(-1).eq(1).all() and same.long().argmax(-1).equal(right)


def test_an_interval_holds_or_does_not(modules) -> None:
    real, _ = modules
    lead = {"stated": [0.1, 0.0, 0.2], "fresh": 0.25, "noise": 0.1}
    assert not real.held(lead, allow=False) and real.held(lead, allow=True)
    assert real.held(lead | {"fresh": 0.19}, allow=False)
    run = {"set": "s", "resplit": 0, "winner": "a", "null": "b", "fresh": {"a": 0.8, "b": 0.9}}
    run["leads"] = [lead]
    found = real.of_runs([run, run | {"resplit": 1}])
    assert found["held"] == 0 and found["allowed"] == 1
    assert found["regret"][0] == pytest.approx(-0.1) and found["gain"][0] == pytest.approx(-0.1)


def test_the_best_is_selected_on_other_resplits(modules) -> None:
    """Two scores of the same worth whose luck changes: the best of the same rows is ahead, that of others is not."""
    real, _ = modules
    luck = torch.randn(200, 2, generator=torch.Generator().manual_seed(1)).tolist()
    runs = [
        {
            "set": "s",
            "resplit": i,
            "winner": "b",
            "null": "b",
            "fresh": {"a": x, "b": y},
            "leads": [],
        }
        for i, (x, y) in enumerate(luck)
    ]
    found = real.of_runs(runs)
    assert found["regret"][2] < -0.3
    assert found["crossed"][1] < 0.0 < found["crossed"][2]
    better = [run | {"fresh": {"a": run["fresh"]["a"] + 2, "b": run["fresh"]["b"]}} for run in runs]
    assert real.of_runs(better)["crossed"][2] < -1.5


def test_a_line_that_was_cut_off_is_left_out(modules, tmp_path: Path) -> None:
    real, _ = modules
    path = tmp_path / "lines.jsonl"
    path.write_text('{"set": "a"}\n{"set": ')
    assert real.read_lines(path) == [{"set": "a"}]
