"""Do the chooser's answers hold on fresh rows? Nine real sets, many resplits; none was used to build it.

    REGARD_DATA=folder python benchmarks/choose_real.py --jobs 2 --minutes 60
    python benchmarks/choose_real.py --write        the table, from what was measured

In each resplit 40% of the examples are set apart. `regard.choose` gets the rest. Then every finalist is
trained once more from the same seeds, and judged on the examples that were set apart:

- regret: the quality of the pick there, less that of the best finalist there. The best is selected on the rows that
  it is judged by, so its luck counts against the pick;
- crossed: the same, with the best selected on the fresh rows of the other resplits of that set (`best_elsewhere`);
- gain: the quality of the pick there, less that of scaled dot;
- held: whether each lead that was stated with a 95% interval lies in it there. The lead on fresh rows has a
  noise of its own; `allowed` widens the interval by it.

Runs are kept in benchmarks/results/choose_real.jsonl, one line each, and are not done twice.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from choose_real_sets import SETS, Examples, resplit

RESULTS = Path(__file__).parent / "results"
LINES, FOUND = RESULTS / "choose_real.jsonl", RESULTS / "choose_real.json"
SETTINGS: dict[str, Any] = {
    "steps": 120, "seeds": 5, "rates": (1e-3, 3e-3, 1e-2), "finalists": 3, "width": 32, "hidden": (32,),
    "stabilizers": ("none", "layer_norm"), "batch": 64, "matters": 0.02,
}  # fmt: skip


def run_one(name: str, number: int, folder: str) -> dict[str, Any]:
    """One resplit of one set: what was chosen and stated, and what fresh rows say."""
    import regard

    torch.set_num_threads(1)
    examples = SETS[name](Path(folder))
    data, fresh = resplit(examples, number)
    dims = int(examples.x.shape[1])
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        verdict = regard.choose(
            examples.build, data, dims=dims, projected=True, standardize=False, baselines=True,
            minutes=30.0, storage=Path(place) / "study.journal", progress=False, vitals=False, **SETTINGS,
        )  # fmt: skip
    seconds = time.perf_counter() - began
    found = on_fresh_rows(verdict, examples, data, fresh)
    return {
        "set": name, "resplit": number, "seconds": round(seconds, 1), "metric": verdict.metric,
        "outcome": verdict.outcome.name, "learned": bool(verdict.learned), "winner": verdict.winner, **found,
    }  # fmt: skip


def on_fresh_rows(verdict: Any, examples: Examples, data: Any, fresh: Any) -> dict[str, Any]:
    """The quality of every finalist on fresh rows, and the leads that were stated beside those there."""
    from regard.choosing.training.data import RowData, parts_of
    from regard.choosing.training.intervals import row_replicates
    from regard.choosing.training.metrics import goal
    from regard.choosing.training.trainer import Training, TrainingJob

    aim = goal(None, None, fresh[-1])
    job = TrainingJob(
        examples.build, aim, SETTINGS["steps"], SETTINGS["batch"], torch.device("cpu")
    )
    batches = RowData(fresh, "fresh").batches()
    qualities: dict[str, list[float]] = {}
    resampled: dict[str, torch.Tensor] = {}
    for row in verdict.finalists:
        replicates = []
        for seed in verdict.seeds:
            training = Training(job, row.candidate.make, parts_of(data, seed), seed, row.rate)
            training.advance(job.steps)
            again = training.quality(training.parts.test)
            if abs(again - row.quality[seed]) > 1e-3:
                raise AssertionError(f"{row.candidate.name}: {again} is not {row.quality[seed]}")
            qualities.setdefault(row.candidate.name, []).append(training.quality(batches))
            replicates.append(row_replicates(*training.answers(batches), aim.metric))
        resampled[row.candidate.name] = torch.tensor(replicates).mean(0)
    means = {name: statistics.fmean(values) for name, values in qualities.items()}
    leads = []
    for row in verdict.finalists:
        stated, null = verdict.over(row), verdict.null_of(row)
        if stated is None or null is None:
            continue
        name, other = row.candidate.name, null.candidate.name
        noise = float((resampled[name] - resampled[other]).std())
        leads.append(
            {
                "candidate": name,
                "stated": [stated.value, stated.low, stated.high],
                "fresh": means[name] - means[other],
                "noise": noise,
            }
        )
    null = verdict.facts["settings"]["candidates"][0]
    return {"fresh": means, "null": null, "leads": leads}


def held(lead: dict[str, Any], allow: bool) -> bool:
    """Whether the lead on fresh rows lies in the stated interval, or in that widened by its own noise."""
    value, low, high = lead["stated"]
    extra = 1.96 * lead["noise"] if allow else 0.0
    under, over = ((value - low) ** 2 + extra**2) ** 0.5, ((high - value) ** 2 + extra**2) ** 0.5
    return value - under <= lead["fresh"] <= value + over


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """All that the docs say: by set and over all."""
    tables = {name: of_runs([r for r in runs if r["set"] == name]) for name in SETS}
    return {
        "settings": {key: list(x) if isinstance(x, tuple) else x for key, x in SETTINGS.items()},
        "torch": torch.__version__,
        "sets": {name: found for name, found in tables.items() if found["resplits"]},
        "all": of_runs(runs),
    }


def of_runs(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Regret, gain and coverage of some runs, with 95% intervals over resplits."""
    regret, crossed, gain, leads = [], [], [], []
    for run in runs:
        pick = run["fresh"][run["winner"]]
        regret.append(pick - max(run["fresh"].values()))
        crossed.append(pick - run["fresh"][best_elsewhere(run, runs)])
        gain.append(pick - run["fresh"][run["null"]])
        leads += [lead for lead in run["leads"] if None not in lead["stated"]]
    picks = [run["winner"] for run in runs]
    return {
        "resplits": len(runs),
        "picks": {
            name: picks.count(name) for name in sorted(set(picks), key=lambda x: -picks.count(x))
        },
        "regret": interval(regret),
        "crossed": interval(crossed),
        "gain": interval(gain),
        "leads": len(leads),
        "held": share(leads, allow=False),
        "allowed": share(leads, allow=True),
    }


