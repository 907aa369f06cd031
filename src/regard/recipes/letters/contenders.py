"""What `compare` trains on a set: scores, three ways to attend, and the control without attention.

All have the same sizes, epochs, batches and dropout, and the same number of settings to choose from on validation data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from regard.recipes.datasets import Dataset
from regard.recipes.evaluating import fit_and_evaluate
from regard.recipes.kit import Comparison, Contender, Evaluated, Kind, fixed_arguments
from regard.recipes.letters.errors import phone_error_rate
from regard.recipes.letters.picture import captioned
from regard.recipes.letters.sizes import arguments, quick_arguments
from regard.recipes.letters.speaker import LettersToSounds
from regard.recipes.metrics import WORD_ERRORS
from regard.text import Text

REFERENCE = "additive"
# Arguments that are a row's setting. A kept run is known by its setting, so that one of a quick look does not count for
# a full comparison. Every row may choose between the rate that suits additive attention and half of it.
SETTING = ("width", "dropout", "epochs", "rate")
RATES = (1.0, 0.5)
SEEDS = (0, 1, 2)
QUICK = (REFERENCE, "scaled_dot", "location", "monotonic", "no attention")
# Rows whose alignments differ to the eye: their pictures are in the report.
PICTURED = (REFERENCE, "location", "monotonic")
# Name, title, kind, arguments, and what a reader should know.
ROWS: tuple[tuple[str, Text, Kind, dict[str, str], Text | None], ...] = (
    (
        REFERENCE,
        Text("additive (Bahdanau)", "加性（Bahdanau）"),
        "score",
        {"attention": "additive"},
        Text("Softmax over all letters before each step.", "每步之前对所有字母做 softmax。"),
    ),
    ("scaled_dot", Text("scaled dot", "缩放点积"), "score", {"score": "scaled_dot"}, None),
    ("dot", Text("dot", "点积"), "score", {"score": "dot"}, None),
    ("cosine", Text("cosine", "余弦"), "score", {"score": "cosine"}, None),
    ("bilinear", Text("bilinear", "双线性"), "score", {"score": "bilinear"}, None),
    (
        "luong",
        Text("bilinear (Luong)", "双线性（Luong）"),
        "score",
        {"attention": "luong"},
        Text(
            "Attends after each step and feeds the result back.",
            "每步之后注意，并把结果回馈。",
        ),
    ),
    (
        "location",
        Text("additive, location", "加性，位置敏感"),
        "score",
        {"attention": "location"},
        Text(
            "Additive, and a convolution of where it looked before (Chorowski et al. 2015).",
            "加性，外加对此前注意位置的卷积（Chorowski 等 2015）。",
        ),
    ),
    (
        "monotonic",
        Text("additive, monotonic", "加性，单调"),
        "score",
        {"attention": "monotonic"},
        Text(
            "Walks along the letters and never back; hard at prediction (Raffel et al. 2017).",
            "沿字母前行，从不后退；预测时为硬注意（Raffel 等 2017）。",
        ),
    ),
    (
        "no attention",
        Text("without attention", "无注意力"),
        "control",
        {"attention": "none"},
        Text(
            "The same network; the decoder reads the encoder's last states at every step and nothing else.",
            "同一网络；解码器每步只读编码器的末状态。",
        ),
    ),
)


def run_speaker(
    data: Dataset,
    fixed: Mapping[str, Any],
    way: Text | None,
    setting: Mapping[str, Any],
    seed: int,
    report: Callable[[float], None],
) -> Evaluated:
    """Train and evaluate; `extra` has the phone error rate too, and the first seed's picture.

    Args:
        data: the set.
        fixed: arguments of the row.
        way: how the row attends, for the picture; None for no picture.
        setting: arguments that are tried.
        seed: of the training.
        report: is told the share that is done.
    """
    model = LettersToSounds(**{**fixed, **setting}, seed=seed)
    found = fit_and_evaluate(model, data, report)
    extra = found.extra | {"phone_error_rate": round(phone_error_rate(found.statistics), 3)}
    if way is not None and seed == SEEDS[0]:
        extra["picture"] = captioned(model, way)
    return dataclasses.replace(found, extra=extra)


def comparison(data: Dataset, full: bool, device: str | None = None) -> Comparison:
    """The comparison on a set; not `full` is a quick look with few epochs, fewer rows and one seed."""
    fixed = (arguments(data.name) if full else quick_arguments(data.name)) | {"device": device}
    setting = {key: fixed[key] for key in SETTING}
    rates = RATES if full else RATES[:1]
    settings = tuple(setting | {"rate": times * setting["rate"]} for times in rates)

    def row(
        name: str, title: Text, kind: Kind, more: dict[str, str], about: Text | None
    ) -> Contender:
        way = title if name in PICTURED else None
        own: dict[str, Any] = fixed | more
        run = partial(run_speaker, data, own, way)
        given = fixed_arguments(LettersToSounds(**own))
        return Contender(name, title, kind, settings, run, about, given)

    return Comparison(
        name=f"letters-{data.name}",
        title=Text(f"Letters to sounds: {data.title.en}", f"字母到读音：{data.title.zh}"),
        metric=WORD_ERRORS,
        contenders=tuple(row(*one) for one in ROWS if full or one[0] in QUICK),
        reference=REFERENCE,
        seeds=SEEDS if full else SEEDS[:1],
        notes=(
            Text(
                "A word is right if all of its sounds are those of a way to say it that is listed. Beam 5. All rows "
                "have the same sizes, epochs and dropout, chosen for additive attention on validation words; each row "
                "chooses between two learning rates.",
                "一个单词的全部读音与任一所列读法一致才算正确。束宽 5。各行的规模、轮数与随机失活相同，均在验证词上为加性注意力选定；每行在两种学习率中选择。",
            ),
        ),
    )
