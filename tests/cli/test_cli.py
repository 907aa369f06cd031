"""The command line from outside: output, exit codes, messages."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console

import regard
from regard import cli
from regard.choosing.cost import measurement
from regard.cli.app import group
from regard.cli.progress import progress

SHAPE = "d_q=12,d_k=8,len=24,heads=2"
QUICK = ["--seconds", "0.2", "--device", "cpu", "--threads", "1"]


@pytest.fixture
def regard_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)  # other tests keep theirs

    def run(*arguments: str, **env: str) -> Result:
        return CliRunner(env=env).invoke(group, arguments, prog_name="regard")

    return run


def test_choose_prints_the_answer_and_saves_the_chart(regard_cli, tmp_path: Path) -> None:
    result = regard_cli("choose", "--shape", SHAPE, *QUICK)
    assert result.exit_code == 0, result.output
    assert "Which score should you use at this shape?" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert "…" not in result.stdout
    for name in (
        "projected scaled dot",
        "additive",
        "textbook additive",
        "low-rank bilinear",
        "GATv2",
    ):
        assert f"\n{name} " in result.stdout
    unwrapped = " ".join(result.stdout.split())
    assert "needs query dim == key dim, got query dim 12 and key dim 8" in unwrapped
    saved = {path.name: path.stat().st_size for path in (tmp_path / "regard-choose").iterdir()}
    assert set(saved) == {"cost.json", "cost.png", "cost.svg"}
    assert min(saved.values()) > 5000
    assert "Saved in regard-choose: cost.json, cost.png, cost.svg" in result.stdout


def test_json_is_all_that_stdout_holds(regard_cli) -> None:
    result = regard_cli(
        "choose", "--shape", SHAPE, "--json", "--seed", "3", "--out", "here", *QUICK
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert json.loads(Path("here/cost.json").read_text(encoding="utf-8")) == found
    assert "Saved in here" in result.stderr
    assert set(found) == {
        "schema",
        "shape",
        "machine",
        "seed",
        "interrupted",
        "seconds",
        "baseline",
        "results",
        "notes",
    }
    assert (found["seed"], found["shape"]["d_k"], found["machine"]["regard"]) == (
        3,
        8,
        regard.__version__,
    )
    rows = {row["name"]: row for row in found["results"]}
    for name in ("dot", "scaled_dot", "cosine", "gaussian"):
        assert rows[name]["status"] == "refused"
        assert "got query dim 12 and key dim 8" in rows[name]["reason"]
        assert rows[name]["forward_seconds"] is None
        assert rows[f"projected_{name}"]["status"] == "measured"
    for row in rows.values():
        assert len(row) == 18
        if row["status"] == "measured":
            times = row["forward_backward_seconds"]
            assert 0 < times["q1"] <= times["median"] <= times["q3"]
            assert row["forward_peak_bytes"] > 0 and row["error"] > 0 and row["rule_of_thumb"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["explain"], "--shape is missing. Example: regard explain --shape d_q="),
        (["choose", "--data", "none.npz"], "none.npz: cannot be read: No such file"),
        (["choose", "--data", "a.npz", "--shape", "d_q=4,len=3"], "give one of them"),
        (["choose", "--tasks", "chess"], "--tasks chess: unknown task. Tasks: look-up"),
        (["choose", "--shape", "d_q=8,length=3"], "unknown key 'length' in 'length=3'"),
        (["choose", "--shape", "d_q=x,len=3"], "d_q must be a positive whole number, got 'x'"),
        (["choose", "--shape", "d_q=9999999,len=99999999"], "too large for this machine"),
        (["choose", "--shape", "d_q=4,len=3", "--seconds", "-1"], "--seconds"),
        (["choose", "--shape", "d_q=4,len=3", "--seed", "-1"], "--seed"),
        (["explain", "--shape", "d_q=4,d_k=3,len=3"], "needs query dim == key dim"),
        (["explain", "--shape", "d_q=4,len=3", "--score", "adaptive"], "--score adaptive: unknown"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    regard_cli, arguments: list[str], named: str
) -> None:
    result = regard_cli(*arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert named in result.stderr
    assert result.stderr.count("Error:") == 1 and "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("chose", "No such command 'chose'. Did you mean choose? See regard --help"),
        ("frobnicate", "No such command 'frobnicate'. See regard --help"),
        ("choose --dta x", "No such option '--dta'. Did you mean --data? See regard choose --help"),
        ("choose --sed 3", "No such option '--sed'. Did you mean --seed? See regard choose --help"),
        ("choose --verbose", "No such option '--verbose'. See regard choose --help"),
        ("claims run --agan", "No such option '--agan'. Did you mean --again? See regard claims run"),
        ("bench --suit bars", "arguments: --suit bars. Did you mean --suite? See regard bench"),
        ("bench --frobnicate", "arguments: --frobnicate. See regard bench"),
    ],
)  # fmt: skip
def test_a_name_that_is_nearly_right_is_answered_with_one(regard_cli, line: str, said: str) -> None:
    result = regard_cli(*line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("columns", ["0", "00"])
def test_no_columns_is_no_width(regard_cli, columns: str) -> None:
    result = regard_cli("claims", COLUMNS=columns)
    assert result.exit_code == 0 and "\nA1 " in result.stdout


def test_control_characters_stay_out_of_messages(regard_cli) -> None:
    result = regard_cli("explain", "--shape", "d_q=4,len=3", "--device", "\x1b[2J")
    assert result.exit_code == 2 and result.stderr[:-1].isprintable()
    result = regard_cli("\x1b[2J")
    assert result.exit_code == 2 and result.stderr[:-1].isprintable()


def test_no_gpu_is_said_in_one_message(regard_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = regard_cli("choose", "--shape", "d_q=4,len=3", "--device", "cuda")
    assert (result.exit_code, "torch sees no GPU" in result.stderr) == (2, True)


def test_a_folder_that_cannot_be_made_loses_only_the_files(regard_cli) -> None:
    Path("taken").write_text("a file")
    result = regard_cli("choose", "--shape", SHAPE, "--out", "taken/folder", *QUICK)
    assert result.exit_code == 1
    assert "\nadditive " in result.stdout
    assert "Error: --out taken/folder: the results were not saved: Not a directory" in result.stderr


def test_a_full_disk_loses_only_the_files(regard_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    result = regard_cli("choose", "--shape", SHAPE, *QUICK)
    assert result.exit_code == 1
    assert "\nadditive " in result.stdout
    assert "the results were not saved: No space left on device" in result.stderr
    assert list(Path("regard-choose").iterdir()) == []


def test_ctrl_c_prints_what_was_measured(regard_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = measurement.Measurement.time_once
    calls = []

    def stop(self: measurement.Measurement, row: measurement.Row) -> None:
        calls.append(row)
        if len(calls) == 3:
            raise KeyboardInterrupt
        honest(self, row)

    monkeypatch.setattr(measurement.Measurement, "time_once", stop)
    result = regard_cli("choose", "--shape", SHAPE, *QUICK)
    assert result.exit_code == 130
    assert "Interrupted: 2 of 9 scores have times" in result.stdout
    assert json.loads(Path("regard-choose/cost.json").read_text(encoding="utf-8"))["interrupted"]


def test_a_terminal_has_colours(regard_cli) -> None:
    result = regard_cli(
        "choose", "--shape", "d_q=4,len=3", *QUICK, FORCE_COLOR="1", TERM="xterm-256color"
    )
    assert "\x1b[1;36m" in result.stdout


def test_progress_is_silent_without_a_terminal(regard_cli) -> None:
    assert regard_cli("choose", "--shape", "d_q=4,len=3", *QUICK).stderr == ""


def test_progress_shows_what_is_measured() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress(console) as step:
        step("timing additive", 1.0, 4.0)
    assert "timing additive" in console.file.getvalue()  # type: ignore[attr-defined] # a StringIO


def test_version(regard_cli) -> None:
    result = regard_cli("--version")
    assert result.stdout == f"regard {regard.__version__}, torch {torch.__version__}\n"


def test_explain_prints_the_plan(regard_cli) -> None:
    arguments = [
        "explain",
        "--shape",
        "d_q=8,d_k=4,len=4",
        "--score",
        "additive",
        "--device",
        "cpu",
    ]
    result = regard_cli(*arguments)
    assert result.exit_code == 0
    assert "engine  plain" in result.stdout and "refused sdpa" in result.stdout
    plan = json.loads(regard_cli(*arguments, "--json").stdout)
    assert plan["engine"] == "plain" and plan["error_bound"] < 1e-3


@pytest.mark.parametrize("missing", cli.NEEDS)
def test_without_the_extra_it_says_how_to_install_it(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 1
    said = f"regard: the command line needs {missing}: pip install 'regard[cli]'\n"
    assert capsys.readouterr().err == said


def test_the_entry_point_runs_and_loads_no_more_than_it_must() -> None:
    """In a process of its own: the packages of the extra come with the command, not before."""
    code = (
        "import sys, regard.cli; early = {'click', 'rich', 'matplotlib'} & set(sys.modules); "
        "print(sorted(early)); regard.cli.main(['--version'])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("[]\nregard ")
