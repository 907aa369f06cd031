"""`regard.choose`: failures, limits, resuming, processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import regard
from regard.choosing.api import ChooseError
from regard.choosing.tasks.models import Match
from regard.choosing.training import run
from regard.choosing.training.asking import asked_by
from regard.choosing.training.notes import notes_on_time
from regard.choosing.training.stages import Settings
from regard.choosing.training.verdict import Outcome, Verdict
from regard.synthetic.largest_product import LargestProduct

from .conftest import OPTIONS, Finished, again
from .known import Meeting, Worlds, small, trials

NAMES = ("scaled_dot", "scaled_dot w=4", "additive h=4", "additive h=8", "cosine")
RATES = OPTIONS["rates"]
SCRIPT = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
sys.path.insert(0, sys.argv[1])
from known import Meeting, small
from regard.choosing.tasks.models import Match

def build(score):
    time.sleep(0.15)  # as a large model would take
    return Match(score)

place, jobs, *meeting = sys.argv[2:]
more = {"data": Meeting(Path(meeting[0]))} if meeting else {}
small(place, build=build, jobs=int(jobs), resume=True, seeds=3, **more)
"""


def test_a_verdict_says_everything(finished: Finished) -> None:
    verdict = finished.verdict
    assert verdict.outcome in Outcome and verdict.seeds == [1, 2]
    assert {row.candidate.name for row in verdict.rows} == set(NAMES)
    winner = verdict.row(verdict.winner)
    assert winner.cost is not None and winner.cost.seconds > 0 and winner.cost.memory > 0
    assert winner.rate in verdict_ladder(verdict) and len(winner.curve) == 8
    for row in verdict.rows:
        assert row.status == "final" and row.vitals["vitals"]["entropy"] >= 0
    assert isinstance(verdict.make(), regard.Score)
    found = json.loads(json.dumps(verdict.as_dict(), allow_nan=False))
    assert found["winner"] == verdict.winner and len(found["candidates"]) == len(NAMES)
    assert verdict.code in str(verdict) and "scaled dot" in str(verdict)


def verdict_ladder(verdict: Verdict) -> list[float]:
    """The rates that a comparison may try."""
    return Settings(**verdict.facts["settings"]).ladder


def test_equal_budget_for_every_candidate(finished: Finished) -> None:
    """Each candidate tries every rate, and halving looks at all at the same steps."""
    searched = trials(finished.place, "choose/search")
    cells = [(t.user_attrs["cell"]["candidate"], t.params["rate"]) for t in searched]
    assert sorted(x for x in cells if x[1] in RATES) == sorted(product(NAMES, RATES))
    assert {step for t in searched for step in t.intermediate_values} <= {5, 10, 15, 20}
    assert {t.state.name for t in searched} == {"COMPLETE", "PRUNED"}


def test_loaders_and_own_metrics(tmp_path: Path) -> None:
    parts = Worlds(LargestProduct(dim=8, keys=4), rows=(128, 64, 64))(0)
    loaders = [DataLoader(TensorDataset(*part), 32, shuffle=True) for part in parts[:2]]

    def share(output: torch.Tensor, target: torch.Tensor) -> float:
        return (output.argmax(-1) == target).float().mean().item()

    loss = nn.functional.cross_entropy
    verdict = small(tmp_path / "a.journal", data=loaders, metric=share, loss=loss, batch=16)
    assert verdict.metric == "share"


def test_a_model_that_raises_for_one_score_costs_only_that(tmp_path: Path) -> None:
    def build(score: regard.Score) -> nn.Module:
        if score.name == "cosine":
            raise RuntimeError("this model has no place for cosine\nand a second line")
        return Match(score)

    verdict = small(tmp_path / "a.journal", build=build, scores=("cosine", "additive"))
    row = verdict.row("cosine")
    assert row.status == "failed"
    assert row.reason == "RuntimeError: this model has no place for cosine"
    assert "failed: RuntimeError: this model" in str(verdict)
    assert verdict.row("additive h=8").status == "final"


