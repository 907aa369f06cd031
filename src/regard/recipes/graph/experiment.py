"""All runs of the comparison on Cora, Citeseer and the look-up, in parallel and resumable.

    python -m regard.recipes.graph.experiment --out DIR --data DIR --jobs N [--only cora,gatv2] [--summary]

Each finished run is one JSON file, written to a temporary file first; runs whose file exists are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.measuring.files import write_atomic
from regard.recipes.kit import Comparison

EXPERIMENT_SETS = ("cora", "citeseer", "dictionary")
# Ours beside the same layer of PyTorch Geometric.
TWINS = {
    "gat": "PyG GATConv",
    "gatv2": "PyG GATv2Conv",
    "scaled_dot residual": "PyG TransformerConv",
}


class Planned(NamedTuple):
    """One run: the set, the contender, the number of its setting, and the seed."""

    dataset: str
    contender: str
    setting: int
    seed: int

    def path(self, out: Path) -> Path:
        """The file of its result."""
        name = self.contender.replace(" ", "-")
        return out / self.dataset / f"{name}.{self.setting}.{self.seed}.json"


@cache
def compared(name: str, data: str | None, device: str | None, full: bool) -> Comparison:
    """The comparison on a set, made once in each process."""
    from regard.recipes.graph import KIT

    return KIT.comparison(KIT.load(name, data), full, device)


def planned(options: argparse.Namespace) -> Iterator[Planned]:
    """All runs that are asked for."""
    only = [word for word in options.only.split(",") if word]
    named = [word for word in only if word in EXPERIMENT_SETS]
    rows = [word for word in only if word not in EXPERIMENT_SETS]
    for name in named or EXPERIMENT_SETS:
        found = compared(name, options.data, options.device, not options.quick)
        for contender in found.contenders:
            if rows and contender.name not in rows:
                continue
            for number in range(len(contender.settings)):
                for seed in found.seeds[: options.seeds]:
                    yield Planned(name, contender.name, number, seed)


def run_one(one: Planned, out: Path, data: str | None, device: str | None, full: bool) -> str:
    """Train and evaluate one run and write its file."""
    import torch

    torch.set_num_threads(1)  # the runs themselves are parallel
    found = compared(one.dataset, data, device, full)
    contender = next(row for row in found.contenders if row.name == one.contender)
    setting = contender.settings[one.setting]
    result = contender.run(setting, one.seed, lambda share: None)
    facts = one._asdict() | {
        "settings": dict(setting),
        "validation": result.validation,
        "test": found.metric.value(result.statistics),
        "statistics": result.statistics[:, 0].astype(int).tolist(),
        "parameters": result.parameters,
        "train_seconds": round(result.train_seconds, 3),
        "predict_seconds": round(result.predict_seconds, 5),
        "extra": result.extra,
    }
    path = one.path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(facts).encode())
    return f"{path.stem} {one.dataset}: {facts['test']:.1f}"


def summary(out: Path) -> list[str]:
    """For each set and contender the setting with the best mean validation, and its test accuracy."""
    runs: dict[str, dict[str, dict[int, list[dict[str, Any]]]]] = {}
    for path in sorted(out.glob("*/*.json")):
        fact = json.loads(path.read_text(encoding="utf-8"))
        rows = runs.setdefault(fact["dataset"], {}).setdefault(fact["contender"], {})
        rows.setdefault(fact["setting"], []).append(fact)
    lines = []
    for dataset, rows in runs.items():
        test: dict[str, np.ndarray] = {}
        for name, settings in rows.items():
            chosen = max(settings.values(), key=lambda x: np.mean([one["validation"] for one in x]))
            test[name] = np.array([one["test"] for one in sorted(chosen, key=lambda x: x["seed"])])
            seconds = np.mean([one["train_seconds"] for one in chosen])
            spread = test[name].std(ddof=1) if len(chosen) > 1 else float("nan")
            lines.append(
                f"{dataset:10} {name:22} {test[name].mean():6.2f} +- {spread:4.2f}  n={len(chosen):2}  "
                f"{seconds:6.1f} s  {chosen[0]['settings']}"
            )
        for ours, theirs in TWINS.items():
            if ours in test and theirs in test:
                gap = test[ours].mean() - test[theirs].mean()
                lines.append(f"{dataset:10} {ours} less {theirs}: {gap:+.2f}")
    return lines


def main(words: list[str] | None = None) -> None:
    """Run what is missing, then print the summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--data", help="folder of public sets; default REGARD_DATA")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once")
    parser.add_argument("--only", default="", help="names of sets and contenders, comma between")
    parser.add_argument("--seeds", type=int, default=None, help="the first so many seeds only")
    parser.add_argument("--device", default=None, help="cpu or cuda; default cuda if there is one")
    parser.add_argument("--quick", action="store_true", help="fewer settings, seeds and epochs")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    options = parser.parse_args(words)
    left = (
        [] if options.summary else [x for x in planned(options) if not x.path(options.out).exists()]
    )
    # Runs of one seed before those of the next, so that an early look has all rows.
    left.sort(key=lambda one: (one.seed, one.dataset))
    with ProcessPoolExecutor(max(options.jobs, 1), get_context("spawn")) as pool:
        full = not options.quick
        tasks = [
            pool.submit(run_one, x, options.out, options.data, options.device, full) for x in left
        ]
        for number, done in enumerate(as_completed(tasks)):
            print(f"{number + 1}/{len(tasks)} {done.result()}", flush=True)
    print("\n".join(summary(options.out)))


if __name__ == "__main__":
    main()