def best_elsewhere(run: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    """The finalist of a run with the largest mean lead over scaled dot in the other resplits of its set.

    Leads, not qualities, since resplits differ in difficulty and not all have the same finalists. Resplits draw from
    the same examples, so what is left of the luck is that of the set, not that of the rows of this run.
    """
    others = [r for r in runs if r["set"] == run["set"] and r["resplit"] != run["resplit"]]
    mean = {}
    for name in run["fresh"]:
        leads = [r["fresh"][name] - r["fresh"][r["null"]] for r in others if name in r["fresh"]]
        mean[name] = statistics.fmean(leads) if leads else float("-inf")
    return max(mean, key=lambda name: mean[name])


def interval(values: list[float]) -> list[float] | None:
    """Mean and a 95% interval over resplits."""
    if len(values) < 2:
        return None
    mean, reach = statistics.fmean(values), 1.96 * statistics.stdev(values) / len(values) ** 0.5
    return [round(mean, 5), round(mean - reach, 5), round(mean + reach, 5)]


def share(leads: list[dict[str, Any]], allow: bool) -> float | None:
    """The share of stated intervals that held."""
    return round(sum(held(lead, allow) for lead in leads) / len(leads), 4) if leads else None


def table(found: dict[str, Any]) -> str:
    """For the docs, in points of a hundred."""
    lines = [
        (
            "| set | resplits | pick less the best of these rows | pick less the best of other resplits | pick less scaled dot "
            "| intervals | held | held, fresh noise allowed |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in {**found["sets"], "**all**": found["all"]}.items():
        cells = [points(one[key]) for key in ("regret", "crossed", "gain")] + [str(one["leads"])]
        cells += ["" if one[key] is None else f"{one[key]:.1%}" for key in ("held", "allowed")]
        lines.append(f"| {name} | {one['resplits']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def points(found: list[float] | None) -> str:
    """Mean and interval in points of a hundred."""
    if found is None:
        return ""
    mean, low, high = (100 * x for x in found)
    return f"{mean:+.1f} [{low:.1f}, {high:.1f}]"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Runs that are finished; a last line that was cut off is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def measure(
    names: list[str], resplits: int, jobs: int, minutes: float, folder: str, lines: Path
) -> list[tuple[str, int]]:
    """Do the runs that are not there yet, and say how long the rest takes; returns those that failed."""
    done = {(run["set"], run["resplit"]) for run in read_lines(lines)}
    order = [(name, number) for number in range(resplits) for name in names]
    waiting = [pair for pair in order if pair not in done]
    until, began, finished = time.time() + 60 * minutes, time.time(), 0
    failed: list[tuple[str, int]] = []
    lines.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(jobs) as pool, lines.open("a") as file:
        running = {}
        while (waiting and time.time() < until) or running:
            while waiting and len(running) < jobs and time.time() < until:
                pair = waiting.pop(0)
                running[pool.submit(run_one, *pair, folder)] = pair
            for future in as_completed(list(running)):
                pair = running.pop(future)
                finished += 1
                try:
                    file.write(json.dumps(future.result()) + "\n")
                    file.flush()
                except Exception as error:  # one resplit that fails must not cost the others
                    failed.append(pair)
                    print(f"{pair[0]} {pair[1]} failed: {error!r}", file=sys.stderr)
                left = (time.time() - began) / finished * (len(waiting) + len(running))
                print(
                    f"{pair[0]} {pair[1]}: {finished} done, {left / 60:.1f} min left",
                    file=sys.stderr,
                )
                break
    return failed


def main() -> None:
    """Measure, then summarise; the exit status is 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", help="names, with commas; default all")
    parser.add_argument("--resplits", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no run after that")
    parser.add_argument("--lines", type=Path, default=LINES)
    parser.add_argument("--write", action="store_true", help="only summarise what was measured")
    options = parser.parse_args()
    names = options.sets.split(",") if options.sets else list(SETS)
    unknown = [name for name in names if name not in SETS]
    if unknown:
        parser.error(f"--sets {unknown[0]}: there is none; there are {', '.join(SETS)}")
    failed = []
    if not options.write:
        folder = os.environ.get("REGARD_DATA")
        if not folder:
            parser.error("REGARD_DATA must name the folder of the data sets")
        failed = measure(
            names, options.resplits, options.jobs, options.minutes, folder, options.lines
        )
    found = summary(read_lines(options.lines))
    if options.write and FOUND.exists():
        # Summarising trains nothing: the torch that counts is that of the runs.
        found["torch"] = json.loads(FOUND.read_text())["torch"]
    FOUND.parent.mkdir(parents=True, exist_ok=True)
    FOUND.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
