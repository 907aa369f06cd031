"""Running claims: what is run again and what is not, side by side, and what goes wrong."""

# ruff: noqa: F811 - a fixture that is imported is named again where it is used
from __future__ import annotations

import importlib
import io
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from regard.claims.claim import Claim, ClaimVerdict
from regard.claims.registry import registered
from regard.claims.running import runner as runner_module
from regard.claims.running import version
from regard.claims.running.runner import ClaimRunner, RunOrder, default_jobs
from regard.claims.running.store import ResultStore, load_results
from regard.claims.running.version import code_version
from regard.measuring.progress import Bars, Track, WorkLines, progress

from .running import fake, ran, threads  # noqa: F401 - fixtures


def carry_out(folder: Path, claims: list[Claim], **order) -> ClaimRunner:
    with ResultStore(folder).opened() as store:
        runner = ClaimRunner(claims, store, RunOrder(**order))
        runner.run(WorkLines(Track(runner.shares())))
    return runner


def test_a_finished_claim_is_kept(fake, ran, threads, tmp_path: Path) -> None:
    claims = [fake("A1"), fake("A2")]
    first = carry_out(tmp_path / "out", claims[:1])
    assert (set(first.ran), set(first.kept)) == ({"A1"}, set())
    then = carry_out(tmp_path / "out", claims)
    assert (set(then.ran), set(then.kept)) == ({"A2"}, {"A1"})
    assert ran() == {"A1": 1, "A2": 1}
    assert load_results(tmp_path / "out", {c.id: c for c in claims}) == then.kept | then.ran


@pytest.mark.parametrize(
    ("first", "then", "runs"),
    [
        ({}, {"again": True}, 2),
        ({}, {"seed": 1}, 2),
        ({}, {"full": True}, 2),
        ({"full": True}, {"full": True}, 1),
        ({"full": True}, {}, 1),  # a full result is more than what a quick run would give
        ({"full": True}, {"again": True}, 2),
        ({}, {"language": "zh"}, 1),
    ],
)
def test_what_is_run_again(
    fake, ran, threads, tmp_path: Path, first: dict, then: dict, runs: int
) -> None:
    claim = fake()
    carry_out(tmp_path / "out", [claim], **first)
    carry_out(tmp_path / "out", [claim], **then)
    assert ran() == {"A1": runs}
    (result,) = load_results(tmp_path / "out", {"A1": claim}).values()
    asked = then if runs == 2 else first | then
    assert (result.full, result.seed) == (asked.get("full", False), asked.get("seed", 0))
    assert (result.numbers["full"], result.numbers["seed"]) == (result.full, result.seed)
    assert set(result.versions) == {"regard", "torch", "python", "scipy"}
    assert result.hardware["device"] == "cpu" and result.seconds >= 0


def test_a_full_result_outlives_a_quick_one(fake, threads, tmp_path: Path) -> None:
    claim, out = fake(), tmp_path / "out"
    carry_out(out, [claim], full=True)
    whole = (out / "A1.json").read_bytes()
    carry_out(out, [claim], seed=1)
    carry_out(out, [claim], seed=2)
    assert (out / "A1.full-1.json").read_bytes() == whole
    assert not (out / "A1.full-2.json").exists()  # what was there then was quick
    assert load_results(out, {"A1": claim})["A1"].seed == 2


