"""Runs a recipe's comparison in parallel processes: `python -m regard.recipes.comparing --recipe graph --out DIR`.

Finished runs are skipped and nothing is lost at the time limit: the same command goes on. At the end DIR has
`NAME.json` and `NAME.html` beside `runs/`. Exit codes: 0 done, or stopped at the time limit; 1 a contender
failed; 2 a mistake; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from regard.measuring.progress import progress
from regard.recipes.comparing.report import write_report
from regard.recipes.comparing.results import ResultError
from regard.recipes.comparing.runner import OutOfTime, compare, picked
from regard.recipes.comparing.sentences import sentences
from regard.recipes.comparing.work import WorkSource, all_labels, facts_of, seeds_of
from regard.recipes.estimator import RecipeError
from regard.recipes.sources import DataError


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="python -m regard.recipes.comparing", description=__doc__)
    found.add_argument("--recipe", required=True, help="name, or a module that has a KIT")
    found.add_argument("--set", help="name of the set; the recipe's default if not given")
    found.add_argument("--out", type=Path, required=True, help="folder for results")
    found.add_argument("--data", help="folder of public data")
    found.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel processes")
    found.add_argument("--only", help="contenders, with commas between")
    found.add_argument("--seeds", type=int, help="how many")
    found.add_argument("--device", help="cpu or cuda; the recipe's choice if not given")
    found.add_argument(
        "--quick", action="store_true", help="the quick comparison, not the full one"
    )
    found.add_argument("--limit-minutes", type=float, help="stop after this time")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code."""
    try:
        return run(parser().parse_args(arguments))
    except (DataError, RecipeError, KeyError) as error:
        print(f"error: {error.args[0]}", file=sys.stderr)
        return 2
    except OutOfTime as error:
        print(f"{error}; the same command continues", file=sys.stderr)
        return 0
    except ResultError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted: finished runs are kept, the same command continues", file=sys.stderr)
        return 130


def run(options: argparse.Namespace) -> int:
    """Compare, and write the summary and the page."""
    source = WorkSource(
        options.recipe, options.set, options.data, False, not options.quick, options.device
    )
    comparison, data = source.load()
    only = None if options.only is None else [one.strip() for one in options.only.split(",")]
    labels = all_labels(picked(comparison, only), seeds_of(comparison, options.seeds))
    facts = facts_of(data)
    with progress(dict.fromkeys(labels, 1.0), dict.fromkeys(labels, ""), noun="runs") as shown:
        found = compare(
            comparison,
            options.out,
            seeds=options.seeds,
            jobs=options.jobs,
            progress=shown,
            source=source,
            only=only,
            minutes=options.limit_minutes,
            dataset=facts,
            full=source.full,
            device=None if options.device is None else torch.device(options.device),
        )
    found.save(options.out / f"{comparison.name}.json")
    write_report(found, options.out / f"{comparison.name}.html")
    for one in sentences(found):
        print(one.en)
    return 1 if found.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
