"""Which score suits a narrow encoder? A comparison of its own, and what each row costs on a CPU.

A small device keeps the keys of a source in little memory: the encoder's width (keys) shrinks from 512 to 128 and 32
while the decoder's stays. The comparison trains every score at every width:

    python -m regard.recipes.comparing --recipe regard.recipes.translate.small_device --out benchmarks/recipes

Bytes and times do not depend on what was learned, so they are measured apart, one thread, in turns:

    python -m regard.recipes.translate.small_device --out benchmarks/results/small_device_costs.json
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.forms import key_tensor
from regard.measuring.files import json_bytes, write_atomic
from regard.measuring.machine import machine
from regard.recipes.datasets import Dataset
from regard.recipes.kit import Comparison, Contender
from regard.recipes.translate import kit
from regard.recipes.translate.contenders import METRIC, contender
from regard.recipes.translate.multi30k import SETS as MULTI30K_SETS
from regard.recipes.translate.networks import RecurrentTranslator
from regard.recipes.translate.sizes import arguments, quick_arguments
from regard.recipes.translate.subwords import BOS
from regard.recipes.translate.translator import Translator
from regard.text import Text

SCORES = {
    "additive": Text("additive", "加性"),
    "bilinear": Text("bilinear", "双线性"),
    "low_rank": Text("low rank", "低秩"),
    "scaled_dot": Text("projected dot", "投影点积"),
}
WIDTHS = (512, 128, 32)
QUICK_WIDTHS = (64, 16)
EPOCHS = 20
LENGTH = 16  # pieces of the timed sentence and of its translation, about the mean of Multi30k
ROUNDS = 15
VOCABULARY = 8000


def comparison(data: Dataset, full: bool, device: str | None = None) -> Comparison:
    """Every score at every width of the encoder, from the widest to the narrowest."""
    rows: list[Contender] = []
    for width in WIDTHS if full else QUICK_WIDTHS:
        for score, title in SCORES.items():
            if not full:
                fixed = quick_arguments("bahdanau")
            else:
                fixed = arguments(data.name, "bahdanau") | {"epochs": EPOCHS}
            fixed |= {"score": score, "encoder_width": width, "device": device}
            name = Text(f"{title.en}, keys of {width}", f"{title.zh}，键宽 {width}")
            rows.append(contender(row_name(score, width), name, "score", fixed, data))
    widest = WIDTHS[0] if full else QUICK_WIDTHS[0]
    return Comparison(
        name="translate-small-device",
        title=Text(f"A narrow encoder: {data.title.en}", f"窄编码器：{data.title.zh}"),
        metric=METRIC,
        contenders=tuple(rows),
        reference=row_name("scaled_dot", widest),
        seeds=(0, 1) if full else (0,),
        notes=(
            Text(
                f"GRU with attention before each step; the decoder has 512 units, the encoder's outputs (keys) have "
                f"the width of the row; {EPOCHS} epochs. Scores that project compare in 256 dimensions, low rank in "
                "64; bilinear joins the widths as they are.",
                f"每步之前注意的 GRU；解码器 512 维，编码器输出（键）为各行所示宽度；{EPOCHS} 轮。带投影的打分在 256 "
                "维中比较，低秩为 64，双线性直接连接两种宽度。",
            ),
        ),
    )


def row_name(score: str, width: int) -> str:
    """The name of a row: "additive 128"."""
    return f"{score.replace('_', ' ')} {width}"


def network_of(score: str, width: int) -> RecurrentTranslator:
    """The network of a row with fresh weights: costs do not depend on what is learned."""
    given = arguments(next(iter(MULTI30K_SETS)), "bahdanau")
    model = Translator(**given | {"score": score, "encoder_width": width})
    torch.manual_seed(0)
    found = model.network_for(VOCABULARY)
    assert isinstance(found, RecurrentTranslator)
    return found.eval()


def bytes_of(network: RecurrentTranslator) -> dict[str, int]:
    """Bytes in fp32 of the model, of its score, of its encoder, and of what a sentence keeps for decoding."""

    def size(module: torch.nn.Module) -> int:
        return 4 * sum(one.numel() for one in module.parameters())

    attention = network.decoder.attention
    memory = attention.prepare(torch.zeros(1, LENGTH, network.encoder.output_dim))
    side = key_tensor(memory.side)
    return {
        "model_bytes": size(network),
        "score_bytes": size(attention.score),
        "encoder_bytes": size(network.encoder.network),
        "key_bytes": 4 * side.numel(),
        "memory_bytes": 4 * (side.numel() + memory.value.numel()),
    }


@torch.no_grad()
def sentence_ms(network: RecurrentTranslator) -> float:
    """Milliseconds to encode a sentence of `LENGTH` pieces and to decode as many."""
    source = torch.arange(10, 10 + LENGTH).unsqueeze(0)
    begun = time.perf_counter()
    memory, state = network.encode(source, torch.tensor([LENGTH]))
    token = torch.tensor([BOS])
    for _ in range(LENGTH):
        logits, _, state = network.step(token, memory, state)
        token = logits.argmax(-1)
    return 1e3 * (time.perf_counter() - begun)


def costs() -> dict[str, Any]:
    """Bytes and milliseconds of every row; rows take turns, so that a busy moment does not meet one alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        networks = {(s, w): network_of(s, w) for w in WIDTHS for s in SCORES}
        taken: dict[tuple[str, int], list[float]] = {key: [] for key in networks}
        for number in range(ROUNDS + 2):
            for key, network in networks.items():
                spent = sentence_ms(network)
                if number >= 2:  # the first rounds fill caches
                    taken[key].append(spent)
    finally:
        torch.set_num_threads(threads)
    rows = [
        {
            "name": row_name(score, width),
            "score": score,
            "encoder_width": width,
            **bytes_of(networks[score, width]),
            "cpu_ms": round(statistics.median(times), 2),
            "cpu_ms_quartiles": [round(x, 2) for x in statistics.quantiles(times, n=4)[::2]],
        }
        for (score, width), times in taken.items()
    ]
    facts = {k: v for k, v in machine(torch.device("cpu")).items() if k != "threads"}
    return {"length": LENGTH, "threads": 1, "machine": facts, "rows": rows}


def main(given: Sequence[str] | None = None) -> None:
    """Measure the costs and write them."""
    parser = argparse.ArgumentParser(description="Costs of a narrow encoder on one CPU core.")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    options = parser.parse_args(given)
    found = costs()
    write_atomic(options.out, json_bytes(found))
    for row in found["rows"]:
        print(f"{row['name']:16} {row['model_bytes'] / 1e6:6.1f} MB  {row['cpu_ms']:6.1f} ms")


# The recipe's own kit with another comparison; by default on the public set, which the question is about.
KIT = dataclasses.replace(kit.KIT, sets=(*MULTI30K_SETS, "dates"), comparison=comparison)

if __name__ == "__main__":
    main()
