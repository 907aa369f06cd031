"""The runner of comparisons: equal tuning, choice by validation alone, resuming, processes, files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.recipes.comparing import compare
from regard.recipes.comparing.__main__ import main
from regard.recipes.comparing.page import write_page
from regard.recipes.comparing.results import Compared, ResultError
from regard.recipes.comparing.runner import OutOfTime
from regard.recipes.comparing.sentences import sentences
from regard.recipes.comparing.store import RunStore
from regard.recipes.comparing.work import WorkSource, facts_of, seeds_of
from regard.recipes.estimator import RecipeError
from regard.recipes.fingerprint import fingerprint
from regard.recipes.kit import Comparison, Contender, Evaluated
from regard.recipes.metrics import ACCURACY, RMSE
from regard.text import Text

from .fake_recipe import KIT, comparison, load


def made_up(
    name: str, table: dict[int, tuple[float, float]], log: list[Any], kind: Any = "score"
) -> Contender:
    """A contender whose setting `k` has a given validation and a given test accuracy."""

    def run(setting: Any, seed: int, report: Any) -> Evaluated:
        log.append((name, setting["k"], seed))
        validation, test = table[setting["k"]]
        if np.isinf(validation):
            raise RuntimeError("out of luck")
        rows = np.zeros((100, 1))
        rows[: int(test)] = 1
        return Evaluated(validation, rows, 7, 1.0, 0.1)

    return Contender(name, Text(name, name), kind, tuple({"k": k} for k in table), run)


def of(*rows: Contender, metric: Any = ACCURACY) -> Comparison:
    return Comparison("made-up", Text("Made up", "虚构"), metric, rows, rows[0].name, (3, 4, 5))


def test_settings_are_chosen_on_validation_alone(tmp_path: Path) -> None:
    log: list[Any] = []
    first = made_up("dot", {0: (50.0, 90), 1: (80.0, 40)}, log)  # the test would choose 0
    found = compare(of(first, made_up("additive", {0: (1.0, 50)}, log)), tmp_path)
    assert found.row("dot").setting == {"k": 1}
    assert found.row("dot").value.value == 40
    assert ("dot", 0, 4) not in log, "a setting that was not chosen has one seed"
    assert log.count(("dot", 1, 3)) == 1
    assert len(log) == 2 + 1 + 2 + 2


def test_smaller_is_better_where_the_metric_says_so(tmp_path: Path) -> None:
    log: list[Any] = []
    found = compare(of(made_up("dot", {0: (2.0, 50), 1: (1.0, 40)}, log), metric=RMSE), tmp_path)
    assert found.row("dot").setting == {"k": 1}


def test_diverged_validation_is_never_chosen(tmp_path: Path) -> None:
    log: list[Any] = []
    found = compare(of(made_up("dot", {0: (float("nan"), 50), 1: (1.0, 40)}, log)), tmp_path)
    assert found.row("dot").setting == {"k": 1}


def test_contender_that_diverged_has_a_row_in_the_summary_and_on_the_page(tmp_path: Path) -> None:
    def run(setting: Any, seed: int, report: Any) -> Evaluated:
        return Evaluated(np.nan, np.full((100, 1), np.nan), 7, 1.0, 0.1)

    bad = Contender("additive", Text("additive", "加性"), "score", (), run)
    found = compare(of(made_up("dot", {0: (1.0, 50)}, []), bad, metric=RMSE), tmp_path)
    found.save(tmp_path / "x.json")
    again = Compared.load(tmp_path / "x.json")
    assert [row.name for row in again.rows] == ["dot", "additive"]
    assert np.isnan(again.rows[1].values).all() and np.isnan(again.rows[1].value.low)
    assert "nan" in write_page(again, tmp_path).read_text()


def test_killed_comparison_resumes_without_repeating(tmp_path: Path) -> None:
    log: list[Any] = []
    rows = [made_up(name, {0: (1.0, 50), 1: (2.0, 60)}, log) for name in ("dot", "additive")]

    class Kill:
        """Progress that ends the run after three."""

        count = 0

        def begin(self, name: str) -> None:
            pass

        def at(self, name: str, fraction: float) -> None:
            pass

        def end(self, name: str, outcome: str) -> None:
            self.count += 1
            if self.count == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(of(*rows), tmp_path, progress=Kill())
    assert len(log) == 3
    whole = compare(of(*rows), tmp_path)
    assert len(log) == len(set(log)) == 8
    assert compare(of(*rows), tmp_path) == whole, "all runs are kept"
    assert len(log) == 8
    compare(of(*rows), tmp_path, resume=False)
    assert len(log) == 16


def test_damaged_files_are_set_aside_and_other_data_run_again(tmp_path: Path) -> None:
    log: list[Any] = []
    row = made_up("dot", {0: (1.0, 50)}, log)
    compare(of(row), tmp_path, dataset={"fingerprint": "a"})
    path = RunStore(tmp_path, "made-up", "a").path(row, {"k": 0}, 4)
    path.write_text(path.read_text()[:50])
    compare(of(row), tmp_path, dataset={"fingerprint": "a"})
    assert len(log) == 4
    assert list(path.parent.glob("*.damaged-1.json"))
    compare(of(row), tmp_path, dataset={"fingerprint": "b"})
    assert len(log) == 7


@pytest.mark.parametrize(
    "content", [b"[]", b"{}", b"\xff", b'{"schema": "regard.recipes.run/1"}', b"3"]
)
def test_any_damage_counts_as_no_run(tmp_path: Path, content: bytes) -> None:
    store, row = RunStore(tmp_path, "x"), made_up("dot", {}, [])
    store.folder.mkdir()
    store.path(row, {}, 0).write_bytes(content)
    assert store.read(row, {}, 0) is None
    assert not store.path(row, {}, 0).exists()


def test_other_fixed_arguments_or_another_device_are_other_runs(tmp_path: Path) -> None:
    """A setting names what is tried alone: a default that changes must not mix old runs with new ones."""
    log: list[Any] = []
    row = made_up("dot", {0: (1.0, 50)}, log)
    cpu = {"device": torch.device("cpu")}
    for fixed in ({"width": 8}, {"width": 16}, {"width": 8}):
        compare(of(dataclasses.replace(row, fixed=fixed)), tmp_path, seeds=1, **cpu)
    assert len(log) == 2
    compare(
        of(dataclasses.replace(row, fixed={"width": 8})),
        tmp_path,
        seeds=1,
        device=torch.device("cuda"),
    )
    assert len(log) == 3


@pytest.mark.parametrize("before", [1, 2])
def test_runs_in_this_process_have_the_threads_of_those_in_others(
    tmp_path: Path, before: int
) -> None:
    """Beside other programs, 2 threads wait for one another: a run of 10 s took minutes, and by the wall."""
    seen: list[int] = []

    def run(setting: Any, seed: int, report: Any) -> Evaluated:
        seen.append(torch.get_num_threads())
        return Evaluated(1.0, np.ones((10, 1)), 7, 1.0, 0.1)

    old = torch.get_num_threads()
    torch.set_num_threads(before)
    try:
        found = compare(of(Contender("dot", Text("dot", "点积"), "score", (), run)), tmp_path)
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(old)
    assert set(seen) == {1}
    assert found.machine["threads"] == 1


def test_machines_that_differ_are_all_told(tmp_path: Path) -> None:
    log: list[Any] = []
    row = made_up("dot", {0: (1.0, 50)}, log)
    compare(of(row), tmp_path)
    path = next((tmp_path / "runs").glob("*seed4.json"))
    other = json.loads(path.read_text())
    other["machine"] |= {"name": "Abacus", "threads": 8, "load": 99.0}
    path.write_text(json.dumps(other))
    machine = compare(of(row), tmp_path).machine
    assert len(log) == 3
    assert machine["threads"] == "1, 8"
    assert "Abacus" in machine["name"]
    assert machine["load"] != "99.0"


def test_statistics_survive_the_file(tmp_path: Path) -> None:
    given = np.array([[1, 0.123456789, np.nan], [0, -3e-7, 2**20]])
    store, row = RunStore(tmp_path, "x"), made_up("dot", {}, [])
    store.write(
        row,
        {"a": 1},
        0,
        Evaluated(float("nan"), given, 1, 1, 1, {"n": np.float32(2), "x": np.nan}),
    )
    found = store.read(row, {"a": 1}, 0)
    assert found is not None
    np.testing.assert_allclose(found.statistics, given, rtol=1e-5)
    assert np.isnan(found.validation)
    assert found.extra == {"n": 2.0, "x": None}
    assert store.read(row, {"a": 2}, 0) is None


def test_failed_contender_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    log: list[Any] = []
    bad = made_up("additive", {0: (float("inf"), 1)}, log)
    found = compare(of(made_up("dot", {0: (1.0, 50)}, log), bad), tmp_path)
    assert "out of luck" in found.failed["additive"]
    assert [row.name for row in found.rows] == ["dot"]
    with pytest.raises(ResultError, match="reference"):
        compare(of(bad), tmp_path)


def test_failed_setting_is_named_where_the_others_have_a_result(tmp_path: Path) -> None:
    log: list[Any] = []
    row = made_up("additive", {0: (1.0, 50), 1: (float("inf"), 1)}, log)
    found = compare(of(made_up("dot", {0: (1.0, 50)}, log), row), tmp_path)
    assert {one.name for one in found.rows} == {"dot", "additive"}
    assert found.failed == {"additive, setting 2 of 2": "RuntimeError: out of luck"}
    assert "Without a result: additive, setting 2 of 2." in [one.en for one in sentences(found)]
    compare(of(made_up("dot", {0: (1.0, 50)}, log), row), tmp_path)
    assert log.count(("additive", 1, 3)) == 2, "the next call tries it again"


def test_time_limit_keeps_what_is_done(tmp_path: Path) -> None:
    log: list[Any] = []
    with pytest.raises(OutOfTime):
        compare(of(made_up("dot", {0: (1.0, 50)}, log)), tmp_path, minutes=0)


def test_names_and_seeds_are_checked(tmp_path: Path) -> None:
    whole = of(made_up("dot", {0: (1.0, 50)}, []))
    with pytest.raises(RecipeError, match="there are dot"):
        compare(whole, tmp_path, only=["nope"])
    with pytest.raises(RecipeError, match="different seeds"):
        compare(whole, tmp_path, seeds=[1, 1])
    with pytest.raises(RecipeError, match="source="):
        compare(whole, tmp_path, jobs=2)
    assert seeds_of(whole, 2) == (3, 4)
    assert seeds_of(whole, 5) == (3, 4, 5, 6, 7)


def test_fingerprint_is_that_of_the_rows() -> None:
    assert fingerprint(load("points")) == fingerprint(load("points"))
    assert fingerprint(load("points")) != fingerprint(load("points", limit=199))


def test_summary_survives_the_file(tmp_path: Path) -> None:
    data = load("points")
    found = compare(comparison(data, False, None), tmp_path, dataset=facts_of(data))
    found.save(tmp_path / "x.json")
    assert Compared.load(tmp_path / "x.json") == found
    assert found.row("no attention").kind == "control"
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ResultError, match="no summary"):
        Compared.load(tmp_path / "x.json")


@pytest.mark.slow
def test_processes_give_the_result_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    source = WorkSource("recipes.fake_recipe", device="cpu")
    data = load("points")
    one = compare(comparison(data, False, None), tmp_path / "a", dataset=facts_of(data))
    two = compare(
        comparison(data, False, None), tmp_path / "b", dataset=facts_of(data), jobs=2, source=source
    )
    assert one.rows == two.rows
    out = tmp_path / "c"
    assert (
        main(["--recipe", "recipes.fake_recipe", "--out", str(out), "--jobs", "1", "--quick"]) == 0
    )
    assert Compared.load(out / "fake-points.json").rows == one.rows
    assert (out / "fake-points.html").is_file()


def test_driver_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--recipe", "nope", "--out", str(tmp_path)]) == 2
    assert "there is no recipe 'nope'" in capsys.readouterr().err


def test_run_files_are_plain_json(tmp_path: Path) -> None:
    data = load("points")
    compare(comparison(data, False, None), tmp_path, seeds=1)
    (path, *_) = sorted((tmp_path / "runs").iterdir())
    found = json.loads(path.read_text())
    wanted = {
        "comparison",
        "contender",
        "setting",
        "seed",
        "validation",
        "statistics",
        "parameters",
    }
    assert wanted | {"train_seconds", "predict_seconds", "extra"} <= found.keys()
    assert KIT.sets[0] == "points"
