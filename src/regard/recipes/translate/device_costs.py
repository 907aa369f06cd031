"""Bytes and CPU time of a narrow encoder with every score, and the page that joins them to its BLEU.

Neither depends on what was learned, so that they are measured apart from the training of `small_device.py`:

    python -m regard.recipes.translate.device_costs benchmarks/results/small_device_costs.json

With `--join benchmarks/recipes/translate-small-device.json` it measures nothing if the file is there, and adds the
costs to the comparison's result.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.forms import key_tensor
from regard.measuring.files import json_bytes, write_atomic
from regard.measuring.machine import machine
from regard.measuring.turns import there_and_back
from regard.recipes.comparing.results import Compared, Picture
from regard.recipes.translate.networks import RecurrentTranslator
from regard.recipes.translate.sizes import arguments
from regard.recipes.translate.small_device import SCORES, WIDTHS, row_name
from regard.recipes.translate.subwords import BOS
from regard.recipes.translate.translator import Translator
from regard.text import Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTH = 16  # pieces of the timed sentence and of its translation, about the mean of Multi30k
ROUNDS = 40  # each row is timed twice in each, there and back
WARM_UPS = 2  # rounds that fill caches
VOCABULARY = 8000
DECODER = 512
JOINED = ("model_bytes", "score_bytes", "memory_bytes", "cpu_ms")
NOTE = Text(
    f"cpu_ms is the median CPU time of one thread for one sentence of {LENGTH} pieces and a translation as long, by "
    "greedy search; memory_bytes is what the sentence keeps for decoding, keys and values in fp32.",
    f"cpu_ms 为单线程翻译一个 {LENGTH} 个片段的句子（译文等长，贪心搜索）所用 CPU 时间的中位数；memory_bytes 为解码时该句所保留的"
    "键与值（fp32）的字节数。",
)
CAPTION = Text(
    "BLEU against the CPU time of a sentence; beside each mark the width of the keys.",
    "BLEU 与单句 CPU 时间；标记旁为键宽。",
)


def network_of(score: str, width: int) -> RecurrentTranslator:
    """The network of a row with fresh weights."""
    given = arguments("multi30k-de-en", "bahdanau") | {"width": DECODER}
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
    """CPU milliseconds of this thread to encode a sentence of `LENGTH` pieces and to decode as many.

    Not by the wall: other programs that take the core for a while lengthen that, not this.
    """
    source = torch.arange(10, 10 + LENGTH).unsqueeze(0)
    begun = time.thread_time()
    memory, state = network.encode(source, torch.tensor([LENGTH]))
    token = torch.tensor([BOS])
    for _ in range(LENGTH):
        logits, _, state = network.step(token, memory, state)
        token = logits.argmax(-1)
    return 1e3 * (time.thread_time() - begun)


def costs(rounds: int = ROUNDS) -> dict[str, Any]:
    """Bytes and milliseconds of every row; rows take turns, so that a busy moment does not meet one alone.

    `relative` is to the first row of scaled dot, the median of the quotients within each round.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        networks = {(s, w): network_of(s, w) for w in WIDTHS for s in SCORES}
        taken: dict[tuple[str, int], list[float]] = {key: [] for key in networks}
        for number in range(WARM_UPS + rounds):
            spent = dict.fromkeys(networks, 0.0)
            for key in there_and_back(list(networks)):
                spent[key] += sentence_ms(networks[key]) / 2
            if number >= WARM_UPS:
                for key, ms in spent.items():
                    taken[key].append(ms)
    finally:
        torch.set_num_threads(threads)
    # Row by row of the same round: what slows a core for a while, slows all of a round.
    reference = taken["scaled_dot", WIDTHS[0]]
    ratios = {k: [a / b for a, b in zip(own, reference, strict=True)] for k, own in taken.items()}
    rows = [
        {
            "name": row_name(*key),
            "score": key[0],
            "encoder_width": key[1],
            **bytes_of(networks[key]),
            "cpu_ms": round(statistics.median(times), 2),
            "cpu_ms_quartiles": quartiles(times),
            "relative": round(statistics.median(ratios[key]), 3),
            "relative_quartiles": quartiles(ratios[key]),
        }
        for key, times in taken.items()
    ]
    facts = {k: v for k, v in machine(torch.device("cpu")).items() if k != "threads"}
    return {"length": LENGTH, "threads": 1, "rounds": rounds, "machine": facts, "rows": rows}


def quartiles(values: Sequence[float]) -> list[float]:
    """The ends of the range that holds the middle half of the values."""
    return [round(x, 3) for x in statistics.quantiles(values, n=4)[::2]]


def joined(found: Compared, measured: dict[str, Any]) -> Compared:
    """A comparison's result with the costs among the further numbers of its rows, and a figure of both."""
    by_name = {row["name"]: {k: row[k] for k in JOINED} for row in measured["rows"]}
    rows = tuple(
        dataclasses.replace(row, extra={**row.extra, **by_name.get(row.name, {})})
        for row in found.rows
    )
    notes = (*(one for one in found.notes if one != NOTE), NOTE)
    whole = dataclasses.replace(found, rows=rows, notes=notes)
    return dataclasses.replace(whole, pictures=(Picture(CAPTION, chart(whole)),))


def chart(found: Compared) -> str:
    """BLEU against CPU time as SVG, a line for each score through its widths."""
    from regard.figures.canvas import LOOKS, composed

    def compose() -> Figure:
        from regard.figures.canvas import Canvas

        canvas = Canvas()
        (axes,) = canvas.panels(1, wide=5.2, high=3.4)
        known = {row.name: row for row in found.rows}
        for score, title in SCORES.items():
            line = [known[name] for w in WIDTHS if (name := row_name(score, w)) in known]
            if not line:
                continue
            x, y = [one.extra["cpu_ms"] for one in line], [one.value.value for one in line]
            ink, mark = LOOKS[score.replace("_", " ")]
            axes.plot(x, y, color=ink, marker=mark, label=f"{title.en} {title.zh}")
            for one, across, up in zip(line, x, y, strict=True):
                width = one.name.rpartition(" ")[2]
                axes.annotate(width, (across, up), (4, 4), textcoords="offset points", fontsize=7)
        canvas.label(axes, "CPU, ms", found.metric.title.en)
        canvas.legend(axes)
        return canvas.figure

    return composed(compose, ["svg"])["svg"].decode()


def main(given: Sequence[str] | None = None) -> None:
    """Measure the costs and write them, and join them to a comparison's result."""
    parser = argparse.ArgumentParser(description="Costs of a narrow encoder on one CPU core.")
    parser.add_argument("costs", type=Path, help="file of the costs")
    parser.add_argument("--join", type=Path, help="result of the comparison, which gets the costs")
    options = parser.parse_args(given)
    if options.join is None or not options.costs.exists():
        write_atomic(options.costs, json_bytes(costs()))
    measured = json.loads(options.costs.read_bytes())
    for row in measured["rows"]:
        low, high = row["relative_quartiles"]
        print(
            f"{row['name']:15} {row['model_bytes'] / 1e6:5.1f} MB {row['memory_bytes'] / 1e3:5.1f} kB a sentence "
            f"{row['cpu_ms']:6.1f} ms, relative {row['relative']:.3f} [{low:.3f}, {high:.3f}]"
        )
    if options.join is not None:
        joined(Compared.load(options.join), measured).save(options.join)


if __name__ == "__main__":
    main()
