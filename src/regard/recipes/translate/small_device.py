"""Which score suits a narrow encoder? A comparison of its own.

A small device keeps the keys of a source in little memory: the encoder's width (keys) shrinks from 512 to 128 and 32
while the decoder's stays. The comparison trains every score at every width, here on the public set:

    python -m regard.recipes.comparing --recipe regard.recipes.translate.small_device --out benchmarks/recipes

`device_costs.py` measures the bytes and times of each row on a CPU, and adds them to the result.
"""

from __future__ import annotations

import dataclasses

from regard.recipes.datasets import Dataset
from regard.recipes.kit import Comparison, Contender
from regard.recipes.translate import kit
from regard.recipes.translate.bleu import METRIC
from regard.recipes.translate.contenders import contender, signature_note
from regard.recipes.translate.multi30k import MULTI30K_SETS
from regard.recipes.translate.sizes import EMBEDDED, arguments, quick_arguments
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
SEEDS = (0, 1)
NOTE = Text(
    f"GRU with attention before each step; the decoder has 512 units, the encoder's outputs (keys) have the width of "
    f"the row; {EPOCHS} epochs. Scores that project compare in 256 dimensions, low rank in 64; bilinear joins the "
    "widths as they are.",
    f"每步之前注意的 GRU；解码器 512 维，编码器输出（键）为各行所示宽度；{EPOCHS} 轮。带投影的打分在 256 维中比较，"
    "低秩为 64，双线性直接连接两种宽度。",
)
QUICK_NOTE = Text(
    "A quick look: a decoder of 128 units, a few epochs.", "快速查看：解码器 128 维，轮数很少。"
)


def comparison(data: Dataset, full: bool, device: str | None = None) -> Comparison:
    """Every score at every width of the encoder, from the widest to the narrowest."""
    rows: list[Contender] = []
    widths = WIDTHS if full else QUICK_WIDTHS
    sized = (arguments if full else quick_arguments)(data.name, "bahdanau")
    if full:
        sized |= {"epochs": EPOCHS, "width": 512}
    for width in widths:
        for score, title in SCORES.items():
            fixed = sized | {"score": score, "encoder_width": width, "device": device}
            name = Text(f"{title.en}, keys of {width}", f"{title.zh}，键宽 {width}")
            rows.append(contender(row_name(score, width), name, "score", fixed, data))
    return Comparison(
        name="translate-small-device",
        title=Text(f"A narrow encoder: {data.title.en}", f"窄编码器：{data.title.zh}"),
        metric=METRIC,
        contenders=tuple(rows),
        reference=row_name("scaled_dot", widths[0]),
        seeds=SEEDS if full else SEEDS[:1],
        notes=(NOTE if full else QUICK_NOTE, signature_note()),
    )


def row_name(score: str, width: int) -> str:
    """The name of a row: "low rank 128"."""
    return f"{score.replace('_', ' ')} {width}"


# The recipe's own kit with another comparison; by default on the public set, which the question is about.
KIT = dataclasses.replace(kit.KIT, sets=(*MULTI30K_SETS, EMBEDDED), comparison=comparison)
