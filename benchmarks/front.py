"""What the front page says, from committed results: which score for which data, and what each costs.

`regard choose --out F` made results/choose.json. `regard choose --shape d_q=64,len=1024,heads=8 --threads 2`
made results/choose-shape.json, the only source of what a score costs: see `costs`.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import NamedTuple

from regard.choosing.tasks.embedded import MADE, RENAMED
from regard.choosing.training.judging import as_good
from regard.measuring.statistics import Estimate

RESULTS = Path(__file__).parent / "results"
LANGUAGES = ("en", "zh")
# The properties of the tasks of `regard choose` in Chinese; the results have them in English.
PROPERTIES = {
    "look-up": "查询与键同类",
    "non-linear match": "没有矩阵能把查询与键联系起来",
    "unlike dims": "查询与键宽度不同，由矩阵相联系",
    "heavy-tailed norms": "少数键远长于其余的键，而长度没有意义",
    "one of many keys": "64 个键里只有一个是对的",
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

# The scores whose costs the picture shows, by the names that choose-shape.json gives them. Dot is left out
# because it differs from scaled dot by a factor alone.
COSTED = {
    "scaled_dot": {"en": "scaled dot", "zh": "缩放点积"},
    "bilinear": {"en": "bilinear", "zh": "双线性"},
    "low_rank": {"en": "low rank", "zh": "低秩"},
    "cosine": {"en": "cosine", "zh": "余弦"},
    "gaussian": {"en": "Gaussian", "zh": "高斯"},
    "gatv2": {"en": "GATv2", "zh": "GATv2"},
    "additive": {"en": "additive", "zh": "加性"},
    "textbook_additive": {"en": "additive as taught", "zh": "加性，教科书写法"},
}
DIGITS = 2  # of a cost: a second run on the same machine changes the third


class Gain(NamedTuple):
    """A property of data, the score to use for it, and what that score gains."""

    prop: dict[str, str]
    score: str  # the name of the winner's score
    use: dict[str, str]  # the winner as a candidate
    instead: dict[str, str] | None  # the runner-up, where the interval shows it to be as good
    before: float  # accuracy of scaled dot
    after: float  # accuracy of the winner
    lead: tuple[float, float, float]  # of the best alternative over scaled dot: mean, low, high
    beaten: bool  # whether an alternative beats scaled dot
    open: bool  # whether nothing is decided, and the winner is only what to use for now
    claims: tuple[str, ...]


class Cost(NamedTuple):
    """The cost of a score: see `costs` for its definition."""

    name: str  # as in choose-shape.json
    times: float  # the time of scaled dot
    memory: int  # peak bytes of the same pass, above inputs and parameters
    textbook: bool

    @property
    def score(self) -> str:
        """The score that is computed, however it is written."""
        return self.name.removeprefix("textbook_")

    def __str__(self) -> str:
        """Such as 5.6x."""
        return f"{self.times:.{max(DIGITS - len(str(int(self.times))), 0)}f}x"


def load(name: str) -> dict:
    """The committed results of this name."""
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
    """What each task of `regard choose` found, in the order of the run."""
    return [gain(task) for task in load("choose")["tasks"]]


def gain(task: dict) -> Gain:
    """What one task of `regard choose` found."""
    verdict = task["verdict"]
    name = RENAMED.get(task["name"], task["name"])
    candidates = {one["name"]: one for one in verdict["candidates"]}
    winner, second = candidates[verdict["winner"]], candidates[verdict["runner_up"]]
    lead = tuple(verdict["best_alternative_over_scaled_dot"])
    beaten, undecided = (verdict["outcome"] == x for x in ("alternative", "undecided"))
    after = statistics.mean(winner["quality"].values())
    close = beaten and as_good(Estimate(*verdict["margin"]), verdict["matters"])
    return Gain(
        {"en": task["property"], "zh": PROPERTIES[name]},
        re.match(r"\w+", winner["name"])[0],
        both(winner["label"]),
        both(second["label"]) if close else None,
        after - lead[0] if beaten or undecided else after,
        after,
        lead,
        beaten,
        undecided,
        # Which claims a task rests on is not measured: the current list replaces that of the run.
        MADE[name]().claims,
    )


def costs() -> dict[str, Cost]:
    """What each score costs, by its name.

    The cost of a score is the time of a forward and backward pass over that of scaled dot at the same
    length, heads and width, on the machine that choose-shape.json names. The README, its picture and
    docs/choosing.md all take it from here, so that a reader meets one number.
    """
    return {
        row["name"]: Cost(
            row["name"],
            row["forward_backward_ratio"],
            row["forward_backward_peak_bytes"],
            row["textbook"],
        )
        for row in load("choose-shape")["results"]
        if row["status"] == "measured"
    }


def shown_costs() -> list[Cost]:
    """The costs that the picture shows, the cheapest first."""
    measured = costs()
    return sorted((measured[name] for name in COSTED), key=lambda cost: cost.times)
