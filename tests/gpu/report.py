"""All that is run on a machine with a GPU, in one command: tests, both sanitizers, the benchmark.

    make gpu                   with the environment here
    make gpu PYTHON=python3    with an interpreter that has torch for CUDA and pytest; installs nothing

Writes reports/gpu.txt, reports/sanitizer.txt and what `regard bench --resume` writes. A step that fails
does not stop the next; the exit status is 1 if one failed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
TESTS, SANITIZER = Path("reports/gpu.txt"), Path("reports/sanitizer.txt")
SANITIZE = "tests/gpu/sanitize.py"
# Processes that share the GPU in its tests: some of them take several GiB of its memory.
MOST_WORKERS = 12
# Of cuDNN's kernels, which engine `sine` calls, racecheck reports hazards that are not ours to mend.
TOOLS = (["--tool", "memcheck"], ["--tool", "racecheck", "--kernel-name-exclude", "kns=cudnn"])
NOTE = """\
Kernels of cuDNN, which engine `sine` calls, are left out of the second: it reports hazards between
instructions of their own.
"""


class NotRun(Exception):
    """A step cannot be run on this machine, and that is no failure; the message says why."""


def environment() -> dict[str, str]:
    """The library from its sources, beside whatever the machine has."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def status(*command: str) -> int:
    """Of a command whose output is seen as it comes."""
    return subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode


def run_tests() -> bool:
    """Tests that need a GPU, from the files that have some: others may need what is not installed."""
    marked = re.compile(r"""mark\.gpu\b|["']gpu["']""")
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if marked.search(path.read_text(encoding="utf-8"))
    ]
    options = ["-q", "-m", "gpu", f"--report={TESTS}", "--continue-on-collection-errors"]
    # Compilers are what they wait for, and those take a core each.
    if importlib.util.find_spec("xdist"):
        # pytest-benchmark, where it is installed, warns of processes, and here a warning is an error.
        workers = str(min(os.cpu_count() or 1, MOST_WORKERS))
        options += ["-p", "no:benchmark", "-n", workers, "--dist", "worksteal"]
    return status(sys.executable, "-m", "pytest", *options, *files) == 0


def run_sanitizer() -> bool:
    """The kernels under memcheck and racecheck."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise NotRun("compute-sanitizer is not installed; it comes with the CUDA toolkit")
    asked = [program, "--version"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    version = re.search(r"\d+\.\d+\.\d+", said)
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "triton")]
    machine = f"one {torch.cuda.get_device_name()}, {', '.join(versions)}"
    parts = [f"compute-sanitizer {version[0] if version else '?'} on {machine}: {SANITIZE}\n"]
    # Without the status, a tool that found something ends with 0.
    commands = [[*tool, "--error-exitcode", "9"] for tool in TOOLS]

    def run(options: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *options, sys.executable, SANITIZE], cwd=ROOT, env=environment(), check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    with ThreadPoolExecutor() as both:
        results = list(both.map(run, commands))
    for options, done in zip(commands, results, strict=True):
        # Places on this machine are no part of a report.
        output = done.stdout.replace(f"{ROOT}{os.sep}", "").replace(sys.executable, "python")
        print(output, flush=True)
        shown = " ".join(["compute-sanitizer", *options, "python", SANITIZE])
        parts.append(f"$ {shown}\n\n{output.strip()}\n")
    (ROOT / SANITIZER).write_text("\n".join([*parts, NOTE]), encoding="utf-8")
    return all(done.returncode == 0 for done in results)


def run_bench(arguments: list[str]) -> bool:
    """What is missing in the results, or what the arguments ask for."""
    return status(sys.executable, "-m", "regard.bench", "--device", "cuda", *arguments) == 0


def main(given: list[str]) -> int:
    """Run the steps; the exit code."""
    parser = argparse.ArgumentParser(prog="tests/gpu/report.py", allow_abbrev=False)
    names = "tests,sanitizer,bench"
    parser.add_argument("--steps", default=names, help=f"some of {names}")
    options, bench = parser.parse_known_args(given)
    steps: dict[str, Callable[[], bool]] = {
        "tests": run_tests,
        "sanitizer": run_sanitizer,
        "bench": lambda: run_bench(bench),
    }
    asked = options.steps.split(",")
    if unknown := set(asked) - set(steps):
        parser.error(f"--steps: unknown {', '.join(sorted(unknown))}; there are {names}")
    if not torch.cuda.is_available():
        print("Error: torch sees no GPU here; PYTHON=... names another Python", file=sys.stderr)
        return 2
    (ROOT / TESTS).parent.mkdir(exist_ok=True)
    said, failed = [], False
    for name in asked:
        began = time.monotonic()
        try:
            fine = steps[name]()
            word = "passed" if fine else "FAILED"
        except NotRun as reason:
            fine, word = True, f"not run: {reason}"
        except Exception as error:  # the next step does not depend on this one
            fine, word = False, f"FAILED: {type(error).__name__}: {error}"
        failed = failed or not fine
        said.append(f"{name:<10} {time.monotonic() - began:5.0f} s  {word}")
    print("\n".join(["", "make gpu", *said]), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
