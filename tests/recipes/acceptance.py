"""Every recipe at its default size from an empty folder, as on a fresh machine: `make acceptance`.

    python tests/recipes/acceptance.py --report reports/recipes.txt

Runs `regard recipe NAME train`, `predict` and `show` with no folder of public data, one recipe after the other, and
writes what each said and how long it took. The exit status is 1 if a command failed, took longer than `LIMIT`, or
left no model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

from regard.measuring.files import write_atomic
from regard.measuring.machine import machine
from regard.recipes.catalog import RECIPES
from regard.recipes.sources import VARIABLE

LIMIT = 300.0  # seconds that a training may take on two cores
# What a person would type after the training; a recipe without a line here is used without an argument.
ASKED = {
    "translate": ["Dienstag, 4. Juli 2028"],
    "letters": ["attention", "thoughtful"],
    "molecules": ["CCO", "CC(=O)Oc1ccccc1C(=O)O"],
    "align": ["0 0.1 0.4 1.9 2.0 1.9 0.3 0.1 0"],
    "retrieve": ["return the absolute path of a file"],
}


class Ran(NamedTuple):
    """A command, how it ended, how long it took and its last lines."""

    command: str
    status: int
    seconds: float
    said: str


def ran(folder: Path, *words: str) -> Ran:
    """Run `regard recipe` with these words in a folder, without a variable that names public data."""
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")  # no download of an earlier day is found
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "regard.cli", "recipe", *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout if done.returncode == 0 else done.stderr
    shown = " ".join(f'"{word}"' if " " in word or "(" in word else word for word in words)
    return Ran(f"regard recipe {shown}", done.returncode, time.monotonic() - begun, said.strip())


def tried(name: str) -> list[Ran]:
    """Train a recipe, use the model, and draw what it attends to."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found = [ran(folder, name, "train")]
        if found[0].status == 0:
            text = ASKED.get(name, [])
            if text:
                found.append(ran(folder, name, "predict", *text))
            found.append(ran(folder, name, "show", *text[-1:]))
    return found


def written(found: dict[str, list[Ran]]) -> str:
    """The report."""
    facts = machine(torch.device("cpu"))
    lines = [
        "Recipes trained at their default sizes from data that come with a package (make acceptance)",
        "",
        f"machine  {facts['name']}, {facts['cores']} cores; Python {facts['python']}, torch {facts['torch']}",
        f"limit    {LIMIT:.0f} s for each training; a training may share the machine with other work",
    ]
    for name, runs in found.items():
        lines += ["", f"{name}: {'passed' if passed(runs) else 'FAILED'}"]
        for one in runs:
            status = "" if one.status == 0 else f", exit status {one.status}"
            lines.append(f"  $ {one.command}  ({one.seconds:.0f} s{status})")
            lines += [f"    {line}" for line in one.said.splitlines()[-12:]]
    lines += ["", f"{sum(map(passed, found.values()))} of {len(found)} passed"]
    return "\n".join(lines) + "\n"


def passed(runs: list[Ran]) -> bool:
    """Whether every command ended well, and the training in time."""
    return all(one.status == 0 for one in runs) and runs[0].seconds <= LIMIT


def main() -> int:
    """Run all recipes, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="recipes; all if none is named")
    parser.add_argument("--report", type=Path, help="write the report to this file")
    options = parser.parse_args()
    found = {}
    for name in options.names or [one.name for one in RECIPES]:
        found[name] = tried(name)
        print(f"{name}: {'passed' if passed(found[name]) else 'FAILED'}", flush=True)
    report = written(found)
    print(report)
    if options.report:
        write_atomic(options.report, report.encode())
    return 0 if all(map(passed, found.values())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
