"""What every command promises: help, JSON, one line for a mistake, statuses, no escape codes.

A verb takes part by its row in `CASES`; one that has none fails.
"""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner, Result

from regard import cli
from regard.choosing.suite import Suite
from regard.cli import choose as choose_command
from regard.cli import names
from regard.cli.app import VERBS, group
from regard.cli.page import BLOCK, blocks, commands, written


class Case(NamedTuple):
    """How a verb is tried.

    Attributes:
        quick: arguments of a run that ends well within a second.
        as_json: whether a program would read it.
        mistakes: arguments, and what the one line about them says.
    """

    quick: str
    as_json: bool
    mistakes: dict[str, str]


SHAPE = "--shape d_q=4,len=3 --device cpu"
# In the folder of each test: `taken` is a file of text, `dir` a folder, `bad.npz` no archive.
CASES = {
    "choose": Case(
        f"{SHAPE} --seconds 0.1 --threads 1",
        True,
        {
            "--data none.npz": "No such file",
            "--data dir": "files are .npz",
            "--data bad.npz": "not a valid .npz file",
            "--shape d_q=x,len=3": "positive whole number",
            "--shape d_q=4,len=3 --seconds nan": "not a finite number",
            "--minutes nan": "not a finite number",
            "--out taken": "is a file",
            "--report dir": "is a directory",
            "--tasks look-up --storage dir": "Is a directory",
            "--tasks look-up --storage taken": "file of something else",
            "--tasks look-up --out taken/dir": "Not a directory",
        },
    ),
    "explain": Case(
        f"{SHAPE} --score additive",
        True,
        {
            "": "--shape is missing",
            f"{SHAPE} --score nope": "unknown score",
            "--shape d_q=4,d_k=3,len=3 --device cpu": "needs query dim == key dim",
            "--shape d_q=4,len=3 --device tpu": "'tpu' is not one of",
            "--shape d_q=9999999,len=99999999 --device cpu": "TiB",
        },
    ),
    "bench": Case(
        "--list --suite bars --device cpu",
        True,
        {
            "--suite nope": "invalid choice: 'nope'",
            "--peers nope": "unknown peer 'nope'",
            "--out taken": "is a file",
            "extra": "unrecognized arguments: extra",
        },
    ),
    "claims": Case(
        "",
        True,
        {
            "show Z9": "there is no claim 'Z9'",
            "run Z9": "there is no claim 'Z9'",
            "frobnicate": "the commands are run, show and report",
            "run C1 --out taken": "is a file",
            "run C1 --out taken/dir": "Not a directory",
            "report --out dir": "no results in dir",
            "report --to dir": "is a directory",
        },
    ),
    "doctor": Case(
        "healthy --steps 1 --device cpu",
        True,
        {
            "": "MODEL is missing",
            "nope": "one of the bundled examples",
            "dir": "no config.json",
            "healthy --data none.npz": "no such file",
            "healthy --data bad.npz": "not an .npz archive",
            "healthy --report dir": "is a directory",
            "healthy --report nowhere/out.html": "no folder nowhere",
            "healthy --rate inf": "not a finite number",
        },
    ),
    "recipe": Case(
        "",
        True,
        {
            "nope": "there is no recipe 'nope'",
            "graph frobnicate": "there is no command 'frobnicate'",
            "graph train --set nope": "no such set",
            "graph train --out dir": "is a directory",
            "graph train --out nowhere/x": "there is no folder nowhere",
            "graph predict karate": "there is no model graph.safetensors",
            "graph predict karate --model taken": "not a model saved by a recipe",
            "graph compare --only nope": "there is no contender 'nope'",
            "graph compare --out taken": "is a file",
            "graph compare --out taken/dir": "Not a directory",
        },
    ),
    "play": Case(
        "--save page.html",
        False,
        {
            "--save dir": "is a directory",
            "--save nowhere/page.html": "No such file",
            "--port 99999": "not in the range",
        },
    ),
    "completion": Case("bash", False, {"": "Missing argument", "tcsh": "'tcsh' is not one of"}),
}


