"""`regard claims` from outside: what it prints and writes, exit codes, messages, signals."""

# ruff: noqa: F811 - a fixture that is imported is named again where it is used
from __future__ import annotations

import errno
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from regard.claims import report
from regard.claims.registry import Survey
from regard.claims.running.store import load_results
from regard.cli import claims as command
from regard.cli.app import group
from regard.measuring.progress import WorkLines

from .running import fake, ran, threads  # noqa: F401 - fixtures

# The command with two claims of ours: A1 ends at once, A2 does not.
# A shell starts what runs in its background with Ctrl-C ignored, tests included.
DRIVER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
from dataclasses import replace
from fake_claims import Fake
from regard.claims.registry import Survey
from regard.cli import app, main
from regard.cli import claims as command
found = {name: Fake(id=name, marks=sys.argv[2], act=act) for name, act in
         (("A1", ""), ("A2", "wait"))}
command.survey = lambda: Survey(found, {})
main(sys.argv[3:])
"""
POSIX = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
PATIENCE = 90


@pytest.fixture
def known(fake, monkeypatch: pytest.MonkeyPatch) -> Survey:
    """The claims that there are: A1 and A2 hold, B1 does not."""
    made = [fake("A1"), fake("A2"), fake("B1", value=-1.0)]
    found = Survey({claim.id: claim for claim in made}, {})
    monkeypatch.setattr(command, "survey", lambda: found)
    return found


@pytest.fixture
def cli(known, threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs `regard claims` in an empty folder; the report is one line."""

    def write_report(folder: Path, language: str, path: Path) -> Path:
        path.write_text(f"{language}: {', '.join(load_results(folder, known.claims))}")
        return path

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(report, "write_report", write_report)

    def run(*arguments: str, **env: str) -> Result:
        more = ["--jobs", "1"] if arguments[:1] == ("run",) else []
        return CliRunner(env=env).invoke(group, ["claims", *arguments, *more], prog_name="regard")

    return run


def test_the_list_before_and_after_a_run(cli) -> None:
    before = cli()
    assert before.exit_code == 0, before.output
    assert before.stdout.count("not run") == 4 and not Path("regard-claims").exists()
    assert cli("run").exit_code == 0
    after = cli()
    assert "A1   A value is above zero" in after.stdout
    assert "holds: 2, does not hold here: 1" in after.stdout
    chinese = cli("--lang", "zh").stdout
    assert "据说有一个数大于零。" in chinese and "在此不成立" in chinese
    for result in (before, after, cli("run", "--full", "--no-report"), cli("show", "A1")):
        assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_the_list_as_json(cli) -> None:
    cli("run", "A1", "--seed", "4")
    first, second, _ = json.loads(cli("--json", "--lang", "zh").stdout)
    assert (first["id"], first["verdict"], first["seed"], first["current"]) == (
        "A1",
        "holds",
        4,
        True,
    )
    assert first["statement"] == "据说有一个数大于零。" and second["verdict"] is None


def test_a_run_as_json(cli) -> None:
    result = cli("run", "A1", "B1", "--json")
    assert result.exit_code == 0, result.output
    found = {one["id"]: one["verdict"] for one in json.loads(result.stdout)}
    assert found == {"A1": "holds", "B1": "does not hold here"}
    assert "Report: regard-claims/report.html" in result.stderr


def test_a_run_says_verdicts_and_writes_everything(cli, ran) -> None:
    result = cli("run", "--lang", "zh")
    assert result.exit_code == 0, result.output
    files = {path.name for path in Path("regard-claims").iterdir()}
    each = {f"{name}.{suffix}" for name in ("A1", "A2", "B1") for suffix in ("json", "svg", "png")}
    assert files == each | {".lock", "report.html"}
    assert Path("regard-claims/report.html").read_text() == "zh: A1, A2, B1"
    assert "Report: regard-claims/report.html" in result.stdout
    assert "它是 -1.0。" in result.stdout  # why a verdict is not plain
    assert "[3/3] " in result.stderr
    again = cli("run", "--lang", "zh")
    assert "运行 0 条，沿用 3 条" in again.stdout and again.stderr == ""
    assert ran() == {"A1": 1, "A2": 1, "B1": 1}
    assert "3 run, 0 kept, 0 failed." in cli("run", "--again").stdout
    assert ran() == {"A1": 2, "A2": 2, "B1": 2}


def test_ids_and_groups_choose(cli, ran) -> None:
    assert cli("run", "a", "--no-report").exit_code == 0
    assert ran() == {"A1": 1, "A2": 1} and not Path("regard-claims/report.html").exists()
    assert "2 run, 0 kept" in cli("run", "a1", "B", "--seed", "7").stdout


