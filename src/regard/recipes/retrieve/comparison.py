"""What is compared on a set: scores, the control without attention, and methods of another kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from regard.recipes.datasets import Dataset
from regard.recipes.evaluating import fit_and_evaluate
from regard.recipes.kit import Comparison, Contender, Evaluated, Kind, fixed_arguments
from regard.recipes.retrieve.baselines import bm25, by_classes, by_faiss, evaluated, lsi
from regard.recipes.retrieve.data import FOLDS, SEARCH_SETS, refold
from regard.recipes.retrieve.finder import DocumentFinder
from regard.recipes.retrieve.net import READINGS
from regard.recipes.retrieve.picture import captioned
from regard.recipes.retrieve.ranking import MEASURES
from regard.text import Text

Report = Callable[[float], None]
REFERENCE = "cosine"
SCORES = {
    REFERENCE: Text("cosine", "余弦"),
    "scaled_dot": Text("scaled dot", "缩放点积"),
    "low_rank": Text("low rank", "低秩"),
    "additive": Text("additive", "加性"),
}
# Arguments of each set at its default size.
SIZES: dict[str, dict[str, Any]] = {
    "docstrings": {"epochs": 3, "rate": 1e-3, "reading": "late", "negatives": 256},
    "digits": {"epochs": 20, "rate": 3e-3, "width": 32},
    "cranfield": {"epochs": 3, "rate": 1e-3},
    "glove100": {"epochs": 5, "rate": 1e-2, "width": 32, "batch": 64, "negatives": 2048},
    "mnist": {"epochs": 6, "rate": 3e-3, "width": 32, "batch": 64, "negatives": 2048},
    "tables": {"epochs": 10, "rate": 1e-3},
}
OTHER_VECTORS = (
    (
        "glove",
        "GloVe",
        Text(
            "Vectors of GloVe beside those learned from the documents.",
            "除从文档学得的向量外，还用 GloVe 的向量。",
        ),
    ),
    (
        "minilm",
        "MiniLM",
        Text(
            "Token vectors of a trained sentence encoder in their place, and a hop alone; the encoder's time is in no row.",
            "改用已训练句子编码器的词元向量，仅文档注意；任何一行的时间都不含编码器。",
        ),
    ),
)
QUICK_EPOCHS = 2
SEEDS = (0, 1, 2)
AXES = 32


def arguments(name: str) -> dict[str, Any]:
    """The constructor's arguments at the default size for a set; it fits minutes on two cores."""
    return {"measure": SEARCH_SETS[name].measure, **SIZES[name]}


