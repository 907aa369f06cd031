"""`regard bench --suite graph`: the loop over graphs, the file of results, and the tables."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import torch

from regard.bench.graphs import GraphSetting, graph_suite, measure, table, unavailable
from regard.bench.progress import progress
from regard.measuring.failures import first_line
from regard.measuring.files import json_bytes, write_atomic
from regard.measuring.words import duration

SCHEMA = "regard.bench.graph/1"
LEGEND = (
    "ms: median of what a caller waits, the linear layers included. faster: the time of PyTorch Geometric "
    "over this one, median of rounds. MiB: peak memory above the inputs."
)


def run_graphs(
    options: argparse.Namespace, device: torch.device, about: dict[str, Any], path: Path
) -> int:
    """Measure the graphs, write the file after each, and print; returns the exit code."""
    if reason := unavailable():
        print(f"Error: {reason}", file=sys.stderr)
        return 2
    settings = graph_suite(options.quick)
    found = earlier(path, about) if options.resume else {}
    began, longest = time.monotonic(), 0.0
    with progress() as shown:
        for at, setting in enumerate(settings):
            if setting.key in found:
                continue
            spent = time.monotonic() - began
            if options.budget is not None and longest and spent + longest > options.budget:
                said = f"budget of {duration(options.budget)} spent; --resume goes on"
                print(f"regard bench: {said}", file=sys.stderr)
                break
            shown.setting(at, len(settings), setting.title())
            try:
                found[setting.key] = measure(
                    setting, device, options.seed, options.quick, shown.step
                )
            except (RuntimeError, MemoryError) as error:  # not even the inputs fit
                print(f"regard bench: {setting.key}: {first_line(error)}", file=sys.stderr)
                continue
            longest = max(longest, time.monotonic() - began - spent)
            save(path, about, options.seed, found)
    show(path, about, options, found)
    return 1 if any(wrong(result) for result in found.values()) else 0


def wrong(result: dict[str, Any]) -> bool:
    """Whether one of ours raised or differed from the peer."""
    _, *ours = result["candidates"].values()
    return any(p["reason"] for passes in ours for p in passes.values())


def earlier(path: Path, about: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Results of an earlier run on this machine, by setting; none if it was another machine."""
    try:
        read = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    same = all(
        read["machine"].get(x) == about.get(x) for x in ("device", "name", "torch", "threads")
    )
    return {x["setting"]["key"]: x for x in read["settings"]} if same else {}


def as_dict(about: dict[str, Any], seed: int, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All results, for JSON."""
    return {"schema": SCHEMA, "machine": about, "seed": seed, "settings": list(found.values())}


def save(path: Path, about: dict[str, Any], seed: int, found: dict[str, dict[str, Any]]) -> None:
    """Write the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json_bytes(as_dict(about, seed, found)))


def show(
    path: Path, about: dict[str, Any], options: argparse.Namespace, found: dict[str, dict[str, Any]]
) -> None:
    """Print the tables, or JSON."""
    if options.json:
        print(json_bytes(as_dict(about, options.seed, found)).decode(), end="")
    else:
        print("\n\n".join([*map(table, found.values()), textwrap.fill(LEGEND, 80)]))
    print(f"regard bench: saved in {path}", file=sys.stderr)


def show_graphs(settings: list[GraphSetting]) -> None:
    """Print what would be measured."""
    for setting in settings:
        print(textwrap.fill(f"  {setting.title()}", 80, subsequent_indent="    "))