def test_a_model_that_raises_in_the_middle_keeps_what_is_finished(tmp_path: Path) -> None:
    calls = []

    class Fragile(Match):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            calls.append(self.score.name)
            if self.score.name == "additive" and calls.count("additive") > 60:
                raise ValueError("it broke")
            return super().forward(*inputs)

    place = tmp_path / "a.journal"
    verdict = small(place, build=Fragile)
    row = verdict.row("additive h=8")
    assert (row.status, row.reason) == ("failed", "ValueError: it broke")
    done = [t for t in trials(place, "choose/search") if t.state.name == "COMPLETE"]
    assert len(done) >= 2
    # Mended, the same comparison goes on and does the rest alone.
    again = small(place, resume=True)
    assert again.row("additive h=8").status == "final"
    numbers = {t.number for t in trials(place, "choose/search") if t.state.name == "COMPLETE"}
    assert {t.number for t in done} <= numbers


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda score: 1 / 0, "every candidate failed, scaled_dot the first: ZeroDivisionError"),
        (lambda score: "no model", "build_model must return an nn.Module"),
        (lambda score: nn.Identity(), "without parameters"),
    ],
)
def test_all_failing_is_one_error(build, said: str, tmp_path: Path) -> None:
    with pytest.raises(ChooseError, match=said):
        small(tmp_path / "a.journal", build=build)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"scores": ("addtive",)}, ValueError, "unknown score 'addtive': known are scaled_dot"),
        ({"stabilizers": ("glue",)}, ValueError, "unknown stabilizer 'glue'"),
        ({"scores": {"mine": regard.Dot()}}, TypeError, "a function that builds a fresh score"),
        ({"metric": "f1"}, ValueError, "unknown metric 'f1'"),
        ({"metric": lambda a, b: 0.0}, ValueError, "needs loss="),
        ({"scores": "additive"}, ValueError, r"scores must be a list such as \['additive'\]"),
        ({"rates": 0.01}, ValueError, r"rates must be a list such as \[0.01\]"),
        ({"dims": (8, 8, 8)}, ValueError, "dims must be a number, or two numbers"),
        ({"seeds": 0}, ValueError, "seeds"),
        ({"minutes": 0}, ValueError, "minutes"),
        ({"rates": ()}, ValueError, "rates"),
        ({"data": 3}, ChooseError, "data must be"),
        ({"data": ((torch.ones(4),), (torch.ones(4),))}, ChooseError, "inputs ..., target"),
        ({"data": ([[1.0], [2.0]], 5)}, ChooseError, "validation must be a tuple"),
        (
            {"data": ((torch.full((4, 2), torch.nan), torch.ones(4)),) * 2},
            ChooseError,
            "holds NaN",
        ),
        ({"storage": "nosuch://place"}, ChooseError, "storage nosuch://place: cannot be"),
        ({"storage": "/dev/null/a.journal"}, ChooseError, "cannot be opened"),
    ],
)
def test_mistakes_are_named(options, error, said: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=said):
        small(**{"folder": tmp_path / "a.journal"} | rename(options))


def rename(options: dict) -> dict:
    """`small` calls the storage `folder`."""
    return {{"storage": "folder"}.get(key, key): value for key, value in options.items()}


def test_a_model_that_gives_nan_has_no_quality(tmp_path: Path) -> None:
    """The largest of NaNs is the first: accuracy alone would not tell."""

    class Broken(Match):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            bad = self.score.name == "cosine" or broken
            return super().forward(*inputs) * (torch.nan if bad else 1.0)

    broken = False
    verdict = small(tmp_path / "a.journal", build=Broken, scores=("cosine",), rates=(1e-2,))
    row = verdict.row("cosine")
    assert row.status == "failed" and "no number at seed 1, 2" in row.reason
    assert verdict.winner == "scaled_dot" and verdict.runner_up is None
    broken = True
    with pytest.raises(ChooseError, match="scaled_dot the first: it diverged"):
        small(tmp_path / "b.journal", build=Broken, rates=(1e-2,))


def test_too_little_time_is_one_error_and_resumes(tmp_path: Path) -> None:
    place = tmp_path / "a.journal"
    slow = lambda score: time.sleep(0.25) or Match(score)  # noqa: E731 - 0.001 minutes are 0.06 s
    with pytest.raises(
        ChooseError, match=r"0.001 minutes were not enough .* resume=True continues"
    ):
        small(place, minutes=0.001, build=slow)
    with (
        asked_by("command"),
        pytest.raises(ChooseError, match=r"more --minutes or fewer --steps; .* --resume"),
    ):
        small(place, minutes=0.001, build=slow)
    assert small(place, resume=True).seeds == [1, 2]


def test_ctrl_c_gives_a_verdict_of_what_is_finished(tmp_path: Path) -> None:
    place = tmp_path / "a.journal"

    def impatient(label: str, part: float, left: float) -> None:
        if label.startswith("comparing") and finished(place, "choose/final")[3:]:
            raise KeyboardInterrupt

    slow = lambda score: time.sleep(0.25) or Match(score)  # noqa: E731 - so that there are ticks
    verdict = small(place, progress=impatient, seeds=9, build=slow)
    assert verdict.interrupted and 1 <= len(verdict.seeds) < 9
    assert small(place, seeds=9, resume=True).seeds == list(range(1, 10))


def test_steps_fit_the_time(tmp_path: Path) -> None:
    began = time.monotonic()
    verdict = small(tmp_path / "a.journal", steps=None, minutes=0.2)
    assert time.monotonic() - began < 40
    steps = verdict.facts["settings"]["steps"]
    assert steps >= 20
    said = f"Trainings had {steps} steps, as many as the time allowed"
    assert (said in str(verdict)) is (steps < 200)


