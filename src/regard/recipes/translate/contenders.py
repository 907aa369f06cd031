"""What `compare` trains on a set: five scores in a transformer, two recurrent networks, and one without attention.

All have the same epochs, batches and pieces. Where `timing.json` is beside this file, each score that is slower than
the reference also has a row at equal time on Multi30k: as many epochs as fit into the time of the reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from regard.recipes.datasets import Dataset, Part
from regard.recipes.evaluating import fit_and_evaluate
from regard.recipes.kit import Comparison, Contender, Evaluated, Kind, fixed_arguments
from regard.recipes.translate.bleu import METRIC, bleu_statistics, corpus_bleu, corpus_chrf
from regard.recipes.translate.bleu import signatures as bleu_signatures
from regard.recipes.translate.picture import captioned
from regard.recipes.translate.sizes import arguments, quick_arguments
from regard.recipes.translate.timing import epochs_in_time
from regard.recipes.translate.translator import Translator
from regard.text import Text

REFERENCE = "scaled dot"
# From the name of a row to the score of its transformer.
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
# What each contender tries on Multi30k, whose 29,000 sentences a network learns by heart; validation decides. R-Drop
# doubles the time of a step.
CONSISTENCY = (0.0, 3.0)
QUARTERS = 4  # parts of the test sentences, by length
SEEDS = (0, 1, 2)
# Rows whose alignments are drawn: one of each architecture.
PICTURED = (REFERENCE, "bahdanau")
QUICK = (REFERENCE, "additive", "bahdanau", "no attention")


class RecurrentRow(NamedTuple):
    """A row with a recurrent network, which is also its architecture's name but for the control."""

    name: str
    architecture: str
    title: Text
    kind: Kind
    about: Text