def test_results_of_other_code_are_run_again(
    fake, ran, threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out(tmp_path / "out", [fake()])
    monkeypatch.setattr(runner_module, "code_version", lambda claim: "newer")
    assert carry_out(tmp_path / "out", [fake()]).ran["A1"].code == "newer"
    assert ran() == {"A1": 2}


def test_a_missing_figure_is_drawn_without_a_run(fake, ran, threads, tmp_path: Path) -> None:
    claim, folder = fake(), tmp_path / "out"
    before = carry_out(folder, [claim]).ran["A1"]
    drawing = (folder / "A1.svg").read_bytes()
    (folder / "A1.svg").unlink()
    assert carry_out(folder, [claim]).ran["A1"] == before
    assert (folder / "A1.svg").read_bytes() == drawing and ran() == {"A1": 1}
    carry_out(folder, [claim], language="zh")
    assert "数值（米）" in (folder / "A1.svg").read_text(encoding="utf-8")


def test_a_corrupt_result_is_run_again(fake, ran, threads, tmp_path: Path) -> None:
    carry_out(tmp_path / "out", [fake()])
    (tmp_path / "out" / "A1.json").write_text('{"schema": "regard.claims/1", "id":')
    again = carry_out(tmp_path / "out", [fake()])
    assert set(again.ran) == {"A1"} and ran() == {"A1": 2}
    assert "set aside as A1.corrupt-1.json" in again.said[0]


@pytest.mark.parametrize("alone", [False, True])
def test_numbers_that_cannot_be_drawn_are_measured_again(
    fake, ran, threads, tmp_path: Path, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, folder = [fake(alone=alone), fake("A2")], tmp_path / "out"
    carry_out(folder, claims)
    draw = type(claims[0]).draw
    # "threads" is in every result, and only this figure would need it.
    monkeypatch.setattr(
        type(claims[0]), "draw", lambda self, n, canvas: draw(self, n, canvas) or n["threads"]
    )
    found = json.loads((folder / "A1.json").read_text())
    del found["numbers"]["threads"]
    (folder / "A1.json").write_text(json.dumps(found))
    (folder / "A1.svg").unlink()
    again = carry_out(folder, claims)
    assert (set(again.ran), again.failed) == ({"A1"}, {})
    assert ran() == {"A1": 2, "A2": 1} and "threads" in again.ran["A1"].numbers


def test_a_claim_that_raises_stops_no_other(fake, threads, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "out"
    broken = fake("A2", act="raise", seconds=(9.0, 9.0))
    runner = carry_out(folder, [fake("A1"), broken, fake("A3", act="nan")])
    assert set(runner.ran) == {"A1"}
    assert runner.failed["A2"] == "ValueError: no such luck"
    assert "its numbers are not plain JSON" in runner.failed["A3"]
    log = (folder / "A2.log").read_text()
    assert log.startswith("what it printed\n") and "Traceback" in log and "in measure" in log
    assert not (folder / "A2.json").exists() and not (folder / "A3.json").exists()
    said = capsys.readouterr()
    assert said.out == "" and "A2: failed: ValueError: no such luck (about " in said.err
    carry_out(folder, [replace(broken, act="")])
    assert (folder / "A2.json").exists() and not (folder / "A2.log").exists()


def test_a_verdict_that_changed_is_known(fake, threads, tmp_path: Path) -> None:
    assert carry_out(tmp_path / "out", [fake()]).changed("A1") is None
    other = carry_out(tmp_path / "out", [fake(value=-1.0)], again=True)
    assert other.changed("A1") is ClaimVerdict.HOLDS
    assert other.ran["A1"].judgement.verdict is ClaimVerdict.FAILS
    assert carry_out(tmp_path / "out", [fake(value=-1.0)]).changed("A1") is None


def test_the_longest_comes_first_and_timings_last(fake, threads, tmp_path: Path, capsys) -> None:
    claims = [
        fake("A1"),
        fake("A2", alone=True, seconds=(50.0, 9.0)),
        fake("A3", seconds=(5.0, 9.0)),
    ]
    runner = carry_out(tmp_path / "out", claims)
    assert list(runner.ran) == ["A3", "A1", "A2"]
    assert [line.split(" (")[0][:9] for line in capsys.readouterr().err.splitlines()] == [
        "[1/3] A3:", "[2/3] A1:", "[3/3] A2:",
    ]  # fmt: skip
    store = ResultStore(tmp_path / "new")
    shares = ClaimRunner(claims, store, RunOrder(jobs=2)).shares()
    assert shares == {"A1": 0.5, "A2": 50.0, "A3": 2.5}


def test_processes_side_by_side(fake, ran, tmp_path: Path) -> None:
    """In processes as they are: two meet, one dies, one cannot travel, one is last."""
    claims = [
        fake("A1", act="meet", other="A2", seconds=(9.0, 9.0)),
        fake("A2", act="meet", other="A1", seconds=(9.0, 9.0)),
        fake("A3", act="die", seconds=(5.0, 5.0)),
        fake("A4", sample=lambda: 1.0),
        fake("A5", alone=True),
        registered(sys.modules["fake_claims"].Unsendable),
    ]
    runner = carry_out(tmp_path / "out", claims, jobs=2)
    assert set(runner.ran) == {"A1", "A2", "A5", "A6"}
    assert runner.failed["A3"] == "its process was ended by SIGKILL, perhaps out of memory"
    assert "lambda" in runner.failed["A4"] and "A4" not in ran()
    assert runner.ran["A1"].numbers["threads"] == runner.ran["A1"].hardware["threads"] == 1
    pids = {name: (tmp_path / "marks" / name).read_text().split()[1] for name in ran()}
    assert pids["A1"] != pids["A2"] and str(os.getpid()) not in pids.values()
    ends = [(tmp_path / "marks" / name).read_text().split()[-1] for name in ("A1", "A2")]
    began = (tmp_path / "marks" / "A5").read_text().split()[2]
    assert float(began) > max(map(float, ends))


def test_the_version_is_that_of_the_code_that_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = importlib.import_module("regard.claims.experiments.c1_variance_of_dot").VarianceOfDot()
    honest, before, looks = version.source, code_version(claim), version.looks_version()
    changed: list[str] = []

    def edited(name: str) -> version.Source | None:
        found = honest(name)
        return found._replace(text="#") if found and name in changed else found

    monkeypatch.setattr(version, "source", edited)
    assert code_version(claim) == before
    for name, counts in (
        ("regard.measuring.statistics", True),
        ("regard.claims.claim", True),
        (type(claim).__module__, True),
        ("regard.figures.canvas", False),
        ("regard.claims.tools.models", False),
    ):
        changed[:] = [name]
        assert (code_version(claim) != before) == counts, name
        assert (version.looks_version() != looks) == (name == "regard.figures.canvas")


def test_shared_modules_are_found_however_they_are_imported() -> None:
    text = (
        "import regard.claims.a\nfrom regard.synthetic import b\nfrom regard.measuring.c import d\n"
        "import re\nfrom regard.figures.canvas import Canvas"
    )
    found = set(version.measuring_imports(text))
    assert found == {
        "regard.claims.a",
        "regard.synthetic.b",
        "regard.measuring.c",
        "regard.measuring.c.d",
    }
    assert version.source("regard.claims.claim.Claim") is None


def test_time_left_follows_the_pace() -> None:
    track = Track({"A1": 10.0, "A2": 30.0})
    assert (track.count(), track.left()) == ("0/2", "40 s")
    track.end("A1")
    track.began = time.monotonic() - 25  # twice as slow as expected
    assert (track.done(), track.left()) == (0.25, "60 s")


def test_bars_fit_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress({"A1": 1.0, "A2": 1.0}, {"A1": "long " * 30, "A2": "[b]"}, console) as shown:
        shown.begin("A1")
        shown.at("A1", 0.5)
        shown.end("A1", "holds")
        shown.begin("A2")
    said = console.file.getvalue()  # type: ignore[attr-defined] # a StringIO
    assert "1/2 claims" in said and "A1 long" in said and "A2 [b]" in said and "left" in said


@pytest.mark.parametrize("env", [{"FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_log_file_gets_lines(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with progress({"A1": 1.0}, {"A1": "x"}) as shown:
        assert isinstance(shown, WorkLines)


def test_a_claim_that_begins_again_has_one_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress({"A1": 1.0}, {"A1": "x"}, console) as shown:
        assert isinstance(shown, Bars)
        shown.begin("A1")
        shown.begin("A1")
        assert len(shown.bars.tasks) == 2  # its own and that of the whole


def test_jobs_follow_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "available", lambda device: 3 * 2**30)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(16), raising=False)
    assert default_jobs() == 3
    monkeypatch.setattr(runner_module, "available", lambda device: 1)
    assert default_jobs() == 1
