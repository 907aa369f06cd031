"""The command from outside: what it writes and prints, going on, budget, mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from click.testing import CliRunner

from regard.bench import command, jobs, main
from regard.bench.results import Measured
from regard.bench.runner import Effort, Runner
from regard.bench.settings import SUITES, suite
from regard.cli.app import group
from regard.measuring import neighbours

from .made import DOTS_BY_NAME, OURS_BY_NAME, made_setting

TINY = ["--suite", "square", "--lengths", "16,24", "--hidden", "4", "--peers", "none", "--quick"]
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(["rich", "click", "matplotlib", "keras"]))
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: (
    None if name in ("rich", "matplotlib", "keras") else real(name, *rest)
)
from regard.bench import command, main
command.QUICK["cpu"] = command.Effort(0.01, longest=5.0, least=2)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch, capsys):
    """Runs the command in an empty folder on the CPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # other tests keep theirs
    monkeypatch.setattr(command, "calm_threads", torch.get_num_threads)
    monkeypatch.setitem(command.QUICK, "cpu", Effort(0.01, longest=5.0, least=2))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--device", "cpu"])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def pretended(monkeypatch) -> list[str]:
    """Nothing is measured; the list has the settings that would have been."""
    names: list[str] = []

    def measure(self: Runner, setting, candidates) -> Measured:
        names.append(setting.name)
        return made_setting(setting)

    monkeypatch.setattr(Runner, "measure", measure)
    monkeypatch.setattr(command, "written", lambda store, results: [store.json.name])
    return names


def test_a_run_writes_json_csv_and_charts_and_prints_a_table(bench, tmp_path: Path) -> None:
    code, out, err = bench(*TINY)
    assert code == 0, err
    assert max(len(line) for line in (out + err).splitlines() if "[" not in line) <= 80
    assert "\nsine fast " in out and "\nexact " in out and "\ndot math " in out
    assert "about" in err and "[2/2] square 24, hidden 4" in err
    names = {path.name for path in (tmp_path / "regard-bench").iterdir()}
    charts = {f"cpu-{kind}.{x}" for kind in ("time", "memory", "error") for x in ("png", "svg")}
    assert names == {"cpu.json", "cpu.csv"} | charts
    found = json.loads((tmp_path / "regard-bench" / "cpu.json").read_text())
    assert found["machine"]["device"] == "cpu" and found["machine"]["torch"] == torch.__version__
    assert "hostname" not in found["machine"] and "node" not in found["machine"]


def test_a_run_that_was_killed_goes_on_where_it_stopped(bench, pretended, monkeypatch) -> None:
    whole = Runner.measure

    def killed(self: Runner, setting, candidates) -> Measured:
        if pretended:
            raise SystemExit(9)
        return whole(self, setting, candidates)

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "measure", killed)
        with pytest.raises(SystemExit):
            bench(*TINY)
    assert pretended == ["square 16, hidden 4"]
    code, _, err = bench(*TINY, "--resume")
    assert code == 0 and "going on after 1 setting of cpu.json" in err
    assert pretended == ["square 16, hidden 4", "square 24, hidden 4"]
    bench(*TINY, "--resume")
    assert len(pretended) == 2


def test_an_interrupt_keeps_what_there_is(bench, pretended, monkeypatch) -> None:
    whole = Runner.measure

    def interrupted(self: Runner, setting, candidates) -> Measured:
        if pretended:
            raise KeyboardInterrupt
        return whole(self, setting, candidates)

    monkeypatch.setattr(Runner, "measure", interrupted)
    code, out, err = bench(*TINY)
    assert code == 130 and "--resume goes on" in err
    assert "square 16, hidden 4" in out and "Saved in regard-bench" in out


def test_a_busy_run_has_a_file_of_its_own_and_ends_its_load(bench, pretended, tmp_path) -> None:
    started: list[subprocess.Popen] = []
    popen = neighbours.subprocess.Popen

    def start(command: list[str]) -> subprocess.Popen:
        started.append(popen(command))
        return started[-1]

    with mock.patch.object(neighbours.subprocess, "Popen", start):
        code, _, err = bench(*TINY, "--busy")
    assert code == 0, err
    assert json.loads((tmp_path / "regard-bench" / "cpu-busy.json").read_text())["machine"]["busy"]
    assert len(started) == 1 and started[0].poll() is not None
    assert bench(*TINY, "--name", "cpu-busy", "--resume")[0] == 2  # idle and busy do not mix


