"""What `compare` trains on a set: five scores in a transformer, two recurrent networks, and one without attention.

All have the same epochs, batches and pieces, and the same number of settings to choose from on validation data.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.recipes.datasets import Dataset, Part
from regard.recipes.kit import Comparison, Contender, Evaluated, Kind
from regard.recipes.translate.bleu import METRIC, bleu_statistics, corpus_bleu, corpus_chrf
from regard.recipes.translate.bleu import signatures as bleu_signatures
from regard.recipes.translate.sizes import arguments, quick_arguments
from regard.recipes.translate.translator import Translator
from regard.text import Text

REFERENCE = "scaled dot"
SCORES = {
    REFERENCE: "scaled_dot",
    "cosine": "cosine",
    "additive": "additive",
    "bilinear": "bilinear",
    "dot": "dot",
}
# One setting for all contenders: a second one doubles the cost of the comparison.
SETTINGS: tuple[dict[str, float], ...] = ({"consistency": 0.0},)
BINS = 4  # of sentences by length


class ShareDone:
    """Tells the share of steps that are done to a function."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self.report, self.steps, self.done = report, 1, 0

    def start(self, steps: int, done: int) -> None:
        """A training begins."""
        self.steps, self.done = max(steps, 1), done

    def step(self, loss: Callable[[], float]) -> None:
        """One more step is done; the loss is not read, which would wait for the device."""
        self.done += 1
        self.report(self.done / self.steps)

    def validated(self, epoch: int, quality: float, best: float) -> None:
        """Nothing to do."""


def trained(
    model: Translator,
    data: Dataset,
    report: Callable[[float], None] = lambda share: None,
    checkpoint: Path | None = None,
) -> Evaluated:
    """Train and evaluate a translator.

    `validation` is BLEU of beam search on the validation part. `extra` has BLEU of greedy search, chrF, BLEU by
    length of the source, epochs and the learning curve.
    """
    model.fit_dataset(data, progress=ShareDone(report), checkpoint=checkpoint)
    begun = time.perf_counter()
    found = model.predict(data.test.x)
    seconds = time.perf_counter() - begun
    statistics = bleu_statistics(found, data.test.y, model.lowercase)
    greedy = bleu_statistics(model.predict(data.test.x, beam=1), data.test.y, model.lowercase)
    history = model.history_
    extra = {
        "bleu": corpus_bleu(statistics),
        "bleu_greedy": corpus_bleu(greedy),
        "chrf": corpus_chrf(found, data.test.y, model.lowercase),
        "bleu_by_length": by_length(data.test, statistics),
        "exact": float(np.mean([a == b for a, b in zip(found, data.test.y, strict=True)])),
        "epochs": len(history.losses),
        "best_epoch": history.best_epoch,
        "stopped": history.stopped,
        "losses": history.losses,
        "curve": [list(one) for one in history.validations],
        "signatures": bleu_signatures(model.lowercase),
    }
    parameters = sum(one.numel() for one in model.model_.parameters())
    return Evaluated(
        model.score_part(data.validation), statistics, parameters, history.seconds, seconds, extra
    )


def evaluated_as_json(model: Translator, data: Dataset, checkpoint: Path) -> dict[str, Any]:
    """What `trained` finds, as JSON with whole numbers for statistics; the checkpoint is removed in the end."""
    found = trained(model, data, checkpoint=checkpoint)
    checkpoint.unlink(missing_ok=True)
    facts = dataclasses.asdict(found)
    extra = facts.pop("extra")
    rows = found.statistics.astype(int).tolist()
    return {**facts, **extra, "device": machine(), "statistics": rows}


def machine() -> str:
    """The GPU's name, or "CPU"."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def by_length(part: Part, statistics: np.ndarray) -> list[dict[str, float]]:
    """BLEU of quarters of the sentences, from the shortest sources to the longest, by number of words."""
    words = np.array([len(one.split()) for one in part.x])
    order = np.argsort(words, kind="stable")
    return [
        {
            "from": int(words[rows].min()),
            "to": int(words[rows].max()),
            "sentences": len(rows),
            "bleu": corpus_bleu(statistics[rows]),
        }
        for rows in np.array_split(order, BINS)
        if len(rows)
    ]


def contender(
    name: str, title: Text, kind: Kind, fixed: Mapping[str, Any], data: Dataset, about: Text | None
) -> Contender:
    """A row whose translator has the arguments `fixed` and those of a setting."""

    def run(setting: Mapping[str, Any], seed: int, report: Callable[[float], None]) -> Evaluated:
        given = dict(setting)
        place = given.pop("checkpoint", None)
        model = Translator(**{**fixed, **given}, seed=seed)
        return trained(model, data, report, place)

    return Contender(name, title, kind, SETTINGS, run, about)


def comparison(data: Dataset, full: bool, device: str | None = None) -> Comparison:
    """The comparison on a set; not `full` is a quick look with a few epochs, one setting and one seed."""

    def fixed(architecture: str, **more: Any) -> dict[str, Any]:
        sized = arguments(data.name, architecture) if full else quick_arguments(architecture)
        return sized | more | {"device": device}

    rows = [
        contender(
            name,
            Text(f"transformer, {name}", f"变换器，{name}"),
            "score",
            fixed("transformer", score=score),
            data,
            None,
        )
        for name, score in SCORES.items()
    ]
    for name, architecture, title, kind, about in RECURRENT:
        rows.append(contender(name, title, kind, fixed(architecture), data, about))
    if not full:
        rows = [one for one in rows if one.name in QUICK]
        rows = [
            Contender(one.name, one.title, one.kind, SETTINGS[:1], one.run, one.about)
            for one in rows
        ]
    return Comparison(
        name=f"translate-{data.name}",
        title=data.title,
        metric=METRIC,
        contenders=tuple(rows),
        reference=REFERENCE,
        seeds=(0, 1, 2) if full else (0,),
        notes=(
            Text(
                "BLEU is sacreBLEU's with beam 5 and length penalty 1. All rows are trained for as many epochs on "
                "the same batches, with the same dropout for all scores. Nothing was tuned for a single row.",
                "BLEU 为 sacreBLEU，束宽 5，长度惩罚 1。各行训练轮数与批次相同，各打分函数的随机失活也相同；没有为任何一行单独调参。",
            ),
        ),
    )


RECURRENT: tuple[tuple[str, str, Text, Kind, Text | None], ...] = (
    (
        "bahdanau",
        "bahdanau",
        Text("GRU, Bahdanau (additive)", "GRU，Bahdanau（加性）"),
        "score",
        Text(
            "A GRU that attends before each step; trained at other rates than the transformer.",
            "每步之前注意的 GRU；学习率与变换器不同。",
        ),
    ),
    (
        "luong",
        "luong",
        Text("GRU, Luong (bilinear)", "GRU，Luong（双线性）"),
        "score",
        Text(
            "A GRU that attends after each step and feeds the result back.",
            "每步之后注意并回馈的 GRU。",
        ),
    ),
    (
        "no attention",
        "none",
        Text("GRU without attention", "无注意力的 GRU"),
        "control",
        Text(
            "The same GRU; the decoder reads the encoder's last states at every step and nothing else.",
            "同样的 GRU；解码器每步只读编码器的末状态。",
        ),
    ),
)
QUICK = (REFERENCE, "additive", "bahdanau", "no attention")
