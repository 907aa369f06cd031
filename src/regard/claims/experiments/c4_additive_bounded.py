"""C4: additive scores are bounded by the 1-norm of v."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

import regard
from regard import Additive
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.untrained import drawn
from regard.figures.canvas import Canvas
from regard.measuring.statistics import bands, log_slope
from regard.scores.additive import TANH_POWER
from regard.text import Text

# Relative amount by which rounding may carry a score beyond the bound, by dtype.
ROUNDING = {"float32": 1e-5, "bfloat16": 1e-2}
REACHED = 0.99  # the bound is tight if some input reaches this fraction of it
OVERFLOWN = 1e300  # stored instead of infinity and NaN, which JSON does not have
STARTS = 50  # draws of v for the mean of its 1-norm
POWERS = (-3, -2, -1, 0, 1, 2, 3, 6, 10, 15, 20, 25, 30)  # of ten: sizes of the inputs


@dataclass(frozen=True)
class AdditiveBounded(Claim):
    """`|sum_h v_h tanh(x_h)| <= sum_h |v_h|` for all x; approached when every large x_h has the sign of v_h."""

    id = "C4"
    statement = Text(
        "Additive scores are bounded by the 1-norm of v, whatever the inputs.",
        "无论输入是什么，加性分数的绝对值都不超过 v 的 1-范数。",
    )
    criterion = Text(
        "For inputs of 0.001 to 1e30, every width from 1 to 4096, random or chosen to reach the bound: "
        "each score is finite and |s| / ‖v‖₁ is at most 1 but for rounding (1e-5 in fp32, 1e-2 in "
        "bf16), and inputs of 10 and more reach 0.99 of it.",
        "输入从 0.001 到 1e30、宽度从 1 到 4096，随机输入或专为达到上界而选的输入：所有分数有限，|s| / ‖v‖₁ "
        "除舍入误差外（fp32 为 1e-5，bf16 为 1e-2）不超过 1，且输入不小于 10 时可达到上界的 0.99。",
    )
    meaning = Text(
        "No input can make additive logits overflow, in any precision. The bound itself grows with the "
        "width, as √h at the start: it does not keep attention from being sharp.",
        "任何输入、任何精度下，加性 logit 都不会溢出。但上界本身随宽度增长（初始时为 √h）：它并不妨碍注意力变得尖锐。",
    )
    caption = Text(
        "Left: the largest |s| over all widths, as a share of ‖v‖₁, against the size of the inputs; the "
        "dot product of the same inputs leaves the figure. Right: the bound at the start of training, "
        "beside √(2h / 0.52π).",
        "左：所有宽度中最大的 |s| 占 ‖v‖₁ 的比例随输入大小的变化；相同输入的点积则冲出图外。"
        "右：训练开始时的上界，以及理论值 √(2h / 0.52π)。",
    )
    control = Text(
        "Theory: |tanh| < 1. The dot product of the same inputs, per ‖v‖₁.",
        "理论：|tanh| < 1。对照：相同输入的点积，同样除以 ‖v‖₁。",
    )
    seconds = (1.0, 8.0)

    build: Callable[[int], Additive] = Additive
    widths: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096)

    def measure(self, run: Run) -> Numbers:
        """The largest score for each dtype and size of input, over widths and kinds of input."""
        count = run.pick(16, 128)
        share = {name: [0.0] * len(POWERS) for name in ROUNDING}
        dot, bounds = [0.0] * len(POWERS), []
        for width in run.steps(self.widths):
            generator = run.generator("C4", width)
            make = partial(self.build, width)
            scores = [cast(Additive, drawn(make, generator)) for _ in range(STARTS)]
            bounds.append([bound(score) for score in scores])
            q, k = torch.randn(2, count, width, generator=generator, dtype=torch.float64)
            # The worst case: every hidden unit adds to the score with the same sign.
            worst = scores[0].v.sign()
            q, k = torch.cat([q, worst, -worst]), torch.cat([k, worst, -worst])
            for number, power in enumerate(POWERS):
                scaled = q * 10.0**power, k * 10.0**power
                for name, shares in share.items():
                    shares[number] = max(shares[number], largest_share(scores[0], *scaled, name))
                plain = float(regard.score(*scaled, "dot").abs().amax()) / bounds[-1][0]
                dot[number] = max(dot[number], plain)
        return {"powers": list(POWERS), "widths": list(self.widths), "bounds": bounds,
                "share": share, "dot": dot}  # fmt: skip

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        share = numbers["share"]
        over = {name: max(values) - 1 for name, values in share.items()}
        least = min(
            value
            for values in share.values()
            for power, value in zip(numbers["powers"], values, strict=True)
            if power >= 1
        )
        growth = log_slope(numbers["widths"], bands(numbers["bounds"])[0])
        facts = (
            Fact(Text("largest |s| / ‖v‖₁, fp32", "最大 |s| / ‖v‖₁，fp32"), 1 + over["float32"]),
            Fact(Text("largest |s| / ‖v‖₁, bf16", "最大 |s| / ‖v‖₁，bf16"), 1 + over["bfloat16"]),
            Fact(Text("exponent of h in ‖v‖₁ at the start (theory 1/2)", "初始 ‖v‖₁ 中 h 的指数（理论 1/2）"), *growth),
        )  # fmt: skip
        inside = all(over[name] <= ROUNDING[name] for name in over)
        if not inside:
            because = Text("There are inputs that pass the bound.", "存在超出上界的输入。")
            return Judgement(ClaimVerdict.FAILS, because, facts)
        if least < REACHED:
            because = Text(
                f"Bounded, but by less: no input comes nearer than {least:.2f} of ‖v‖₁.",
                f"有界，但实际上界更小：最大只达到 ‖v‖₁ 的 {least:.2f}。",
            )
            return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        because = Text(
            "No input passes ‖v‖₁, and some reach it: the bound is exact.",
            "没有输入超出 ‖v‖₁，且有输入恰好达到：上界是紧的。",
        )
        return Judgement(ClaimVerdict.HOLDS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Largest score relative to the bound against the size of inputs; the bound against the width."""
        left, right = canvas.panels(2)
        sizes = [10.0**power for power in numbers["powers"]]
        canvas.bar_line(left, 1, Text("bound: ‖v‖₁", "上界：‖v‖₁"))
        canvas.line(left, sizes, numbers["dot"], "dot")
        canvas.line(left, sizes, numbers["share"]["float32"], "additive")
        canvas.line(
            left, sizes, numbers["share"]["bfloat16"], "additive",
            label=Text("additive, bf16", "加性，bf16"), lw=0, ms=9, mfc="none",
        )  # fmt: skip
        left.set_xscale("log")
        left.set_yscale("log")
        left.set_ylim(1e-6, 1e12)
        share = Text("largest |s| / ‖v‖₁", "最大 |s| / ‖v‖₁")
        canvas.label(left, Text("size of the inputs", "输入的大小"), share, Text("Inputs", "输入"))
        canvas.legend(left, loc="upper right")
        widths = numbers["widths"]
        theory = [math.sqrt(2 * width / (math.pi * TANH_POWER)) for width in widths]
        canvas.line(right, widths, theory, label=Text("theory", "理论"), marker="", ls="--")
        middle, low, high = bands(numbers["bounds"])
        canvas.line(right, widths, middle, "additive", low=low, high=high, lw=0)
        right.set_xscale("log", base=2)
        right.set_yscale("log", base=2)
        title = Text("The bound at the start", "初始上界")
        canvas.label(right, Text("hidden width h", "隐藏宽度 h"), "‖v‖₁", title)
        canvas.legend(right, loc="upper left")


def bound(score: Additive) -> float:
    """The 1-norm of v, summed in fp64."""
    return float(score.v.double().abs().sum())


def largest_share(score: Additive, q: Tensor, k: Tensor, name: str) -> float:
    """The largest |score| of these inputs in this dtype, relative to the bound for v in this dtype."""
    dtype = getattr(torch, name)
    own = copy.deepcopy(score).to(dtype)
    found = float(regard.score(q.to(dtype), k.to(dtype), own).double().abs().amax())
    return found / bound(own) if math.isfinite(found) else OVERFLOWN