def test_json_is_what_the_file_holds(bench, pretended, tmp_path: Path) -> None:
    code, out, err = bench(*TINY, "--json")
    found = json.loads(out)
    assert code == 0 and len(found["settings"]) == 2 and "Saved in regard-bench" in err
    assert found == json.loads((tmp_path / "regard-bench" / "cpu.json").read_text())
    listed = json.loads(bench("--list", "--json")[1])
    assert set(listed) == {"suites", "candidates", "settings"}
    assert "as chosen" not in listed["settings"][0]["candidates"]
    assert {name for s in listed["settings"] for name in s["candidates"]} == set(
        listed["candidates"]
    )


def test_a_budget_stops_before_what_would_not_fit(bench, pretended) -> None:
    code, _, err = bench(*TINY, "--budget", "1e-9")
    assert code == 0 and len(pretended) == 1
    assert "settings left: 1; --resume goes on" in err


def test_a_candidate_asked_for_later_is_measured_then(bench, pretended) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "CANDIDATES", jobs.CANDIDATES[:2])
        patch.setattr(
            Runner, "measure", lambda self, s, c: Measured(s, made_setting(s).rows[:2], rounds=1)
        )
        bench(*TINY)
    _, _, err = bench(*TINY, "--resume")
    assert len(pretended) == 2
    said = " ".join(err.split())
    assert "2 of these settings lack results of sine matched, exact" in said
    assert "measured again with all candidates, since ratios are taken within rounds" in said
    assert "lack" not in bench(*TINY, "--resume")[2] and len(pretended) == 2


def test_a_setting_that_is_measured_again_keeps_who_was_in_it(bench, monkeypatch) -> None:
    """A run that lacks somebody would lose others that were asked for by hand."""
    together: list[list[str]] = []

    def measure(self: Runner, setting, candidates) -> Measured:
        names = [c.name for c in candidates]
        together.append(names)
        rows = [row for row in made_setting(setting).rows if row.name in names]
        return Measured(setting, rows, rounds=1)

    monkeypatch.setattr(Runner, "measure", measure)
    monkeypatch.setattr(command, "written", lambda store, results: [])
    one = ["--suite", "square", "--lengths", "16", "--hidden", "4"]
    bench(*one, "--peers", "Keras")
    bench(*one, "--peers", "textbook linear", "--resume")
    assert "Keras" in together[0] and "textbook linear" not in together[0]
    assert {"Keras", "textbook linear", "sine fast"} <= set(together[1])
    bench(*one, "--peers", "none", "--resume")
    assert len(together) == 2


def test_a_corrupt_file_is_set_aside_and_said(bench, pretended, tmp_path: Path) -> None:
    (tmp_path / "regard-bench").mkdir()
    (tmp_path / "regard-bench" / "cpu.json").write_text('{"half": ')
    code, _, err = bench(*TINY, "--resume")
    assert code == 0 and "cannot be read: it is not JSON" in err
    assert (tmp_path / "regard-bench" / "cpu.corrupt-1.json").read_text() == '{"half": '


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found.update(machine=None),
        lambda found: found["settings"][0]["rows"][0].update(name=["sine"]),
        lambda found: found["settings"][0]["rows"][0]["passes"]["forward"].update(
            seconds={"samples": ["fast"]}
        ),
    ],
    ids=["machine", "name", "samples"],
)
def test_results_that_were_changed_by_hand_are_set_aside(
    bench, pretended, tmp_path: Path, damage
) -> None:
    bench(*TINY)
    file = tmp_path / "regard-bench" / "cpu.json"
    found = json.loads(file.read_text())
    damage(found)
    file.write_text(json.dumps(found))
    code, _, err = bench(*TINY, "--resume")
    assert code == 0 and "cannot be read" in err and "Set aside as cpu.corrupt-1.json" in err


def test_a_setting_that_breaks_does_not_stop_the_run_and_is_tried_again(
    bench, pretended, monkeypatch
) -> None:
    whole = Runner.measure

    def breaks(self: Runner, setting, candidates) -> Measured:
        if setting.len_q == 16:
            raise torch.OutOfMemoryError("no room for the inputs")
        return whole(self, setting, candidates)

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "measure", breaks)
        code, out, _ = bench(*TINY)
    assert code == 1 and pretended == ["square 24, hidden 4"]
    assert "the setting broke: OutOfMemoryError: no room for the inputs" in " ".join(out.split())
    assert bench(*TINY, "--resume")[0] == 0
    assert pretended == ["square 24, hidden 4", "square 16, hidden 4"]