def test_what_short_trainings_left_out_is_said() -> None:
    order: Any = SimpleNamespace(steps=None, minutes=1, optional={"cosine heads=4"})
    settings = Settings(["scaled_dot"], [1e-2], [1], 60, 8, "accuracy", 1)
    with asked_by("command"):
        (note,) = notes_on_time(order, settings)
    assert (
        "60 steps" in note.en
        and "several heads were left out" in note.en
        and "(--minutes 5)" in note.en
    )
    order.optional = frozenset()
    assert "heads" not in notes_on_time(order, settings)[0].en
    assert notes_on_time(order, replace(settings, steps=200)) == []
    order.steps = 60  # as the user wants it
    assert notes_on_time(order, settings) == []


def test_another_comparison_is_not_resumed(finished: Finished, tmp_path: Path) -> None:
    place = finished.copy(tmp_path)
    with pytest.raises(ChooseError, match="it differs in rates, seeds"):
        again(place, resume=True, rates=(1e-2,), seeds=1)
    new = small(place, scores=(), rates=(1e-2,))
    assert new.facts["study"] == "choose-2" and new.winner == "scaled_dot"


def test_resuming_a_finished_comparison_trains_nothing(finished: Finished, tmp_path: Path) -> None:
    place = finished.copy(tmp_path)
    count = len(trials(place, "choose/final"))
    verdict = again(place, resume=True)
    assert len(trials(place, "choose/final")) == count
    assert verdict.winner == finished.verdict.winner
    assert [x.quality for x in verdict.rows] == [x.quality for x in finished.verdict.rows]


def test_two_jobs_give_what_one_gives(tmp_path: Path) -> None:
    """The same seeds, whoever trains them; closures need no pickling."""
    marker = []
    build = lambda score: marker.append(1) or Match(score)  # noqa: E731 - a closure
    one = small(tmp_path / "a.journal", build=build, rates=(1e-2,))
    two = small(tmp_path / "b.journal", build=build, rates=(1e-2,), jobs=2)
    for row in one.rows:
        twin = two.row(row.candidate.name)
        assert twin.quality == pytest.approx(row.quality, abs=0.04)


def run_script(place: Path, *arguments: object) -> subprocess.Popen:
    """Jobs, and where it meets another process if it has to."""
    given = [str(x) for x in (Path(__file__).parent, place, *arguments)]
    command = [sys.executable, "-c", SCRIPT, *given]
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)


def finished(place: Path, name: str) -> list[int]:
    if not place.exists():
        return []
    return [t.number for t in trials(place, name) if t.state.name in ("COMPLETE", "PRUNED")]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_in_the_middle_it_resumes(tmp_path: Path, jobs: int) -> None:
    place = tmp_path / "a.journal"
    process = run_script(place, jobs)
    deadline = time.monotonic() + 120
    while len(finished(place, "choose/search")) < 2 and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    before = finished(place, "choose/search")
    assert before
    verdict = small(place, resume=True, seeds=3)
    assert verdict.seeds == [1, 2, 3]
    assert set(before) <= set(finished(place, "choose/search"))
    killed = [t for t in trials(place, "choose/search") if t.state.name == "RUNNING"]
    assert killed == []


def test_two_processes_share_one_study(tmp_path: Path) -> None:
    place, meeting = tmp_path / "a.journal", tmp_path / "meeting"
    meeting.mkdir()
    other = run_script(place, 1, meeting)
    while not (place.exists() and trials(place, "choose/search")):
        assert other.poll() is None, other.stderr.read().decode()
        time.sleep(0.1)
    verdict = small(place, resume=True, seeds=3, data=Meeting(meeting))
    _, said = other.communicate(timeout=120)
    assert other.returncode == 0, said.decode()
    assert verdict.seeds == [1, 2, 3]
    done = [t for t in trials(place, "choose/final") if t.state.name == "COMPLETE"]
    cells = [(t.params["candidate"], t.params["seed"]) for t in done]
    assert len(cells) == len(set(cells)) == 6
    assert len({t.user_attrs["owner"]["process"] for t in done}) == 2


def test_choose_is_an_ordinary_function_and_loads_no_claim() -> None:
    """It was a module that acted as a function, and brought all experiments to print a sentence."""
    code = (
        "import sys, types\n"
        "import regard\n"
        "assert type(regard.choose) is types.FunctionType\n"
        "import regard.choosing.report, regard.choosing.suite\n"
        "from regard import choose\n"
        "assert choose is regard.choose\n"
        "assert not [name for name in sys.modules if name.startswith('regard.claims')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_resumed_run_keeps_its_finalists(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More search found other finalists, which lacked the seeds that were finished: 2 seeds became 1."""
    monkeypatch.setattr(run.Contest, "search", lambda *_: pytest.fail("it searches again"))
    monkeypatch.setattr(run, "finalists", lambda *_: pytest.fail("it picks finalists again"))
    found = again(finished.copy(tmp_path), resume=True)
    assert found.seeds == finished.verdict.seeds
    names = [row.candidate.name for row in found.finalists]
    assert names == [row.candidate.name for row in finished.verdict.finalists]