def test_a_changed_verdict_is_marked(cli, known, fake) -> None:
    cli("run", "A1")
    known.claims["A1"] = fake("A1", value=-2.0)
    result = cli("run", "A1", "--again")
    assert "does not hold here" in result.stdout and "was: holds" in result.stdout


def test_a_claim_that_raises_gives_status_1(cli, known, fake) -> None:
    known.claims["A2"] = fake("A2", act="raise")
    result = cli("run")
    assert result.exit_code == 1
    assert (
        "ValueError: no such luck" in result.stdout and "2 run, 0 kept, 1 failed" in result.stdout
    )
    assert "A2 failed: regard-claims/A2.log has the details" in result.stderr
    assert Path("regard-claims/report.html").exists() and "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "A3"], "there is no claim 'A3'. Did you mean A2 or A1?"),
        (["show", "Q9"], "there is no claim 'Q9'"),
        (["show", "A"], "'A' is a group; give one of A1, A2"),
        (["run", "--quick", "--full"], "--quick and --full exclude each other"),
        (["run", "--seed", "-1"], "--seed"),
        (["run", "--out", "taken"], "Directory 'taken' is a file"),
        (["run", "--out", "taken/deeper"], "cannot write to taken/deeper: Not a directory"),
        (["--out", "taken"], "Directory 'taken' is a file"),
        (["run", "--out", ""], "--out is empty; give a folder"),
        (["report"], "there are no results in regard-claims: `regard claims run` makes them"),
        (["--json", "run"], "put --json after the command"),
        (["A1"], "there is no command 'A1'; the commands are run, show and report"),
    ],
)
def test_a_mistake_is_one_message_and_status_2(cli, arguments: list[str], said: str) -> None:
    Path("taken").write_text("a file")
    result = cli(*arguments)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert said in " ".join(result.stderr.split())
    assert result.stderr.count("Error:") == 1 and "Traceback" not in result.stderr
    assert result.stdout == "" and not Path("regard-claims").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_what_cannot_be_written_keeps_what_is_there(
    cli, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("run", "A1", "--no-report")

    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        result = cli("run", "--no-report")
    assert result.exit_code == 1 and os.strerror(number) in result.stderr
    assert result.stderr.count("Error:") == 1 and "Traceback" not in result.output
    files = {path.name for path in Path("regard-claims").iterdir()}
    assert files == {".lock", "A1.json", "A1.svg", "A1.png"}
    assert "2 run, 1 kept" in cli("run").stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("verb", [[], ["--json"]])  # show prints as the list does
def test_an_output_that_is_full_is_one_message(verb: list[str], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "regard.claims", "--out", str(tmp_path), *verb],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
    assert (found.returncode, found.stderr) == (1, "Error: No space left on device\n")


def test_a_report_that_cannot_be_written_is_one_message(cli) -> None:
    cli("run", "A1", "--no-report")
    result = cli("report", "--to", "nowhere/x.html")
    assert (
        result.exit_code == 2 and "the report nowhere/x.html could not be written" in result.stderr
    )
    assert cli("report", "--to", "x.html", "--lang", "zh").stdout == "Report: x.html\n"
    assert Path("x.html").read_text() == "zh: A1"


def test_a_report_on_a_full_disk_is_no_mistake_of_the_user(
    cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(report, "write_report", full)
    said = "the report {} could not be written: No space left on device\n"
    ran = cli("run", "A1")  # whose result is saved and printed
    assert ran.exit_code == 1 and said.format("regard-claims/report.html") in ran.stderr
    assert "A1 " in ran.stdout and Path("regard-claims/A1.json").exists()
    again = cli("report", "--to", "x.html")
    assert (again.exit_code, again.stderr) == (1, "Error: " + said.format("x.html"))
    os.mkfifo("pipe.html")
    taken = cli("report", "--to", "pipe.html")
    assert taken.exit_code == 2 and "this exists and is not a file" in taken.stderr


def test_a_file_that_cannot_be_loaded_is_named(cli, known) -> None:
    known.broken["a9_bad.py"] = SyntaxError("invalid\nsyntax")
    listed = cli()
    assert listed.exit_code == 0 and "A1 " in listed.stdout
    said = "regard claims: a9_bad.py cannot be loaded: SyntaxError: invalid syntax\n"
    assert listed.stderr == said
    result = cli("run", "A1")
    assert result.exit_code == 1 and said in result.stderr and "holds" in result.stdout


def test_show_tells_all(cli) -> None:
    assert "not run" in cli("show", "a1").stdout
    cli("run", "A1", "--seed", "2", "--out", "there")
    shown = cli("--out", "there", "show", "A1").stdout  # an option before the command counts too
    for part in ("It is above 0.", "It is 1.0.", "Zero.", "Nothing at all.", "value", "[0.0, 2.0]"):
        assert part in shown
    assert "regard claims run A1 --quick --seed 2" in shown
    assert "大于 0。" in cli("show", "A1", "--lang", "zh").stdout
    assert json.loads(cli("show", "A1", "--json", "--out", "there").stdout)["verdict"] == "holds"


def test_a_result_of_other_code_is_marked(cli) -> None:
    cli("run", "A1")
    path = Path("regard-claims/A1.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code": "older"}))
    listed = cli().stdout
    assert "holds*" in listed and "* measured with a different version of the code" in listed
    assert "* measured with a different version of the code" in cli("show", "A1").stdout


