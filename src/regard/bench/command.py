"""The command `regard bench`: the loop over settings, and what it writes and prints."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import torch

from regard.bench import present
from regard.bench.answer import answer
from regard.bench.bars import outcomes
from regard.bench.jobs import CANDIDATES, BenchJob, UsageError, chosen_jobs
from regard.bench.options import RESULTS
from regard.bench.progress import Progress, progress
from regard.bench.runner import Effort, Runner, brief, broken
from regard.bench.settings import GRAPH, SUITES
from regard.bench.store import BenchStore, Results, StoreError
from regard.measuring.files import json_bytes
from regard.measuring.machine import calm_threads, machine
from regard.measuring.neighbours import busy_processes
from regard.measuring.words import duration

INTERRUPTED = 130
UNBROKEN = "\xa0"  # a space at which `textwrap` does not break a line
EFFORT = {
    "cuda": Effort(seconds=3.0, longest=0.3, most=15, heads=4),
    "cpu": Effort(seconds=20.0, longest=5.0),
}
# `--quick` alone answers within two minutes: what does not fit is left for --resume.
QUICK_BUDGET = 100.0
QUICK = {
    "cuda": Effort(seconds=1.0, longest=0.25, least=3, eager=2, heads=4),
    "cpu": Effort(seconds=3.0, longest=2.0, least=3),
}


def carry_out(options: argparse.Namespace) -> int:
    """Run the command with parsed options and return its exit code."""
    try:
        device = pick_device(options.device)
        if options.suite == [GRAPH]:
            return graphs(options, device)
        if GRAPH in (options.suite or ()):
            raise UsageError("--suite graph is measured by itself: leave out the other suites")
        sizes = {"lengths": options.lengths, "hidden": options.hidden, "quick": options.quick}
        jobs = chosen_jobs(options.suite, device.type, options.peers, **sizes)
        if options.list:
            show_list(jobs, as_json=options.json)
            return 0
        return run(options, device, jobs)
    except (StoreError, UsageError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the first setting; `run` keeps what was measured
        print("Interrupted: nothing was measured yet.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # as when piped into `head`; the files are written by then
        # Python would flush stdout at exit and report the broken pipe a second time.
        sys.stdout = None  # type: ignore[assignment]
        return 1
    except OSError as error:
        print(f"Error: the results were not saved: {error}", file=sys.stderr)
        return 1


def run(options: argparse.Namespace, device: torch.device, jobs: list[BenchJob]) -> int:
    """Measure the settings that have no results yet, draw and print; returns the exit code."""
    out = options.out or (RESULTS if RESULTS.is_dir() else Path("regard-bench"))
    store = BenchStore(out, options.name or default_name(device, options.busy))
    if device.type == "cpu":
        # A resumed run keeps its thread count: times with another one could not be compared.
        before = store.threads() if options.resume else None
        torch.set_num_threads(options.threads or before or calm_threads())
    about = describe(device, options.busy)
    results, said = store.open(about, options.seed, options.resume)
    say(said)
    say(again(jobs, results))
    effort = (QUICK if options.quick else EFFORT)[device.type]
    interrupted = False
    try:
        with busy_processes(int(options.busy)), progress() as shown:
            runner = Runner(device, options.seed, effort, shown.step)
            say(loop(runner, jobs, results, store, budget_of(options), shown))
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted: --resume goes on")
    # Charts and files cover all results in the store; tables and the exit code only the requested
    # settings.
    names = written(store, results) if results.measured else []
    asked = {job.setting.key for job in jobs}
    found = Results(about, options.seed, {k: m for k, m in results.measured.items() if k in asked})
    saved = textwrap.fill(f"Saved in {out}: {', '.join(names)}", 80) if names else ""
    if options.json:
        print(json_bytes(found.as_dict()).decode(), end="")
        say(saved)
    else:
        show(found)
        if saved:
            print(f"\n{saved}")
        if found.measured:
            print(f"\n{textwrap.fill(answer(found.measured.values()), 80)}")
    if interrupted:
        return INTERRUPTED
    return 1 if ours_failed(results, asked) else 0


def graphs(options: argparse.Namespace, device: torch.device) -> int:
    """The suite of graphs, which has candidates and a file of its own."""
    if options.lengths or options.hidden or options.peers:
        raise UsageError("--lengths, --hidden and --peers are not for --suite graph")
    from regard.bench.graph_run import run_graphs, show_graphs
    from regard.bench.graphs import graph_suite

    if options.list:
        show_graphs(graph_suite(options.quick))
        return 0
    if device.type == "cpu":
        torch.set_num_threads(options.threads or calm_threads())
    out = options.out or (RESULTS if RESULTS.is_dir() else Path("regard-bench"))
    path = out / f"{options.name or default_name(device, options.busy)}-graph.json"
    with busy_processes(int(options.busy)):
        return run_graphs(options, device, describe(device, options.busy), path)


def budget_of(options: argparse.Namespace) -> float | None:
    """The seconds that the run may take: as given, or those of a first look, or None for no limit."""
    first_look = options.quick and not (options.suite or options.lengths or options.hidden)
    return QUICK_BUDGET if options.budget is None and first_look else options.budget


def loop(
    runner: Runner,
    jobs: list[BenchJob],
    results: Results,
    store: BenchStore,
    budget: float | None,
    shown: Progress,
) -> str:
    """Measure setting after setting and save each at once; returns a sentence if the budget ran out."""
    began = time.monotonic()
    lasted: list[float] = []
    for number, job in enumerate(jobs):
        before = results.measured.get(job.setting.key)
        if not job.missing(before):
            continue
        spent = time.monotonic() - began
        # A setting cannot be cut short, so the longest one so far must still fit into the budget. The
        # first one does not count: its time includes starting compilers and libraries.
        if budget is not None and lasted and spent + max(lasted[1:] or lasted) > budget:
            left = sum(bool(job.missing(results.measured.get(job.setting.key))) for job in jobs)
            return f"budget of {duration(budget)} spent, settings left: {left}; --resume goes on"
        shown.setting(number, len(jobs), job.setting.title())
        candidates = job.beside(before)
        try:
            found = runner.measure(job.setting, candidates)
        except Exception as error:  # not even the inputs fit, or the device is lost
            found = broken(job.setting, candidates, error)
            # Earlier results of the setting are worth more than the reason of this failure.
            if before is not None:
                say(f"{job.setting.name} broke and keeps what it had: {brief(error)}")
                found = before
        results.add(found)
        store.save(results)
        lasted.append(time.monotonic() - began - spent)
    return ""


def again(jobs: list[BenchJob], results: Results) -> str:
    """A sentence about settings in the results that lack a requested candidate; empty if none does."""
    found = [job.missing(results.measured.get(job.setting.key)) for job in jobs]
    there = [job.setting.key in results.measured for job in jobs]
    lacking = [missing for missing, known in zip(found, there, strict=True) if known and missing]
    if not lacking:
        return ""
    names = ", ".join(c.name for c in CANDIDATES if any(c in missing for missing in lacking))
    count = len(lacking)
    return (
        f"{count} of these setting{'s' * (count != 1)} lack{'s' * (count == 1)} results of {names}: "
        "they are measured again with all candidates, since ratios are taken within rounds"
    )


def written(store: BenchStore, results: Results) -> list[str]:
    """The names of the result files; draws the charts first if matplotlib is installed."""
    names = [store.json.name, store.csv.name]
    if importlib.util.find_spec("matplotlib") is None:
        say("no charts: matplotlib is not installed")
        return names
    from regard.bench import charts

    return names + charts.save(results, store.folder, store.name)


def show(results: Results) -> None:
    """Print every table, the legend, what is unavailable, and the bars."""
    for measured in results.measured.values():
        print(f"\n{present.table(measured)}")
    if results.measured:
        print(f"\n{present.legend()}")
    if missing := present.left_out(results.measured.values()):
        print(f"\nNot available here\n{missing}")
    found = outcomes(results.measured.values(), results.machine["device"])
    if found:
        print(f"\nBars\n{present.bars_table(found)}")


def ours_failed(results: Results, keys: set[str]) -> bool:
    """Whether one of our engines failed its error check, raised, or lost its setting."""
    rows = [row for key, m in results.measured.items() if key in keys for row in m.rows]
    return any(
        row.family == "ours" and p.status in ("failed", "pending")
        for row in rows
        for p in row.passes.values()
    )


def show_list(jobs: list[BenchJob], *, as_json: bool) -> None:
    """Print suites, candidates and settings, and which candidates each setting measures."""
    candidates = [c for c in CANDIDATES if any(c in job.candidates for job in jobs)]
    if as_json:
        found = {
            "suites": SUITES,
            "candidates": {candidate.name: candidate.what for candidate in candidates},
            "settings": [
                job.setting.as_dict() | {"candidates": [c.name for c in job.candidates]}
                for job in jobs
            ],
        }
        print(json_bytes(found).decode(), end="")
        return
    print("Suites")
    for name, meaning in SUITES.items():
        item(name, 8, meaning)
    print("\nCandidates")
    for candidate in candidates:
        item(candidate.name, 18, candidate.what)
    # Many settings share few groups of candidates: with a letter for each group, a setting fits on one
    # line.
    groups = list(dict.fromkeys(tuple(c.name for c in job.candidates) for job in jobs))
    letters = [chr(ord("A") + number) for number in range(len(groups))]
    print("\nGroups of candidates that are measured together")
    for letter, names in zip(letters, groups, strict=True):
        item(letter, 1, ", ".join(name.replace(" ", UNBROKEN) for name in names))
    print("\nSettings in the order in which they are measured, each with its group")
    columns = ("batch", "heads", "queries", "keys", "hidden", "value", "dtype")
    print("  {:27}{:>5}{:>6}{:>8}{:>6}{:>7}{:>6} {}".format("", *columns))
    for job in jobs:
        s, letter = job.setting, letters[groups.index(tuple(c.name for c in job.candidates))]
        name = f"{letter} {s.name}{', query by query' * s.loop}"
        sizes = f"{s.batch:>5}{s.heads:>6}{s.len_q:>8}{s.len_k:>6}{s.hidden:>7}{s.value_dim:>6}"
        print(f"  {name:27}{sizes} {s.dtype}")


def item(name: str, wide: int, text: str) -> None:
    """Print a name and its description, wrapped at 80 columns."""
    first, rest = f"  {name:<{wide}} ", " " * (wide + 3)
    lines = textwrap.fill(text, 80, initial_indent=first, subsequent_indent=rest)
    print(lines.replace(UNBROKEN, " "))


def describe(device: torch.device, busy: bool) -> dict[str, Any]:
    """Facts about the machine: hardware and versions, but not its host name; and whether a core is kept busy."""
    about = machine(device)
    if busy:
        about["busy"] = True
    triton = importlib.util.find_spec("triton")
    about["triton"] = importlib.import_module("triton").__version__ if triton else None
    if device.type == "cuda":
        about["memory_bytes"] = torch.cuda.get_device_properties(device).total_memory
    return about


def default_name(device: torch.device, busy: bool = False) -> str:
    """The default name of the result files: `h200` for an NVIDIA H200, `cpu` for any CPU; `cpu-busy` beside a load."""
    if device.type == "cpu":
        found = "cpu"
    else:
        words = re.findall(r"[a-z0-9]+", torch.cuda.get_device_name(device).lower())
        found = "-".join(word for word in words if word not in ("nvidia", "geforce")) or "gpu"
    return f"{found}-busy" if busy else found


def pick_device(name: str) -> torch.device:
    """The requested device; `auto` is the GPU if there is one.

    Raises:
        UsageError: a GPU was requested and torch sees none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no GPU here. Use --device cpu")
    seen = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(seen if name == "auto" else name)


def say(text: str) -> None:
    """Print a sentence about the run to stderr, so that stdout holds only results."""
    if text:
        print(f"regard bench: {text}", file=sys.stderr)
