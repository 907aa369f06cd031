"""C1: the variance of a dot product grows with the dimension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import regard
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.figures.canvas import Canvas
from regard.measuring.statistics import log_slope
from regard.text import Text

Sampler = Callable[[int, int, torch.Generator], Tensor]


def normal(count: int, dim: int, generator: torch.Generator) -> Tensor:
    """Independent standard normal components."""
    return torch.randn(count, dim, generator=generator)


@dataclass(frozen=True)
class VarianceOfDot(Claim):
    """Var(q.k) = d for independent components of variance 1, so log variance has slope 1 against log d."""

    id = "C1"
    statement = Text(
        "The variance of a dot product grows in proportion to the dimension d.",
        "点积的方差与维数 d 成正比。",
    )
    criterion = Text(
        "The 95% interval of the slope of log Var(q·k) against log d lies within 0.05 of 1, and every "
        "variance is within 10% of d.",
        "log Var(q·k) 对 log d 的斜率的 95% 区间落在 1 ± 0.05 之内，且每个方差与 d 相差不超过 10%。",
    )
    meaning = Text(
        "Without a scale, wider heads mean larger logits. Divide by √d, or normalise.",
        "不加缩放时，头越宽，logit 越大。请除以 √d，或先做归一化。",
    )
    caption = Text(
        "Measured variance of q·k for standard normal q and k, beside the line Var = d.",
        "标准正态 q、k 的 q·k 方差的测量值，以及理论线 Var = d。",
    )
    control = Text(
        "Theory: the d terms are independent, each of variance 1.",
        "理论对照：d 个独立项，每项方差为 1。",
    )
    seconds = (2.0, 20.0)

    sample: Sampler = normal
    dims: tuple[int, ...] = (8, 32, 128, 512, 2048, 4096)

    def measure(self, run: Run) -> Numbers:
        """Variances of scores of random pairs."""
        count = run.pick(4000, 40000)
        variances = []
        for dim in run.steps(self.dims):
            generator = run.generator("C1", dim)
            q, k = (self.sample(count, dim, generator).unsqueeze(-2) for _ in range(2))
            scores = regard.score(q, k, "dot")
            variances.append(float(scores.double().var()))
        return {"dims": list(self.dims), "variance": variances, "pairs": count}

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        dims, variance = numbers["dims"], numbers["variance"]
        found = log_slope(dims, variance)
        worst = max(abs(v / d - 1) for d, v in zip(dims, variance, strict=True))
        facts = (
            Fact(Text("slope of log variance over log d", "log 方差对 log d 的斜率"), *found),
            Fact(Text("largest deviation from d", "与 d 的最大偏差"), 100 * worst, unit="%"),
        )
        if found.low > 0.95 and found.high < 1.05 and worst < 0.1:
            because = Text(
                f"The slope is {found.value:.3f}, as the theory says.",
                f"斜率为 {found.value:.3f}，与理论一致。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        outside = found.high < 0.95 or found.low > 1.05
        if not outside and (found.high - found.low > 0.1 or worst < 0.1):
            because = Text(
                "The interval reaches across the bar: more pairs are needed.",
                "区间跨过界限：需要更多样本。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        because = Text(
            f"The slope is {found.value:.3f}, and a variance is {worst:.0%} off d.",
            f"斜率为 {found.value:.3f}，且有方差与 d 相差 {worst:.0%}。",
        )
        return Judgement(ClaimVerdict.FAILS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Variance against dimension, both logarithmic."""
        (axes,) = canvas.panels()
        dims = numbers["dims"]
        canvas.line(axes, dims, dims, label=Text("theory: d", "理论：d"), marker="", ls="--")
        canvas.line(axes, dims, numbers["variance"], "dot", label=Text("measured", "测量"), lw=0)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        canvas.label(axes, Text("dimension d", "维数 d"), Text("variance of q·k", "q·k 的方差"))
        canvas.legend(axes)