RECURRENT = (
    RecurrentRow(
        "bahdanau",
        "bahdanau",
        Text("GRU, Bahdanau (additive)", "GRU，Bahdanau（加性）"),
        "score",
        Text(
            "A GRU that attends before each step; its sizes and rates are not the transformer's.",
            "每步之前注意的 GRU；规模与学习率和变换器不同。",
        ),
    ),
    RecurrentRow(
        "luong",
        "luong",
        Text("GRU, Luong (bilinear)", "GRU，Luong（双线性）"),
        "score",
        Text(
            "A GRU that attends after each step and feeds the result back.",
            "每步之后注意并回馈的 GRU。",
        ),
    ),
    RecurrentRow(
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


def comparison(data: Dataset, full: bool, device: str | None = None) -> Comparison:
    """The comparison on a set; not `full` is a quick look with fewer contenders, a few epochs and one seed."""

    def fixed(architecture: str, **more: Any) -> dict[str, Any]:
        sized = (arguments if full else quick_arguments)(data.name, architecture)
        return sized | more | {"device": device}

    tuned = full and data.origin == "public"
    # Recurrent networks first: they take longest, and parallel processes then end together.
    rows = [
        contender(row.name, row.title, row.kind, fixed(row.architecture), data, row.about, tuned)
        for row in RECURRENT
    ]
    late = []
    for name, score in SCORES.items():
        title = Text(f"transformer, {TITLES[name].en}", f"变换器，{TITLES[name].zh}")
        own = fixed("transformer", score=score)
        rows.append(contender(name, title, "score", own, data, None, tuned))
        fewer = epochs_in_time(name, REFERENCE, own["epochs"])
        if tuned and fewer is not None:
            late.append(at_equal_time(rows[-1], own | {"epochs": fewer}, data))
    rows += late
    if not full:
        rows = [one for one in rows if one.name in QUICK]
    return Comparison(
        name=f"translate-{data.name}",
        title=Text(f"Translation: {data.title.en}", f"翻译：{data.title.zh}"),
        metric=METRIC,
        contenders=tuple(rows),
        reference=REFERENCE,
        seeds=SEEDS if full else SEEDS[:1],
        notes=(*notes(fixed("transformer")["beam"], bool(late)), signature_note()),
    )


def notes(beam: int, equal_time: bool) -> tuple[Text, ...]:
    """What a reader must know about the numbers; `equal_time`: whether there are rows at equal time."""
    but = (
        Text(", except those at equal time", "除“同等时间”各行外，") if equal_time else Text("", "")
    )
    return (
        Text(
            f"BLEU is sacreBLEU's with beam {beam} and length penalty 1. All rows are trained for as many epochs on the "
            f"same batches, with the same dropout for all scores{but.en}. Nothing was tuned for a single row.",
            f"BLEU 为 sacreBLEU，束宽 {beam}，长度惩罚 1。{but.zh}训练轮数与批次相同，各打分函数的随机失活也相同；"
            "没有为任何一行单独调参。",
        ),
        Text(
            "exact_percent is the share of translations that are the reference, letter for letter; bleu_quarter_1 to "
            "bleu_quarter_4 are BLEU of quarters of the test sentences, from the shortest sources to the longest.",
            "exact_percent 为与参考译文完全相同的比例；bleu_quarter_1 至 bleu_quarter_4 为测试句按原文由短到长分成四份后"
            "各自的 BLEU。",
        ),
    )


def signature_note() -> Text:
    """What exactly BLEU and chrF are here, in sacreBLEU's words; rows leave `lowercase` at its default."""
    found = bleu_signatures(Translator().lowercase)
    said = ", ".join(f"{name} `{signature}`" for name, signature in found.items())
    return Text(f"Signatures of sacreBLEU: {said}.", f"sacreBLEU 签名：{said}。")


def contender(
    name: str,
    title: Text,
    kind: Kind,
    fixed: Mapping[str, Any],
    data: Dataset,
    about: Text | None = None,
    tuned: bool = False,
) -> Contender:
    """A row whose translator has the arguments `fixed`; if `tuned`, it tries `CONSISTENCY`."""
    # Results are kept by setting: a quick run must not be taken for a full one.
    own = {key: fixed[key] for key in ("epochs", "width")}
    settings = tuple(own | {"consistency": one} for one in CONSISTENCY) if tuned else (own,)
    way = title if name in PICTURED else None
    given = fixed_arguments(Translator(**fixed))
    return Contender(name, title, kind, settings, partial(run, fixed, data, way), about, given)


def run(
    fixed: Mapping[str, Any],
    data: Dataset,
    way: Text | None,
    setting: Mapping[str, Any],
    seed: int,
    report: Callable[[float], None],
) -> Evaluated:
    """Train and evaluate one setting from one seed, and draw the first seed's alignment.

    Args:
        fixed: arguments of the row.
        data: the set.
        way: how the row attends, for the picture; None for no picture.
        setting: arguments that are tried.
        seed: of the training.
        report: is told the share that is done.
    """
    model = Translator(**{**fixed, **setting}, seed=seed)
    found = trained(model, data, report)
    if way is None or seed != SEEDS[0]:
        return found
    return dataclasses.replace(found, extra=found.extra | {"picture": captioned(model, way)})


def trained(
    model: Translator, data: Dataset, report: Callable[[float], None] = lambda share: None
) -> Evaluated:
    """Train and evaluate a translator.

    `validation` is BLEU of beam search on the validation part. `extra` has BLEU of greedy search, chrF, the share of
    exact translations, BLEU by length of the source, losses and the learning curve.
    """
    test, translations = data.test, list[str]()

    def statistics(x: Sequence[str], y: Sequence[str]) -> np.ndarray:
        # Kept for chrF: searching twice would take a third of an evaluation.
        translations[:] = model.predict(x)
        return bleu_statistics(translations, y, model.lowercase)

    found = fit_and_evaluate(model, data, report, statistics=statistics)
    greedy = bleu_statistics(model.predict(test.x, beam=1), test.y, model.lowercase)
    right = [one.lower() if model.lowercase else one for one in test.y]
    exact = [one == other for one, other in zip(translations, right, strict=True)]
    history, quarters = model.history_, by_length(test, found.statistics)
    found.extra.update(
        bleu_greedy=corpus_bleu(greedy),
        chrf=corpus_chrf(translations, test.y, model.lowercase),
        exact_percent=100 * float(np.mean(exact)),
        **{f"bleu_quarter_{n}": part["bleu"] for n, part in enumerate(quarters, 1)},
        bleu_by_length=quarters,
        losses=[round(one, 4) for one in history.losses],
        curve=[[epoch, round(quality, 2)] for epoch, quality in history.validations],
        signatures=bleu_signatures(model.lowercase),
    )
    return found


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
        for rows in np.array_split(order, QUARTERS)
        if len(rows)
    ]


def at_equal_time(row: Contender, fixed: Mapping[str, Any], data: Dataset) -> Contender:
    """The row with as many epochs as fit into the time of the reference."""
    about = Text(
        f"{fixed['epochs']} epochs: as many as fit into the time of {REFERENCE}, each trained alone.",
        f"{fixed['epochs']} 轮：单独训练时与{TITLES[REFERENCE].zh}用时相同的轮数。",
    )
    title = Text(f"{row.title.en}, equal time", f"{row.title.zh}，同等时间")
    return contender(f"{row.name} at equal time", title, row.kind, fixed, data, about, tuned=True)
