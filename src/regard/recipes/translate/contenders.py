"""What `compare` trains on a set: five scores in a transformer, two recurrent networks, and one without attention.

All have the same epochs, batches and pieces. On Multi30k each score that is slower than the reference also has a row
at equal time: as many epochs as fit into the time of the reference, by `timing.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from regard.recipes.datasets import Dataset, Part
from regard.recipes.evaluating import fit_and_evaluate
from regard.recipes.kit import Comparison, Contender, Evaluated, Kind
from regard.recipes.translate.bleu import METRIC, bleu_statistics, corpus_bleu, corpus_chrf
from regard.recipes.translate.bleu import signatures as bleu_signatures
from regard.recipes.translate.sizes import arguments, quick_arguments
from regard.recipes.translate.timing import epochs_in_time
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
TITLES = {
    REFERENCE: Text("scaled dot", "缩放点积"),
    "cosine": Text("cosine", "余弦"),
    "additive": Text("additive", "加性"),
    "bilinear": Text("bilinear", "双线性"),
    "dot": Text("dot", "点积"),
}
# One setting for all contenders: a second one doubles the cost of the comparison.
SETTINGS: tuple[dict[str, float], ...] = ({},)
BINS = 4  # of sentences by length
# Sentences of our own whose alignment is drawn: those of Multi30k may not be shown.
EXAMPLES = {
    "generated": "Dienstag, 4. Juli 2028",
    "public": "Zwei Kinder spielen mit einem Ball im Park.",
}


def trained(
    model: Translator, data: Dataset, report: Callable[[float], None] = lambda share: None
) -> Evaluated:
    """Train and evaluate a translator.

    `validation` is BLEU of beam search on the validation part. `extra` has BLEU of greedy search, chrF, BLEU by
    length of the source, epochs and the learning curve.
    """
    found = fit_and_evaluate(model, data, report)
    greedy = bleu_statistics(model.predict(data.test.x, beam=1), data.test.y, model.lowercase)
    history = model.history_
    found.extra.update(
        bleu_greedy=corpus_bleu(greedy),
        chrf=corpus_chrf(model.predict(data.test.x), data.test.y, model.lowercase),
        bleu_by_length=by_length(data.test, found.statistics),
        losses=[round(one, 4) for one in history.losses],
        curve=[[epoch, round(quality, 2)] for epoch, quality in history.validations],
        signatures=bleu_signatures(model.lowercase),
    )
    if model.architecture != "none":
        found.extra["alignment"] = alignment(model, EXAMPLES[data.origin])
    return found


def alignment(model: Translator, sentence: str) -> dict[str, Any]:
    """The alignment of a sentence as JSON: pieces of both sides, and weights in thousandths."""
    source, target, weights = model.attend(sentence)
    thousandths = (1000 * weights).round().int().tolist()
    return {"source": source, "target": target, "weights": thousandths}


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
    name: str,
    title: Text,
    kind: Kind,
    fixed: Mapping[str, Any],
    data: Dataset,
    about: Text | None = None,
) -> Contender:
    """A row whose translator has the arguments `fixed` and those of a setting."""

    def run(setting: Mapping[str, Any], seed: int, report: Callable[[float], None]) -> Evaluated:
        return trained(Translator(**{**fixed, **setting}, seed=seed), data, report)

    return Contender(name, title, kind, SETTINGS, run, about)


def comparison(data: Dataset, full: bool, device: str | None = None) -> Comparison:
    """The comparison on a set; not `full` is a quick look with fewer contenders, a few epochs and one seed."""

    def fixed(architecture: str, **more: Any) -> dict[str, Any]:
        sized = arguments(data.name, architecture) if full else quick_arguments(architecture)
        return sized | more | {"device": device}

    # Recurrent networks first: they take longest, and parallel processes then end together.
    rows = [
        contender(name, title, kind, fixed(architecture), data, about)
        for name, architecture, title, kind, about in RECURRENT
    ]
    for name, score in SCORES.items():
        title = Text(f"transformer, {TITLES[name].en}", f"变换器，{TITLES[name].zh}")
        own = fixed("transformer", score=score)
        rows.append(contender(name, title, "score", own, data))
        fewer = epochs_in_time(name, REFERENCE, own["epochs"])
        if full and data.origin == "public" and fewer is not None:
            rows.append(at_equal_time(rows[-1], own | {"epochs": fewer}, data))
    if not full:
        rows = [one for one in rows if one.name in QUICK]
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
                "the same batches, with the same dropout for all scores, except those at equal time. Nothing was tuned "
                "for a single row.",
                "BLEU 为 sacreBLEU，束宽 5，长度惩罚 1。除“同等时间”各行外，训练轮数与批次相同，各打分函数的随机失活也相同；"
                "没有为任何一行单独调参。",
            ),
        ),
    )


def at_equal_time(row: Contender, fixed: Mapping[str, Any], data: Dataset) -> Contender:
    """The row with as many epochs as fit into the time of the reference."""
    about = Text(
        f"{fixed['epochs']} epochs: as many as fit into the time of {REFERENCE}, each trained alone.",
        f"{fixed['epochs']} 轮：单独训练时与{TITLES[REFERENCE].zh}用时相同的轮数。",
    )
    title = Text(f"{row.title.en}, equal time", f"{row.title.zh}，同等时间")
    return contender(f"{row.name} at equal time", title, row.kind, fixed, data, about)


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