# The root is "".
PATHS = ["", *(ctx.command_path.removeprefix("regard ") for ctx in commands())]
MISTAKES = [
    (f"{verb} {given}", said)
    for verb, case in CASES.items()
    for given, said in case.mistakes.items()
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a command line in a folder that has what mistakes are made with."""
    (tmp_path / "taken").write_text("a text of the user's\n")
    (tmp_path / "bad.npz").write_text("no archive")
    (tmp_path / "dir").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)  # other tests keep theirs
    monkeypatch.setattr("regard.choosing.cost.files.save", lambda report, out: [])  # figures

    def invoke(line: str, **env: str) -> Result:
        return CliRunner(env=env).invoke(group, line.split(), prog_name="regard")

    return invoke


def assert_mistake(result: Result, said: str) -> None:
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1, result.stderr
    assert said in result.stderr


def test_every_verb_has_a_row() -> None:
    assert list(CASES) == [verb.name for verb in VERBS] == group.list_commands(click.Context(group))


@pytest.mark.parametrize("path", PATHS)
def test_help_shows_an_example_and_the_exit_codes(run, path: str) -> None:
    result = run(f"{path} --help")
    assert result.exit_code == 0 and result.stderr == ""
    assert "Examples:" in result.stdout and f"  regard {path}".rstrip() in result.stdout
    assert "Exit codes" in result.stdout and "\x1b" not in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_help_and_options_need_no_torch() -> None:
    """In a process of its own, where `regard` stands without its `__init__`, as for Tab."""
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1])['without_torch'](); "
        "from regard.cli.app import group\n"
        "for line in sys.argv[2:]:\n"
        "    try: group.main([*line.split(), '--help'], 'regard')\n"
        "    except SystemExit as stop: assert not stop.code, line\n"
        "heavy = {'torch', 'rich', 'numpy', 'matplotlib', 'optuna', 'transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    tab = Path(cli.__file__).with_name("tab.py")
    command = [sys.executable, "-P", "-c", code, str(tab), *PATHS]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Examples:") == len(PATHS)


@pytest.mark.parametrize("verb", CASES)
def test_a_run_fits_the_terminal_and_a_pipe_has_no_escape_codes(run, verb: str) -> None:
    result = run(f"{verb} {CASES[verb].quick}")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    if verb != "completion":  # a script
        assert max(len(line) for line in result.stdout.splitlines()) <= 80
    forced = run(f"{verb} {CASES[verb].quick}", FORCE_COLOR="1", TERM="xterm", NO_COLOR="1")
    assert forced.exit_code == 0 and "\x1b" not in forced.stdout


@pytest.mark.parametrize("verb", [verb for verb, case in CASES.items() if case.as_json])
def test_json_is_one_document_and_all_that_stdout_holds(run, verb: str) -> None:
    result = run(f"{verb} {CASES[verb].quick} --json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout, parse_constant=pytest.fail)  # NaN is no JSON
    assert found and isinstance(found, dict | list)


@pytest.mark.parametrize("path", PATHS)
def test_an_unknown_option_is_one_line(run, path: str) -> None:
    assert_mistake(run(f"{path} --frobnicate"), "--frobnicate")


@pytest.mark.parametrize(("line", "said"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_line_and_costs_no_file(run, line: str, said: str) -> None:
    assert_mistake(run(line), said)
    assert Path("taken").read_text() == "a text of the user's\n"


def test_no_command_is_a_question_for_help(run) -> None:
    result = run("")
    assert result.exit_code == 0 and all(f"\n  {verb.name} " in result.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", CASES)
def test_ctrl_c_has_its_status(run, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(group.get_command(click.Context(group), verb), "callback", stopped)
    result = run(f"{verb} {CASES[verb].quick}")
    assert (result.exit_code, result.stderr.strip()) == (130, "Interrupted.")


def test_ctrl_c_in_a_training_says_how_to_go_on(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_command, "check_data", lambda _: None)
    monkeypatch.setattr(choose_command, "pick_tasks", lambda *_: [])
    monkeypatch.setattr(choose_command, "save_suite", lambda *_, **__: True)
    monkeypatch.setattr(Suite, "interrupted", property(lambda suite: True))
    result = run("choose --data mine.npz")
    assert result.exit_code == 130
    assert "Interrupted: the same command with --resume continues." in result.stderr


def unbuffered(file: int) -> io.TextIOWrapper:
    """As with PYTHONUNBUFFERED."""
    return io.TextIOWrapper(io.FileIO(file, "w"), write_through=True)


@pytest.mark.parametrize(
    ("verb", "pipe_of"),
    [*((verb, functools.partial(os.fdopen, mode="w")) for verb in CASES), ("claims", unbuffered)],
)
def test_a_reader_that_leaves_changes_nothing(
    run, monkeypatch: pytest.MonkeyPatch, verb: str, pipe_of: Any
) -> None:
    """As `| head -1` does: writing to a pipe that nobody reads is an error, and Python ends with it."""
    reader, writer = os.pipe()
    os.close(reader)
    with pipe_of(writer) as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        with pytest.raises(SystemExit) as stopped:
            cli.main(f"{verb} {CASES[verb].quick}".split())
        sys.stdout.flush()  # the last words, which Python writes at its end
        assert (stopped.value.code, sys.stderr.getvalue()) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    ("verb", "pipe_of"),
    [
        *((verb, functools.partial(os.fdopen, mode="w")) for verb in CASES),
        *((verb, unbuffered) for verb in ("claims", "completion")),
    ],
)
def test_a_full_disk_is_one_line(
    run, monkeypatch: pytest.MonkeyPatch, verb: str, pipe_of: Any
) -> None:
    """And no mistake of the user: the status of `regard claims > full` was 2."""
    with pipe_of(os.open("/dev/full", os.O_WRONLY)) as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        with pytest.raises(SystemExit) as stopped:
            cli.main(f"{verb} {CASES[verb].quick}".split())
        sys.stdout.flush()
        assert stopped.value.code == 1
        said = sys.stderr.getvalue()  # bench names what it did not save too
        assert said.startswith("Error: ") and said.endswith("No space left on device\n")
        assert said.count("\n") == 1


def test_streams_that_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `<&- >&- 2>&-` does."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["doctor", "healthy", "--steps", "1", "--json"])
    assert stopped.value.code == 0
    sys.stdout.close()
    sys.stderr.close()


def test_a_name_that_no_file_can_have_is_one_line(run) -> None:
    for line in ("doctor {}", "doctor healthy --report {}", "doctor healthy --data {}"):
        result = run(line.format("a" * 5000))
        assert result.exit_code == 2
        assert result.stderr == f"Error: File name too long: {'a' * 80}\n"


@pytest.mark.slow
@pytest.mark.parametrize("verb", CASES)
def test_head_in_a_real_shell(tmp_path: Path, verb: str) -> None:
    line = f"{sys.executable} -m regard.cli {verb} {CASES[verb].quick} | head -1"
    told = ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"]
    result = subprocess.run(told, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 1


def test_the_page_has_every_command_and_option() -> None:
    """`python -m regard.cli.page docs/cli.md` writes the options again."""
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written(page) == page
    assert {block["path"] for block in BLOCK.finditer(page)} == set(blocks())
    assert all(f"`regard {verb.name}`" in page for verb in VERBS)


def test_names_that_completion_offers_are_the_real_ones() -> None:
    from regard.bench.peers import PEERS
    from regard.choosing.cost import parse_shape
    from regard.choosing.cost.candidates import candidates
    from regard.choosing.tasks.embedded import MADE
    from regard.claims.registry import all_claims
    from regard.claims.running.store import REPORT
    from regard.doctor.patients import EXAMPLES
    from regard.scores.lookup import SIZED
    from regard.text import LANGUAGES

    assert list(names.RECIPE_SCORES) == list(SIZED)
    unlike = candidates(parse_shape("d_q=4,d_k=3,len=2"))
    assert list(names.SCORES) == [c.key for c in unlike if not c.textbook]
    assert list(names.TASKS) == list(MADE)
    assert list(names.PEERS) == [peer.name for peer in PEERS]
    assert list(names.PATIENTS) == list(EXAMPLES)
    assert names.claims() == list(all_claims())
    assert (names.LANGUAGES, names.REPORT) == (LANGUAGES, REPORT)
