"""Completion by Tab, typed into real shells, whose `regard` says what it was called with."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard.cli.completion import FIND, SHELLS, VARIABLE, before_quote, script

START = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}
BEFORE = {"bash": "", "zsh": "autoload -Uz compinit; compinit -D -u; "}
PATIENCE = 30
# What is typed, and the words that the command gets.
VALUES = {
    "regard cho\t": ["choose"],
    "regard choose --device=cu\t": ["choose", "--device=cuda"],
    "regard choose --data my\t": ["choose", "--data", "my data.npz"],
    "regard claims show c11\t": ["claims", "show", "C11"],
    "regard choose --shape d_q=3,dt\tb\t": ["choose", "--shape", "d_q=3,dtype=bfloat16"],
    "regard choose --tasks digits,two\t": ["choose", "--tasks", "digits,two criteria"],
    'regard choose --tasks "non-l\t': ["choose", "--tasks", "non-linear match"],
}
MORE = {
    **VALUES,
    "regard doctor hij\t": ["doctor", "hijacked-key"],
    "regard explain --score projected_g\t": ["explain", "--score", "projected_gaussian"],
    "regard bench --sui\tsq\t": ["bench", "--suite", "square"],
    "regard bench --peers tex\tl\t": ["bench", "--peers", "textbook linear"],
    "regard bench --peers=keras,dot\\ e\t": ["bench", "--peers=keras,dot efficient"],
    "regard choose --dev\tcu\t": ["choose", "--device", "cuda"],
    "regard choose --data=my\t": ["choose", "--data=my data.npz"],
    "regard choose --shape=d_q=3,dt\tb\t": ["choose", "--shape=d_q=3,dtype=bfloat16"],
    "regard doctor fol\t": ["doctor", "folder"],
    "regard claims run --la\tz\t": ["claims", "run", "--lang", "zh"],
    "regard completion f\t": ["completion", "fish"],
    "regard recipe mol\ttr\t": ["recipe", "molecules", "train"],
    "regard recipe graph train --set k\t": ["recipe", "graph", "train", "--set", "karate"],
    "regard recipe graph compare --set=cor\t": ["recipe", "graph", "compare", "--set=cora"],
}


# Inside quotes, where zsh has habits of its own.
QUOTED = {
    "regard choose --tasks 'digits,two c\t": ["choose", "--tasks", "digits,two criteria"],
    'regard choose --tasks="two \t': ["choose", "--tasks=two criteria"],
    'regard choose --shape="d_q=3,dtype=b\t': ["choose", "--shape=d_q=3,dtype=bfloat16"],
    'regard choose --data "my\t': ["choose", "--data", "my data.npz"],
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with something to complete, and the script of every shell."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "my data.npz").write_bytes(b"")
    for shell in SHELLS:
        (tmp_path / f"script.{shell}").write_text(script(shell))
    return tmp_path


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


class Shell:
    """A shell at a terminal of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.terminal, child = pty.openpty()
        env = {**os.environ, "TERM": "dumb", "HOME": str(folder), "INPUTRC": os.devnull}
        self.process = subprocess.Popen(
            START[name], stdin=child, stdout=child, stderr=child, cwd=folder, env=env,
            start_new_session=True,
        )  # fmt: skip
        os.close(child)
        echo = "regard() { printf '<%s>' \"$@\"; echo '|en''d'; }; echo '|en''d'"
        self.type(f"{BEFORE[name]}source ./script.{name}; {echo}")

    def type(self, line: str) -> str:
        """What stands before the mark on the line that the command prints."""
        os.write(self.terminal, f"{line}\n".encode())
        heard, until = b"", time.monotonic() + PATIENCE
        while b"|end" not in heard:
            left = max(until - time.monotonic(), 0)
            assert select.select([self.terminal], [], [], left)[0], heard.decode()
            heard += os.read(self.terminal, 65536)
        return heard.decode().rpartition("|end")[0].rpartition("\n")[2].strip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("bash", VALUES),
        pytest.param("bash", QUOTED, marks=pytest.mark.slow, id="bash-quoted"),
        pytest.param("bash", MORE, marks=pytest.mark.slow, id="bash-more"),
        pytest.param("zsh", MORE, marks=pytest.mark.slow),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_tab_completes_in_a_real_shell(here: Path, name: str, values: dict) -> None:
    needs(name)
    shell = Shell(name, here)
    try:
        for typed, wanted in values.items():
            found = shell.type(typed).removeprefix("<").removesuffix(">").split("><")
            assert [word.removesuffix("/") for word in found] == wanted, typed
    finally:
        shell.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("regard cho", ["choose"]),
        ("regard choose --device=c", ["--device=cpu", "--device=cuda"]),
        ("regard choose --data=my", ["--data=my data.npz"]),
        ("regard claims show c11", ["C11"]),
        ("regard doctor f", ["folder/"]),
        ("regard choose --shape=d_q=3,causal=", ["--shape=d_q=3,causal=0", "--shape=d_q=3,causal=1"]),
        ("regard bench --suite ", ["bars", "graph", "shapes", "square"]),
        ("regard bench --peers dot\\ f", ["dot flash"]),
    ],
)  # fmt: skip
def test_tab_completes_in_fish(here: Path, typed: str, wanted: list[str]) -> None:
    needs("fish")
    told = ["fish", "--no-config", "-c", f"source script.fish; complete -C '{typed}'"]
    result = subprocess.run(told, cwd=here, capture_output=True, text=True, check=False, timeout=60)
    assert [line.partition("\t")[0] for line in result.stdout.splitlines()] == wanted, result.stderr


def test_a_tab_loads_no_torch_and_nothing_from_the_current_folder(tmp_path: Path) -> None:
    for name in ("click", "regard", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('from the current folder')")
    watched = f"import sys\ntry:\n    {FIND}\nfinally:\n    assert 'torch' not in sys.modules"
    env = {**os.environ, "COMP_WORDS": "regard explain --shape d_q=3,len=4 --score gat"}
    result = subprocess.run(
        [sys.executable, "-P", "-c", watched], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=60, env={**env, VARIABLE: "bash_complete"},
    )  # fmt: skip
    assert (result.returncode, result.stderr, result.stdout) == (0, "", "plain,gatv2\n")


@pytest.mark.parametrize(
    ("line", "head"),
    [
        ("regard choose ", None),
        ('regard choose "non-linear match" ', None),
        ('regard choose --tasks "non-l', ""),
        ("regard choose --tasks='two c", "--tasks="),
        (r"regard choose --tasks non\"", None),
        ("regard choose --tasks 'a\\' \"b", ""),
    ],
)  # fmt: skip
def test_an_open_quote_is_seen(line: str, head: str | None) -> None:
    assert before_quote(line) == head


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_good_code_of_its_shell(here: Path, shell: str) -> None:
    needs(shell)
    subprocess.run([shell, "-n", f"script.{shell}"], cwd=here, check=True, timeout=60)
