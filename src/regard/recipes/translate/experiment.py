"""All trainings of the full comparison, as processes at once: `python -m regard.recipes.translate.experiment`.

It has three stages, each of which can be ended at any time and started again:

1. every contender with every setting from the first seed;
2. the setting that was best on validation data from the other seeds (`--all-settings`: every setting);
3. scores at equal time: seconds of an epoch are measured for each score with nothing beside it (`timing.json`), and
   each score gets as many epochs as fit into the time of the reference.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from regard.measuring.files import json_bytes, write_atomic
from regard.recipes.translate.contenders import (
    RECURRENT,
    REFERENCE,
    SCORES,
    SETTINGS,
    evaluated_as_json,
    machine,
)
from regard.recipes.translate.kit import load
from regard.recipes.translate.processes import (
    Place,
    TrainingRun,
    add_options,
    place_of,
    run_all,
    short,
)
from regard.recipes.translate.sizes import arguments
from regard.recipes.translate.translator import Translator

AT_EQUAL_TIME = " at equal time"
TIMED_EPOCHS = 2


def main(given: Sequence[str] | None = None) -> int:
    """Make what is missing. The exit status is 0 if all is there, 3 if the time ended before."""
    parser = argparse.ArgumentParser(description="Train all that is compared in translation.")
    add_options(parser)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--all-settings", action="store_true", help="every setting from every seed")
    parser.add_argument("--no-equal-time", action="store_true", help="leave out stage 3")
    options = parser.parse_args(given)
    place, begun = place_of(options), time.monotonic()
    deadline = begun + 60 * options.minutes_limit
    seeds = [int(one) for one in options.seeds.split(",")]
    names = [one for one in contender_arguments(options) if wanted(one, options)]
    every = range(len(SETTINGS))
    first = [run_of(name, setting, seeds[0], options) for setting in every for name in names]
    if not run_all(first, evaluated, place, options.jobs, deadline):
        return 3
    best = chosen(place)
    rest = [
        run_of(name, setting, seed, options)
        for seed in seeds[1:]
        for name in names
        for setting in (every if options.all_settings else (best[name],))
    ]
    if not run_all(rest, evaluated, place, options.jobs, deadline):
        return 3
    scores = [one for one in names if one in SCORES]
    if options.no_equal_time or REFERENCE not in names or len(scores) < 2:
        return 0
    # Not begun if it could not end: it is the only part that does not go on where it was.
    if not (place.out / "timing.json").exists() and time.monotonic() + 120 > deadline:
        return 3
    seconds = timed(scores, place, options)
    last = [
        run_of(name, best[name], seed, options, epochs)
        for seed in seeds
        for name in scores
        if (epochs := fitting_epochs(name, seconds, options)) is not None
    ]
    return 0 if run_all(last, evaluated, place, options.jobs, deadline) else 3


def wanted(name: str, options: argparse.Namespace) -> bool:
    """Whether the options ask for a contender."""
    return not options.only or name in [one.strip() for one in options.only.split(",")]


def contender_arguments(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The arguments of each contender, without setting and seed."""
    rows = {
        name: arguments(options.dataset, "transformer") | {"score": score}
        for name, score in SCORES.items()
    }
    rows |= {row[0]: arguments(options.dataset, row[1]) for row in RECURRENT}
    more = {"device": options.device, "checkpoint_every": 8}
    if options.epochs is not None:
        more["epochs"] = options.epochs
    return {name: one | more for name, one in rows.items()}


def run_of(
    name: str, setting: int, seed: int, options: argparse.Namespace, epochs: int | None = None
) -> TrainingRun:
    """The run of a contender, setting and seed; `epochs` are given at equal time only."""
    found = contender_arguments(options)[name] | SETTINGS[setting] | {"seed": seed}
    title = name if epochs is None else name + AT_EQUAL_TIME
    if epochs is not None:
        found["epochs"] = epochs
    facts = {
        "set": options.dataset,
        "contender": title,
        "setting": setting,
        "seed": seed,
        "arguments": {k: v for k, v in found.items() if k not in ("device", "checkpoint_every")},
    }
    return TrainingRun(f"{short(title)}-{setting}-{seed}", facts, found)


def evaluated(run: TrainingRun, place: Place) -> dict[str, Any]:
    """Train and evaluate: the work of a process."""
    data = load(place.dataset, place.data, limit=place.limit)
    return evaluated_as_json(
        Translator(**run.arguments), data, place.checkpoints / f"{run.name}.safetensors"
    )


def chosen(place: Place) -> dict[str, int]:
    """For each contender the setting with the best mean validation of all seeds that are there."""
    found: dict[str, dict[int, list[float]]] = {}
    for one in place.results():
        found.setdefault(one["contender"], {}).setdefault(one["setting"], []).append(
            one["validation"]
        )
    return {
        name: max(settings, key=lambda setting: statistics.fmean(settings[setting]))
        for name, settings in found.items()
    }


def timed(names: Iterable[str], place: Place, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of an epoch of each score, alone on the machine; kept in `timing.json`."""
    path = place.out / "timing.json"
    if path.exists():
        return json.loads(path.read_text())["seconds"]
    data, seconds = load(place.dataset, place.data, limit=place.limit), {}
    few = (data.validation.x[:8], data.validation.y[:8])
    for name in names:
        for epochs in (1, TIMED_EPOCHS):  # the first compiles kernels and is not counted
            model = Translator(**contender_arguments(options)[name] | {"epochs": epochs})
            model.fit(data.train.x, data.train.y, validation=few)
        seconds[name] = model.history_.seconds / TIMED_EPOCHS
    write_atomic(path, json_bytes({"seconds": seconds, "device": machine()}))
    return seconds


def fitting_epochs(name: str, seconds: dict[str, float], options: argparse.Namespace) -> int | None:
    """Epochs of a score in the time of the reference; None for as many, which stages 1 and 2 have trained."""
    usual = contender_arguments(options)[name]["epochs"]
    found = max(round(usual * seconds[REFERENCE] / seconds[name]), 1)
    return None if found == usual else found


if __name__ == "__main__":
    sys.exit(main())