@pytest.mark.parametrize("missing", command.NEEDS)
def test_without_the_extra_it_says_how_to_install_it(
    cli, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    result = cli()
    assert result.exit_code == 1
    assert result.stderr == f"Error: regard claims needs {missing}: pip install 'regard[claims]'\n"


def test_no_color_is_respected(cli) -> None:
    cli("run", "A1")
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b[32mholds" in cli(**terminal).stdout
    assert "\x1b[32m" not in cli(**terminal, NO_COLOR="1").stdout
    assert "\x1b" not in cli().stdout


@pytest.mark.parametrize("verb", [[], ["run"], ["show"], ["report"]])
def test_help_shows_examples(cli, verb: list[str]) -> None:
    result = (
        cli(*verb[:1], "--help")
        if verb != ["run"]
        else CliRunner().invoke(group, ["claims", "run", "--help"], prog_name="regard")
    )
    assert result.exit_code == 0 and "Examples:" in result.stdout
    assert f"regard {' '.join(['claims', *verb])}" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_ctrl_c_is_one_line(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: WorkLines, name: str, outcome: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkLines, "end", stop)
    result = cli("run")
    assert result.exit_code == 130 and result.stdout == ""
    assert result.stderr == (
        "Interrupted: 1 of 3 claims were finished and are kept in regard-claims; the same command "
        "continues.\n"
    )


def started(tmp_path: Path) -> subprocess.Popen[str]:
    """The command in a process group of its own, when A1 is finished and A2 runs."""
    (tmp_path / "marks").mkdir(exist_ok=True)
    here = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, here, str(tmp_path / "marks"), "claims", "run", "--jobs", "1"],
        cwd=tmp_path, text=True, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + PATIENCE
    while not (tmp_path / "marks" / "A2").exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    return process


def vanished(pid: int) -> bool:
    """Whether a process ends soon."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@POSIX
def test_ctrl_c_in_a_terminal_keeps_what_is_finished(cli, known, ran, tmp_path: Path) -> None:
    process = started(tmp_path)
    locked = cli("run")
    assert locked.exit_code == 2
    assert "another run is writing to regard-claims" in " ".join(locked.stderr.split())
    os.killpg(process.pid, signal.SIGINT)  # a terminal tells the whole group
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    first, last = said.splitlines()
    assert first.startswith("[1/2] A1: holds")
    assert last.startswith(
        "Interrupted: 1 of 2 claims were finished and are kept in regard-claims;"
    )
    worker = int((tmp_path / "marks" / "A2").read_text().split()[1])
    assert vanished(worker)
    assert "1 run, 1 kept" in cli("run", "A").stdout
    assert ran() == {"A1": 1, "A2": 2}


@POSIX
def test_kill_9_keeps_what_is_finished(cli, known, ran, tmp_path: Path) -> None:
    process = started(tmp_path)
    process.kill()
    process.communicate(timeout=PATIENCE)
    worker = int((tmp_path / "marks" / "A2").read_text().split()[1])
    assert vanished(worker)
    half = tmp_path / "regard-claims" / ".A2.json.abcd"
    half.write_text("{")
    assert set(load_results(tmp_path / "regard-claims", known.claims)) == {"A1"}
    assert "1 run, 1 kept" in cli("run", "A").stdout
    assert ran() == {"A1": 1, "A2": 2} and not half.exists()


def test_the_module_runs_as_the_command(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["__main__.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("regard.claims", run_name="__main__")
    assert ended.value.code == 0 and "Usage: regard claims" in capsys.readouterr().out
