"""The command: the loop over settings, and what is written and printed."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.bench import present
from regard.bench.bars import DETERMINISTIC, needed, outcomes
from regard.bench.candidate import FORWARD, Candidate
from regard.bench.options import RESULTS
from regard.bench.ours import OURS, AsChosen
from regard.bench.peers import DOTS, PEERS
from regard.bench.progress import Progress, progress
from regard.bench.runner import Effort, Runner, broken
from regard.bench.settings import SUITES, Setting, suite
from regard.bench.store import Results, Store, StoreError
from regard.measuring.files import json_bytes
from regard.measuring.machine import calm_threads, machine
from regard.measuring.words import duration

CANDIDATES: tuple[Candidate, ...] = (*OURS, *PEERS)
CHOSEN = AsChosen.name
INTERRUPTED = 130
EFFORT = {
    "cuda": Effort(seconds=3.0, longest=0.3, most=15, heads=4),
    "cpu": Effort(seconds=20.0, longest=5.0),
}
QUICK = {
    "cuda": Effort(seconds=1.0, longest=0.25, least=3, eager=2, heads=4),
    "cpu": Effort(seconds=3.0, longest=2.0, least=3),
}


def carry_out(options: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    try:
        device = pick_device(options.device)
        jobs = chosen_jobs(options, device.type)
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
    except BrokenPipeError:  # as by `head`; the files are written by then
        sys.stdout = None  # type: ignore[assignment] # or Python complains at its end
        return 1
    except OSError as error:
        print(f"Error: the results were not saved: {error}", file=sys.stderr)
        return 1


class UsageError(ValueError):
    """A mistake in the arguments."""


class Job(NamedTuple):
    """A setting and who is measured in it."""

    setting: Setting
    candidates: list[Candidate]


def run(options: argparse.Namespace, device: torch.device, jobs: list[Job]) -> int:
    """Measure what is not measured yet, then draw and print."""
    out = options.out or (RESULTS if RESULTS.is_dir() else Path("regard-bench"))
    store = Store(out, options.name or default_name(device))
    if device.type == "cpu":
        before = store.threads() if options.resume else None
        torch.set_num_threads(options.threads or before or calm_threads())
    about = describe(device)
    results, said = store.open(about, options.seed, options.resume)
    say(said)
    effort = (QUICK if options.quick else EFFORT)[device.type]
    interrupted = False
    try:
        with progress() as shown:
            runner = Runner(device, options.seed, effort, shown.step)
            say(loop(runner, jobs, results, store, options.budget, shown))
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted: --resume goes on")
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
    if interrupted:
        return INTERRUPTED
    return 1 if ours_failed(results, asked) else 0


def loop(
    runner: Runner,
    jobs: list[Job],
    results: Results,
    store: Store,
    budget: float | None,
    shown: Progress,
) -> str:
    """Measure setting after setting, each saved at once; a sentence if the budget ended it."""
    began = time.monotonic()
    lasted: list[float] = []
    for number, job in enumerate(jobs):
        if done(job, results):
            continue
        spent = time.monotonic() - began
        # A setting cannot be cut short, so that the longest one so far must still fit; but the first
        # one also waits for compilers and libraries to start.
        if budget is not None and lasted and spent + max(lasted[1:] or lasted) > budget:
            left = sum(not done(job, results) for job in jobs)
            return f"budget of {duration(budget)} spent, settings left: {left}; --resume goes on"
        shown.setting(number, len(jobs), job.setting.title())
        try:
            found = runner.measure(job.setting, job.candidates)
        except Exception as error:  # not even the inputs fit, or the device is lost
            found = broken(job.setting, job.candidates, error)
        results.add(found)
        store.save(results)
        lasted.append(time.monotonic() - began - spent)
    return ""


def done(job: Job, results: Results) -> bool:
    """Whether the results have this setting, with every candidate asked for."""
    found = results.measured.get(job.setting.key)
    rows = [found.find(candidate.name) for candidate in job.candidates] if found else [None]
    return all(row is not None and row.passes[FORWARD].status != "pending" for row in rows)


def written(store: Store, results: Results) -> list[str]:
    """The names of the files, after drawing the charts where matplotlib is installed."""
    names = [store.json.name, store.csv.name]
    if importlib.util.find_spec("matplotlib") is None:
        say("no charts: matplotlib is not installed")
        return names
    from regard.bench import charts

    return names + charts.save(results, store.folder, store.name)


def show(results: Results) -> None:
    """Print every table."""
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
    """Whether one of ours failed its error check, broke, or lost its setting."""
    rows = [row for key, m in results.measured.items() if key in keys for row in m.rows]
    return any(
        row.family == "ours" and p.status in ("failed", "pending")
        for row in rows
        for p in row.passes.values()
    )


def chosen_jobs(options: argparse.Namespace, device: str) -> list[Job]:
    """The settings of the suites asked for, each once, the most important first."""
    names = options.suite or list(SUITES)
    if (options.lengths or options.hidden) and "square" not in names:
        raise UsageError(f"--lengths and --hidden are for --suite square, got {', '.join(names)}")
    sizes = {"lengths": options.lengths, "hidden": options.hidden, "quick": options.quick}
    everyone = chosen_candidates(options.peers, device)
    found: dict[str, Job] = {}
    for name in SUITES:
        if name in names:
            for setting in suite(name, device, **sizes):
                # What the plan picks for large calls is one of the others.
                chosen = [c for c in everyone if c.name != CHOSEN or name == "shapes"]
                if options.peers is None and device == "cuda":
                    chosen = for_suite(name, setting, chosen)
                before = found.get(setting.key, Job(setting, [])).candidates
                both = [c for c in everyone if c in chosen or c in before]
                found[setting.key] = Job(setting, both)
    return list(found.values())


def for_suite(name: str, setting: Setting, everyone: list[Candidate]) -> list[Candidate]:
    """Who a suite needs: time on a GPU is dear, and compilers are slow."""
    if name == "bars":
        return [c for c in everyone if c.name in needed(setting.hidden)]
    if name == "shapes":
        return [c for c in everyone if c.name != DETERMINISTIC]
    return everyone


def chosen_candidates(peers: str | None, device: str) -> list[Candidate]:
    """Ours, the device's usual dot, and the peers asked for."""
    usual = [c for c in CANDIDATES if c.family != "dot" or device == "cpu" or c is DOTS[0]]
    if peers is None:
        return usual
    named = {c.name.lower(): c for c in PEERS}
    wanted = (
        [] if peers.strip().lower() == "none" else [x.strip().lower() for x in peers.split(",")]
    )
    for name in wanted:
        if name not in named:
            known = ", ".join(c.name for c in named.values())
            raise UsageError(f"--peers: unknown peer {name!r}. Peers: {known}, or none")
    always = [c for c in usual if c.family in ("ours", "dot")]
    return [c for c in CANDIDATES if c in always or c.name.lower() in wanted]