def settings_of(data: Dataset, full: bool, own: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """What every network of a comparison tries: two ways to read texts, or two rates where the way is fixed."""
    size = {k: v for k, v in SIZES[data.name].items() if k in ("epochs", "rate")}
    fixed = isinstance(data.train.x.content, np.ndarray) or "reading" in own
    more = {"rate": size["rate"] / 3} if fixed else {"reading": READINGS[0]}
    size |= {} if fixed else {"reading": READINGS[2]}
    if not full:
        return ({**size, "epochs": min(size["epochs"], QUICK_EPOCHS)},)
    return size, {**size, **more}


def run_finder(
    split: Callable[[int], Dataset], fixed: Mapping[str, Any], pictured: bool,
    setting: Mapping[str, Any], seed: int, report: Report,
) -> Evaluated:  # fmt: skip
    """Train a finder on the split of the seed, evaluate it and, if wanted, draw a match."""
    model, data = DocumentFinder(**{**fixed, **setting}, seed=seed), split(seed)
    found = fit_and_evaluate(model, data, report)
    extra = found.extra | {
        "recall_10": 100 * float(found.statistics[:, 1].mean()),
        "reciprocal_rank": float(found.statistics[:, 2].mean()),
    }
    if pictured and seed == SEEDS[0] and data.show_rows:
        extra["picture"] = captioned(model)
    return replace(found, extra=extra)


def run_baseline(
    split: Callable[[int], Dataset], build: Callable[..., Any], measure: str, seeded: bool,
    setting: Mapping[str, Any], seed: int, report: Report,
) -> Evaluated:  # fmt: skip
    """Build a baseline on the split of the seed and evaluate it."""
    data = split(seed)
    more = (seed,) if seeded else ()
    found = evaluated(data, MEASURES[measure], partial(build, data, setting, *more))
    report(1.0)
    return replace(found, extra={
        "recall_10": 100 * float(found.statistics[:, 1].mean()),
        "reciprocal_rank": float(found.statistics[:, 2].mean()),
    })  # fmt: skip


def comparison(data: Dataset, full: bool, device: str | None) -> Comparison:
    """Every score and baseline on a set; on Cranfield each seed tests on another fifth of the queries."""
    split = lru_cache(maxsize=FOLDS)(partial(refold, data))
    fixed: dict[str, Any] = {**arguments(data.name), "device": device}
    text = isinstance(data.train.x.content, list)

    def row(
        name: str, title: Text, kind: Kind, more: Mapping[str, Any], about: Text | None = None
    ) -> Contender:
        own: dict[str, Any] = {**fixed, **more}
        run = partial(run_finder, split, own, name == REFERENCE and text)
        settings = settings_of(data, full, more)
        return Contender(
            name, title, kind, settings, run, about, fixed_arguments(DocumentFinder(**own))
        )

    def method(
        name: str, build: Callable[..., Any], tried: tuple[dict[str, Any], ...],
        about: Text | None = None, kind: Kind = "baseline", seeded: bool = False,
    ) -> Contender:  # fmt: skip
        run = partial(run_baseline, split, build, fixed["measure"], seeded)
        tried = tried if full else tried[:1]
        return Contender(name, Text(name, name), kind, tried, run, about)

    rows = [row(name, title, "score", {"score": name}) for name, title in SCORES.items()]
    if text:
        rows += text_rows(row, data.name)
        rows.append(method("BM25", bm25, ({"k1": 1.2, "b": 0.75}, {"k1": 2.0, "b": 0.75})))
        rows.append(method("LSI", lsi, ({"width": 200}, {"width": 300})))
    else:
        rows += vector_rows(method, data.name)
    folds = SEARCH_SETS[data.name].split is None
    seeds = tuple(range(FOLDS)) if folds else SEEDS
    return Comparison(
        f"retrieve-{data.name}", Text(f"Retrieval: {data.title.en}", f"检索：{data.title.zh}"),
        MEASURES[fixed["measure"]], tuple(rows), REFERENCE, seeds if full else seeds[:2],
        notes(text, folds), same_test_rows=not folds,
    )  # fmt: skip


def text_rows(row: Callable[..., Contender], name: str) -> list[Contender]:
    """Each kind of attention by itself, the control, and other vectors of words."""
    mean, title = Text("mean vectors", "均值向量"), SCORES[REFERENCE]
    found = [
        row("cosine late", Text("cosine, late only", "余弦，仅迟交互"), "score", {"reading": "late"},
            Text("Attention over the words of each document, and nothing else.", "只有对每篇文档词语的注意力。")),
        row("cosine hop", Text("cosine, hop only", "余弦，仅文档注意"), "score", {"reading": "hop"},
            Text("Attention over all documents, without that over their words.", "只有对全部文档的注意力，没有对词语的注意力。")),
        row("mean", mean, "control", {"reading": "mean"},
            Text("The same vectors without attention.", "同样的向量，没有注意力。")),
    ]  # fmt: skip
    if name != "cranfield":
        return found
    for vectors, known, about in OTHER_VECTORS:
        # Tokens of MiniLM have a vector each: late interaction over all of them takes minutes for a setting.
        way = {"reading": "hop"} if vectors == "minilm" else {}
        label = Text(f"{title.en} + {known}", f"{title.zh} + {known}")
        found.append(row(label.en, label, "score", {"vectors": vectors, **way}, about))
        label = Text(f"{mean.en} + {known}", f"{mean.zh} + {known}")
        found.append(
            row(f"mean + {known}", label, "control", {"vectors": vectors, "reading": "mean"})
        )
    return found


def vector_rows(method: Callable[..., Contender], name: str) -> list[Contender]:
    """FAISS on all numbers and on as few as a score compares, and a learned metric where there are classes."""
    narrow = Text(
        f"FAISS, exact, on the first {AXES} principal axes: where the scores start.",
        f"FAISS 精确检索，前 {AXES} 个主轴：各得分的起点。",
    )
    found = [
        method(f"PCA {AXES}", by_faiss, ({"kind": "flat", "axes": AXES},), narrow, "control"),
        method("FAISS flat", by_faiss, ({"kind": "flat"},)),
    ]
    if SEARCH_SETS[name].measure == "recall":
        truth = Text(
            "Exact, on all numbers: the truth by definition.",
            "在全部维度上精确检索：按定义即为真值。",
        )
        found[-1] = replace(found[-1], about=truth)
        found += [
            method(
                "FAISS IVF", by_faiss, ({"kind": "ivf", "probes": 8}, {"kind": "ivf", "probes": 4})
            ),
            method(
                "FAISS HNSW",
                by_faiss,
                ({"kind": "hnsw", "width": 128}, {"kind": "hnsw", "width": 64}),
            ),
        ]
    else:
        about = Text("scikit-learn, from the same judgements.", "scikit-learn，使用同样的评判。")
        given = {"kind": "nca", "axes": AXES}
        steps = tuple(given | {"steps": one} for one in (50, 200))
        shrunk = tuple({"kind": "lda", "shrinkage": one} for one in ("auto", 0.5))
        found.append(method("LDA", by_classes, shrunk, about, seeded=True))
        found.append(method("NCA", by_classes, steps, about, seeded=True))
    return found


def notes(text: bool, folds: bool) -> tuple[Text, ...]:
    """What a reader must know."""
    found = [
        Text(
            "Training knows which documents answer a query, and nothing else. Projections of every score start as the "
            "identity, so that all but the additive one start from the geometry of the vectors.",
            "训练只知道哪些文档回答查询。各得分的投影从单位矩阵开始，因此除加性外都从向量自身的几何出发。",
        )
    ]
    if text:
        found.append(
            Text(
                "Words are cut to stems by a short list of English endings, the same for every row but MiniLM's; vectors "
                "of words come from the documents (SVD, 200 numbers), so that the control is LSI with learned gains.",
                "所有行（MiniLM 除外）用同一份简短英语词尾表取词干；词向量由文档得到（SVD，200 维），因此对照相当于带可学增益的 LSI。",
            )
        )
    if folds:
        found.append(
            Text(
                "Five folds: each seed tests on another fifth of the queries, chooses the epoch on the next fifth and "
                "trains on the rest, so that the mean over seeds is that over all queries.",
                "五折：每个种子在另外五分之一的查询上测试，用下一折选择轮次，其余用于训练；种子平均即全部查询的平均。",
            )
        )
    return tuple(found)