def test_a_setting_that_breaks_when_it_is_measured_again_keeps_what_it_had(
    bench, monkeypatch
) -> None:
    """Better old rows without somebody than none."""

    def measures(self: Runner, setting, candidates) -> Measured:
        names = [c.name for c in candidates]
        rows = [row for row in made_setting(setting).rows if row.name in names]
        return Measured(setting, rows, rounds=1)

    def breaks(self: Runner, setting, candidates) -> Measured:
        raise torch.OutOfMemoryError("no room for the inputs")

    monkeypatch.setattr(command, "written", lambda store, results: [])
    monkeypatch.setattr(Runner, "measure", measures)
    before = json.loads(bench(*TINY, "--peers", "none", "--json")[1])
    monkeypatch.setattr(Runner, "measure", breaks)
    _, out, err = bench(*TINY, "--peers", "Keras", "--resume", "--json")
    assert "square 16, hidden 4 broke and keeps what it had: OutOfMemoryError: no room" in err
    assert json.loads(out)["settings"] == before["settings"]


def test_one_of_ours_that_fails_is_an_exit_code(bench, monkeypatch) -> None:
    def measure(self: Runner, setting, candidates) -> Measured:
        found = made_setting(setting)
        found.rows[0].passes["forward"].status = "failed"
        return found

    monkeypatch.setattr(Runner, "measure", measure)
    monkeypatch.setattr(command, "written", lambda store, results: [])
    assert bench(*TINY)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "flx"], "--peers: unknown peer 'flx'. Peers: textbook eager"),
        (["--suite", "bars", "--lengths", "8"], "--lengths and --hidden are for --suite square"),
    ],
)
def test_mistakes(bench, arguments: list[str], message: str) -> None:
    code, _, err = bench(*arguments)
    assert code == 2 and message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "8,x"], "'8,x' is not a list of sizes"),
        (["--lengths", "8,99999999999"], "99,999,999,999 is too large"),
        (["--budget", "0"], "'0' is not a positive number of seconds"),
        (["--threads", "0"], "'0' is not a count"),
        (["--name", "../x"], "'../x' is not a file name"),
        (["--suite", "all"], "invalid choice: 'all'"),
    ],
)
def test_mistakes_that_argparse_sees(bench, capsys, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        bench(*arguments)
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_no_gpu_is_one_sentence(capsys, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--device", "cuda", "--list"]) == 2
    assert "--device cuda: torch sees no GPU here" in capsys.readouterr().err


def test_list_names_everything_and_measures_nothing(bench, pretended) -> None:
    code, out, _ = bench("--list")
    assert code == 0 and not pretended
    for name in (*SUITES, "FlexAttention", "speech", "square 2048, hidden 128"):
        assert name in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_list_shows_who_is_measured_in_a_setting(capsys, monkeypatch) -> None:
    monkeypatch.setattr(command, "pick_device", lambda name: torch.device("cuda"))
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 80
    lines = out.splitlines()

    def group(setting: str) -> str:
        """The letter of a setting, then what stands behind it."""
        (letter,) = {line.split()[0] for line in lines if f" {setting} " in line}
        text = out.partition("together")[2].partition("Settings")[0]
        return " ".join(
            text.partition(f"  {letter} ")[2].partition("\n  " + chr(ord(letter) + 1))[0].split()
        )

    assert (
        group("square 512, hidden 128")
        == f"{', '.join(OURS_BY_NAME)}, textbook compiled, dot cuDNN"
    )
    assert group("square 8192, hidden 16").endswith(
        "FlexAttention, Keras, " + ", ".join(DOTS_BY_NAME)
    )
    assert group("speech, query by query").startswith("as chosen, sine fast")


def test_suites_have_the_sizes_they_promise() -> None:
    gpu = suite("square", "cuda")
    assert {s.hidden for s in gpu} == {16, 32, 64, 128}
    assert {s.len_q for s in gpu} == {512 * 2**i for i in range(7)}
    assert {(s.batch, s.heads, s.value_dim, s.dtype) for s in gpu} == {(4, 16, 64, "bfloat16")}
    shapes = {s.name: s for s in suite("shapes", "cuda")}
    assert len(shapes) == 5 and shapes["speech"].loop and shapes["speech"].len_k == 1500
    assert {s.key for s in suite("bars", "cuda")} <= {s.key for s in gpu}


def test_regard_bench_hands_its_arguments_on() -> None:
    result = CliRunner().invoke(group, ["bench", "--list", "--device", "cpu", "--suite", "bars"])
    assert result.exit_code == 0 and "square 1024, hidden 16" in result.output
    assert "--resume" in CliRunner().invoke(group, ["bench", "--help"]).output


def test_it_runs_with_torch_alone(tmp_path: Path) -> None:
    small = ["--suite", "square", "--lengths", "16", "--hidden", "4", "--peers", "none", "--quick"]
    where = ["--device", "cpu", "--threads", "1", "--out", str(tmp_path)]
    command_line = [sys.executable, "-c", WITHOUT, *small, *where]
    result = subprocess.run(command_line, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "no charts: matplotlib is not installed" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cpu.csv", "cpu.json"]