def show_list(jobs: list[Job], *, as_json: bool) -> None:
    """What there is."""
    candidates = [c for c in CANDIDATES if any(c in job.candidates for job in jobs)]
    if as_json:
        found = {
            "suites": SUITES,
            "candidates": {candidate.name: candidate.what for candidate in candidates},
            "settings": [setting.as_dict() for setting, _ in jobs],
        }
        print(json_bytes(found).decode(), end="")
        return
    print("Suites")
    for name, meaning in SUITES.items():
        print(
            textwrap.fill(meaning, 80, initial_indent=f"  {name:<8} ", subsequent_indent=" " * 11)
        )
    print("\nCandidates")
    for candidate in candidates:
        print(
            textwrap.fill(
                candidate.what,
                80,
                initial_indent=f"  {candidate.name:<18} ",
                subsequent_indent=" " * 21,
            )
        )
    print("\nSettings, in this order")
    for setting, _ in jobs:
        print(textwrap.fill(setting.title(), 80, initial_indent="  ", subsequent_indent="    "))


def describe(device: torch.device) -> dict[str, Any]:
    """The machine, without a name of its own."""
    about = machine(device)
    triton = importlib.util.find_spec("triton")
    about["triton"] = importlib.import_module("triton").__version__ if triton else None
    if device.type == "cuda":
        about["memory_bytes"] = torch.cuda.get_device_properties(device).total_memory
    return about


def default_name(device: torch.device) -> str:
    """`h200` for an NVIDIA H200, `cpu` for any CPU."""
    if device.type == "cpu":
        return "cpu"
    words = re.findall(r"[a-z0-9]+", torch.cuda.get_device_name(device).lower())
    return "-".join(word for word in words if word not in ("nvidia", "geforce")) or "gpu"


def pick_device(name: str) -> torch.device:
    """The device asked for; `auto` is the GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no GPU here. Use --device cpu")
    seen = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(seen if name == "auto" else name)


def say(text: str) -> None:
    """A sentence about the run, if there is one, apart from its results."""
    if text:
        print(f"regard bench: {text}", file=sys.stderr)
