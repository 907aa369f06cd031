"""Which score suits a narrow encoder? `python -m regard.recipes.translate.small_device`.

A small device keeps the source's keys in little memory: the encoder's width (keys) shrinks from 512 to 128 and 32
while the decoder's stays 512. For each score: BLEU, bytes of the model, bytes of the keys of a sentence, and the time
that a CPU takes for a sentence. All runs end in one `summary.json`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from regard.forms import key_tensor
from regard.measuring.files import json_bytes, write_atomic
from regard.recipes.translate.contenders import evaluated_as_json
from regard.recipes.translate.kit import load
from regard.recipes.translate.networks import RecurrentTranslator
from regard.recipes.translate.processes import (
    Place,
    TrainingRun,
    add_options,
    place_of,
    run_all,
)
from regard.recipes.translate.sizes import arguments
from regard.recipes.translate.translator import Translator

SCORES = {
    "additive": "additive",
    "bilinear": "bilinear",
    "low rank": "low_rank",
    "projected dot": "scaled_dot",
}
WIDTHS = (512, 128, 32)
SEEDS = (0, 1)
TIMED_SENTENCES = 40
LENGTH = 16  # pieces of the sentence whose keys are counted, about the mean of Multi30k


def main(given: Sequence[str] | None = None) -> int:
    """Make what is missing. The exit status is 0 if all is there, 3 if the time ended before."""
    parser = argparse.ArgumentParser(description="Which score suits a narrow encoder?")
    add_options(parser)
    options = parser.parse_args(given)
    place = place_of(options)
    deadline = time.monotonic() + 60 * options.minutes_limit
    wanted = [one.strip() for one in options.only.split(",") if one.strip()] or list(SCORES)
    runs = [
        run_of(name, width, seed, options) for seed in SEEDS for width in WIDTHS for name in wanted
    ]
    if not run_all(runs, measured_small, place, options.jobs, deadline):
        return 3
    rows = [one for one in place.results() if "encoder_width" in one]
    write_atomic(place.out / "summary.json", json_bytes({"rows": summary(rows)}))
    return 0


def run_of(name: str, width: int, seed: int, options: argparse.Namespace) -> TrainingRun:
    """The run of a score, an encoder's width and a seed."""
    found = arguments(options.dataset, "bahdanau") | {
        "score": SCORES[name],
        "encoder_width": width,
        "seed": seed,
        "device": options.device,
        "checkpoint_every": 8,
    }
    if options.epochs is not None:
        found["epochs"] = options.epochs
    facts = {"contender": name, "encoder_width": width, "seed": seed, "set": options.dataset}
    return TrainingRun(f"small-{SCORES[name]}-{width}-{seed}", facts, found)


def measured_small(run: TrainingRun, place: Place) -> dict[str, Any]:
    """Train, evaluate and measure: the work of a process."""
    data = load(place.dataset, place.data, limit=place.limit)
    model = Translator(**run.arguments)
    found = evaluated_as_json(model, data, place.checkpoints / f"{run.name}.safetensors")
    return {**found, **cost(model, data.test.x[:TIMED_SENTENCES])}


def cost(model: Translator, sentences: Sequence[str]) -> dict[str, float]:
    """Bytes of the model and of a sentence's keys, and milliseconds of a sentence on one CPU core.

    Times of trainings that run at once on other cores differ by a few percent; the median of the sentences, each
    translated alone and greedily, is what is kept.
    """
    network = model.model_.to("cpu")
    assert isinstance(network, RecurrentTranslator)
    attention = network.decoder.attention
    keys = torch.zeros(1, LENGTH, network.encoder.output_dim)
    memory = attention.prepare(keys)
    side = key_tensor(memory.side)
    taken = []
    model.predict(sentences[:2], beam=1)
    for sentence in sentences:
        begun = time.perf_counter()
        model.predict([sentence], beam=1)
        taken.append(1e3 * (time.perf_counter() - begun))
    score = sum(one.numel() for one in attention.score.parameters())
    return {
        "model_bytes": 4 * sum(one.numel() for one in network.parameters()),
        "score_bytes": 4 * score,
        "encoder_bytes": 4 * sum(one.numel() for one in network.encoder.network.parameters()),
        "key_bytes": 4 * side.numel(),
        "memory_bytes": 4 * (side.numel() + memory.value.numel()),
        "cpu_ms": statistics.median(taken),
        "threads": torch.get_num_threads(),
    }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each score and width the mean over seeds and each seed's BLEU."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for one in rows:
        found.setdefault((one["contender"], one["encoder_width"]), []).append(one)
    means = ("bleu", "bleu_greedy", "chrf", "validation", "cpu_ms", "train_seconds")
    same = ("model_bytes", "score_bytes", "encoder_bytes", "key_bytes", "memory_bytes")
    return [
        {"score": name, "encoder_width": width}
        | {key: statistics.fmean(one[key] for one in group) for key in means}
        | {key: group[0][key] for key in same}
        | {"bleu_by_seed": [one["bleu"] for one in sorted(group, key=lambda one: one["seed"])]}
        for (name, width), group in sorted(found.items())
    ]


if __name__ == "__main__":
    sys.exit(main())
