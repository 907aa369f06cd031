"""C2: dividing by sqrt(d), or normalising keys, stops the growth of the variance."""

from __future__ import annotations

from dataclasses import dataclass

import regard
from regard import Dot, ScaledDot
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.experiments.c1_variance_of_dot import Sampler, normal
from regard.figures.canvas import Canvas
from regard.measuring.statistics import Estimate, log_slope
from regard.stabilize import UnitKeys
from regard.text import Text

FLAT = 0.05  # allowed deviation of the slope from 0
NEAR = 0.1  # allowed deviation of a variance from 1
# The two remedies of the statement, and both together, which make the variance fall with d.
REMEDIES = {
    "scaled": Text("divided by √d", "除以 √d"),
    "unit keys": Text("unit keys", "单位键"),
}
SCORES = {
    "dot": Dot(),
    "scaled": ScaledDot(),
    "unit keys": UnitKeys(Dot()),
    "both": UnitKeys(ScaledDot()),
}


@dataclass(frozen=True)
class ScaleRemovesGrowth(Claim):
    """Both remedies give variance 1 for every d.

    `Var(q.k / sqrt(d)) = d / d = 1`, and `q.k / |k|` is the component of q along a direction independent
    of q, which has variance 1. Both together give 1 / d.
    """

    id = "C2"
    statement = Text(
        "Dividing by √d removes the growth of the variance with d; so do keys of norm 1.",
        "除以 √d 可消除方差随 d 的增长；把键归一化为单位长度也可以。",
    )
    criterion = Text(
        "For each remedy the 95% interval of the slope of log variance against log d lies within "
        "0.05 of 0, and every variance within 10% of 1. With conditions: for one of the two only.",
        "对每种做法，log 方差对 log d 的斜率的 95% 区间落在 0 ± 0.05 之内，且每个方差与 1 相差不超过 10%。若只有一种做法如此：有条件成立。",
    )
    meaning = Text(
        "Use one of the two, not both: unit keys and a division by √d leave a variance of 1/d, and "
        "attention that is nearly uniform in wide heads.",
        "两种做法选一种即可，不要叠加：单位键再除以 √d 会使方差降为 1/d，宽头的注意力几乎变成均匀分布。",
    )
    caption = Text(
        "Variance of the scores of standard normal q and k against d. Both remedies lie on the "
        "theoretical line of 1; both at once fall below it.",
        "标准正态 q、k 的分数方差随 d 的变化。两种做法都落在理论线 1 上；两者叠加则落到其下方。",
    )
    control = Text(
        "The same pairs for every score; the plain dot product beside them. Theory: 1 for each remedy.",
        "各分数使用相同的样本对，并以普通点积为对照。理论值：两种做法均为 1。",
    )
    seconds = (1.0, 11.0)

    sample: Sampler = normal
    dims: tuple[int, ...] = (8, 32, 128, 512, 2048, 4096)

    def measure(self, run: Run) -> Numbers:
        """Variances of the scores of random pairs."""
        count = run.pick(4000, 40000)
        variance: dict[str, list[float]] = {name: [] for name in SCORES}
        for dim in run.steps(self.dims):
            generator = run.generator("C2", dim)
            q, k = (self.sample(count, dim, generator).unsqueeze(-2) for _ in range(2))
            for name, score in SCORES.items():
                variance[name].append(float(regard.score(q, k, score).double().var()))
        return {"dims": list(self.dims), "variance": variance, "pairs": count}

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        dims, variance = numbers["dims"], numbers["variance"]
        slopes = {name: log_slope(dims, variance[name]) for name in (*REMEDIES, "both")}
        words = {**REMEDIES, "both": Text("both at once", "两者叠加")}
        facts = tuple(
            Fact(Text(f"slope, {words[name].en}", f"斜率（{words[name].zh}）"), *found)
            for name, found in slopes.items()
        )
        if any(slopes[name].high - slopes[name].low > 2 * FLAT for name in REMEDIES):
            because = Text(
                "The interval is wider than the bar: more pairs are needed.",
                "区间过宽：需要更多样本。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        good = [name for name in REMEDIES if flat(slopes[name], variance[name])]
        if len(good) == len(REMEDIES):
            because = Text(
                f"Both slopes are 0; both at once have slope {slopes['both'].value:.2f}.",
                f"两者的斜率都为 0；叠加使用时斜率为 {slopes['both'].value:.2f}。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        if good:
            (name,) = good
            because = Text(
                f"Only with: {words[name].en}.", f"仅在以下做法中成立：{words[name].zh}。"
            )
            return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        because = Text(
            "With neither remedy does the variance stay at 1.", "两种做法都不能使方差保持为 1。"
        )
        return Judgement(ClaimVerdict.FAILS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Variance against dimension, both logarithmic."""
        (axes,) = canvas.panels()
        dims, variance = numbers["dims"], numbers["variance"]
        canvas.bar_line(axes, 1, Text("theory: 1", "理论：1"))
        canvas.line(axes, dims, variance["dot"], "dot")
        canvas.line(axes, dims, variance["scaled"], "scaled dot", lw=0)
        canvas.line(
            axes, dims, variance["unit keys"], "dot",
            label=Text("dot, unit keys", "点积，单位键"), marker="o", ms=9, mfc="none", lw=0,
        )  # fmt: skip
        canvas.line(
            axes, dims, variance["both"],
            label=Text("scaled dot, unit keys", "缩放点积，单位键"), ms=7,
        )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        canvas.label(
            axes, Text("dimension d", "维数 d"), Text("variance of the score", "分数的方差")
        )
        canvas.legend(axes, loc="upper left")
        axes.set_ylim(top=3e6)


def flat(found: Estimate, variance: list[float]) -> bool:
    """Whether, within the tolerances of the criterion, the slope is 0 and every variance is 1."""
    level = all(abs(one - 1) < NEAR for one in variance)
    return found.above(-FLAT) and found.below(FLAT) and level
