"""What the front page says, from committed results: which score for which data, and what each costs.

`regard choose --out F` gave results/choose.json, `regard choose --shape d_q=64,len=1024,heads=8
--threads 2` results/choose-shape.json, `regard bench` on a GPU results/h200.json.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import NamedTuple

from regard.choosing.training.verdict import as_good
from regard.measuring.statistics import Estimate

RESULTS = Path(__file__).parent / "results"
LANGUAGES = ("en", "zh")
# The properties of the tasks of `regard choose` in Chinese; the results have them in English.
PROPERTIES = {
    "look-up": "查询与键同类",
    "non-linear match": "没有矩阵能把查询与键联系起来",
    "unlike dims": "查询与键宽度不同，由矩阵相联系",
    "heavy-tailed norms": "少数键比其余的长得多，而长度没有意义",
    "long range": "64 个键里只有一个是对的",
    "two criteria": "一个查询同时问两件事",
    "digits": "真实图片：哪一张是同一个数字（scikit-learn 的 digits）",
}
# The same for what its labels of candidates are made of.
WORDS = {
    ", ": "，",
    "scaled dot": "缩放点积",
    "additive": "加性",
    "cosine": "余弦",
    "gaussian": "高斯",
    "bilinear": "双线性",
    "low rank": "低秩",
    "clipped keys": "截短的键",
    "learned temperature": "可学习的温度",
    "heads": "个头",
    "head": "个头",
    "hidden": "个隐藏单元",
}

# What is shown of each run, by the names that it has there.
ON_CPU = {
    "scaled_dot": {"en": "scaled dot", "zh": "缩放点积"},
    "bilinear": {"en": "bilinear", "zh": "双线性"},
    "low_rank": {"en": "low rank", "zh": "低秩"},
    "cosine": {"en": "cosine", "zh": "余弦"},
    "gaussian": {"en": "Gaussian", "zh": "高斯"},
    "gatv2": {"en": "GATv2", "zh": "GATv2"},
    "additive": {"en": "additive", "zh": "加性"},
    "textbook_additive": {"en": "additive as taught", "zh": "加性，教科书写法"},
}
ON_GPU = {
    "dot cuDNN": {"en": "scaled dot, by cuDNN", "zh": "缩放点积，cuDNN"},
    "sine fast": {"en": "additive, fast series", "zh": "加性，快速级数"},
    "sine matched": {"en": "additive, close series", "zh": "加性，精密级数"},
    "exact": {"en": "additive, exact", "zh": "加性，精确"},
    "textbook compiled": {"en": "additive as taught, compiled", "zh": "加性，教科书写法，已编译"},
}


class Gain(NamedTuple):
    """A property of data, and what is gained by the right score."""

    prop: dict[str, str]
    score: str  # the name of the winner's score
    use: dict[str, str]  # the winner as a candidate
    instead: dict[str, str] | None  # the next, where it is surely not behind by as much as matters
    before: float  # accuracy of scaled dot
    after: float  # and of the winner
    lead: tuple[float, float, float]  # of the best alternative over scaled dot, with its interval
    beaten: bool  # scaled dot is
    claims: list[str]


class Cost(NamedTuple):
    """How many times the time of scaled dot a forward and backward pass takes."""

    label: dict[str, str]
    times: float
    score: str
    textbook: bool
    digits: int  # that another run would give again
    heads: int | None = None  # where fewer than all were run, and their time was multiplied

    def __str__(self) -> str:
        """Such as 5.6x."""
        return f"{self.times:.{max(self.digits - len(str(int(self.times))), 0)}f}x"


def load(name: str) -> dict:
    """Committed results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def both(label: str) -> dict[str, str]:
    """A candidate's label in both languages."""
    chinese = label
    for english, word in WORDS.items():
        chinese = chinese.replace(english, word)
    # LayerNorm has this name in Chinese too.
    if left := re.search("[A-Za-z]{2,}", chinese.replace("LayerNorm", "")):
        raise SystemExit(f"error: benchmarks/front.py has no Chinese word for {left[0]!r}")
    return {"en": label, "zh": chinese}


def gains() -> list[Gain]:
    """One for each task of `regard choose`."""
    return [gain(task) for task in load("choose")["tasks"]]


def gain(task: dict) -> Gain:
    verdict = task["verdict"]
    candidates = {one["name"]: one for one in verdict["candidates"]}
    winner, second = candidates[verdict["winner"]], candidates[verdict["runner_up"]]
    lead = tuple(verdict["best_alternative_over_scaled_dot"])
    beaten = verdict["outcome"] == "alternative"
    after = statistics.mean(winner["quality"].values())
    close = beaten and as_good(Estimate(*verdict["margin"]), verdict["matters"])
    return Gain(
        {"en": task["property"], "zh": PROPERTIES[task["name"]]},
        re.match(r"\w+", winner["name"])[0],
        both(winner["label"]),
        both(second["label"]) if close else None,
        after - lead[0] if beaten else after,
        after,
        lead,
        beaten,
        task["claims"],
    )


def cpu_costs() -> list[Cost]:
    """Every kind of score on 2 CPU cores, in order of time."""
    measured = {row["name"]: row for row in load("choose-shape")["results"]}
    costs = [
        Cost(
            label,
            measured[name]["forward_backward_ratio"],
            name.removeprefix("textbook_"),
            measured[name]["textbook"],
            digits=2,
        )
        for name, label in ON_CPU.items()
    ]
    return sorted(costs, key=lambda cost: cost.times)


def gpu_costs() -> list[Cost]:
    """Additive attention, hidden 16, on one H200, over dot by cuDNN; in the order of `ON_GPU`."""
    settings = {one["key"]: one for one in load("h200")["settings"]}
    rows = {row["name"]: row for row in settings["b4-h16-q4096-k4096-n16-v64-bfloat16"]["rows"]}
    passes = {name: rows[name]["passes"]["forward+backward"] for name in ON_GPU}
    return [
        Cost(
            label,
            passes[name]["over"]["dot"]["ratio"],
            "scaled_dot" if name == "dot cuDNN" else "additive",
            name.startswith("textbook"),
            digits=3,
            heads=passes[name]["scaled_from_heads"],
        )
        for name, label in ON_GPU.items()
    ]
