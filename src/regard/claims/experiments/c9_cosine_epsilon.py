"""C9: cosine attention ignores norms, and needs an epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import regard
from regard import Cosine, Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.figures.canvas import Canvas
from regard.measuring.statistics import log_slope
from regard.text import Text

ROUNDING = 8 * torch.finfo(torch.float32).eps
NEAR = 0.01  # allowed relative deviation from the theory of the gradient and of its exponent
POWERS = (
    -30,
    -25,
    -20,
    -15,
    -10,
    -5,
    5,
    10,
    15,
    20,
    25,
    30,
)  # exponents of ten: factors on the norms, for the test of invariance
SHORT = tuple(range(-12, 2))  # exponents of ten: norms of the query, for the gradient


def cosine(eps: float) -> Score:
    """The cosine times sqrt(d), with norms clamped to at least eps."""
    return Cosine(heads=None, eps=eps)


@dataclass(frozen=True)
class CosineEpsilon(Claim):
    """`ds/dq = (scale / |q|) (unit k - cos unit q)` grows without bound as the query shrinks.

    With eps the score is linear in q where `|q| < eps`, and the gradient is at most `scale / eps`. In
    that range the score depends on the norm again.
    """

    id = "C9"
    statement = Text(
        "Cosine attention ignores norms, and needs an epsilon near norm 0.",
        "余弦注意力不受范数影响，但在范数接近 0 时需要 ε。",
    )
    criterion = Text(
        "Scores change by no more than rounding (8 fp32 epsilons of the largest) when queries or keys "
        "are multiplied by 1e-30 to 1e30. Without ε the gradient follows √d·sin θ/|q| within 1% and "
        "grows with exponent −1 ± 0.01 down to |q| = 1e-12; with ε it never exceeds √d/ε by more than 1%. "
        "With conditions: norms have no effect, but the gradient does not behave as stated.",
        "查询或键乘以 1e-30 到 1e30 时，分数的变化不超过舍入误差（最大分数的 8 个 fp32 ε）。没有 ε 时，梯度与 "
        "√d·sin θ/|q| 相差不超过 1%，直到 |q| = 1e-12 都按 −1 ± 0.01 次幂增长；有 ε 时，梯度超出 √d/ε 不到 1%。若范数无影响而梯度并非如此：有条件成立。",
    )
    meaning = Text(
        "Cosine attention cannot be hijacked by a long key. Give eps= wherever a query or key can be "
        "nearly 0 (padding, dead units), and know that below ε norms count again.",
        "长键无法劫持余弦注意力。凡查询或键可能接近 0 之处（填充、失活单元），请设置 eps=；"
        "并注意在 ε 以下范数又会起作用。",
    )
    caption = Text(
        "Left: largest change of a score when queries or keys are multiplied by a factor, as a share of "
        "the largest score. Right: median gradient at a query against its norm, without and with ε.",
        "左：查询或键乘以某因子时分数的最大变化，占最大分数的比例。右：查询处梯度的中位数随其范数的变化，无 ε 与有 ε。",
    )
    control = Text(
        "Scaled dot product on the same inputs; theory: √d·sin θ/|q| without ε, √d/ε at most with it.",
        "对照：相同输入的缩放点积；理论：无 ε 时为 √d·sin θ/|q|，有 ε 时不超过 √d/ε。",
    )
    seconds = (0.2, 4.0)

    build: Callable[[float], Score] = cosine
    eps: float = 1e-3
    dim: int = 64

    def measure(self, run: Run) -> Numbers:
        """Changes of scores under factors on the norms, and gradients at short queries."""
        count = run.pick(200, 2000)
        generator = run.generator("C9")
        q, k = torch.randn(2, count, self.dim, generator=generator)
        scores = {"cosine": self.build(0.0), "scaled dot": regard.ScaledDot()}
        change = {name: [] for name in scores}
        for power in run.within(0, 2).steps(POWERS):
            for name, score in scores.items():
                change[name].append(moved(q, k, 10.0**power, score))
        # In fp64, because fp32 cannot represent the gradient at norms this small.
        q, k = (x.double() / x.double().norm(dim=-1, keepdim=True) for x in (q, k))
        bend = (1 - (q * k).sum(-1).square()).sqrt()
        gradients = {"without": [], "with": []}
        for power in run.within(1, 2).steps(SHORT):
            short = q * 10.0**power
            gradients["without"].append(slopes(short, k, self.build(0.0)))
            gradients["with"].append(slopes(short, k, self.build(self.eps)))
        middle = {name: [float(x.median()) for x in own] for name, own in gradients.items()}
        theory = [math.sqrt(self.dim) * bend / 10.0**power for power in SHORT]
        off = [(x / y - 1).abs().max() for x, y in zip(gradients["without"], theory, strict=True)]
        return {
            "factors": [10.0**power for power in POWERS],
            "change": change,
            "norms": [10.0**power for power in SHORT],
            "gradient": middle,
            "theory": [float(x.median()) for x in theory],
            "off_theory": float(torch.stack(off).max()),
            "largest_with": float(torch.stack(gradients["with"]).max()),
            "limit": math.sqrt(self.dim) / self.eps,
            "eps": self.eps,
        }

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        worst = max(numbers["change"]["cosine"])
        growth = log_slope(numbers["norms"], numbers["gradient"]["without"])
        share = numbers["largest_with"] / numbers["limit"]
        facts = (
            Fact(Text("largest change of a score", "分数的最大变化"), worst),
            Fact(Text("exponent of the gradient without ε (theory −1)", "无 ε 时梯度的指数（理论 −1）"), *growth),
            Fact(Text("largest gradient with ε, of √d/ε", "有 ε 时的最大梯度（占 √d/ε）"), 100 * share, unit="%"),
        )  # fmt: skip
        free = worst <= ROUNDING
        explodes = abs(growth.value + 1) < NEAR and numbers["off_theory"] < NEAR
        bounded = share < 1 + NEAR
        if free and explodes and bounded:
            because = Text(
                "Norms from 1e-30 to 1e30 change nothing; the gradient grows as 1/|q| without ε and "
                "stays below √d/ε with it.",
                "范数从 1e-30 到 1e30 都不影响分数；无 ε 时梯度按 1/|q| 增长，有 ε 时不超过 √d/ε。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        if not free:
            because = Text(
                f"Norms count: a score changes by up to {worst:.2g} of the largest.",
                f"范数有影响：分数变化最大达到最大分数的 {worst:.2g} 倍。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        because = (
            Text(
                "Norms do not count, but the gradient needs no ε.", "范数无影响，但梯度并不需要 ε。"
            )
            if not explodes
            else Text("Norms do not count, but ε does not help.", "范数无影响，但 ε 不起作用。")
        )
        return Judgement(ClaimVerdict.CONDITIONS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Change of the scores against the factor; gradient against the norm of the query."""
        left, right = canvas.panels(2)
        for name in ("scaled dot", "cosine"):
            canvas.line(left, numbers["factors"], numbers["change"][name], name)
        canvas.bar_line(left, ROUNDING, Text("bar: rounding", "界限：舍入"))
        canvas.label(
            left, Text("factor on the norms", "范数乘以的因子"),
            Text("change, of the largest score", "变化，占最大分数"), Text("Norms", "范数"),
        )  # fmt: skip
        canvas.legend(left, loc="upper left")
        norms = numbers["norms"]
        canvas.line(
            right, norms, numbers["theory"], label=Text("theory", "理论"), marker="", ls="--"
        )
        canvas.line(right, norms, numbers["gradient"]["without"], "cosine", lw=0, label=Text("without ε", "无 ε"))  # fmt: skip
        canvas.line(
            right, norms, numbers["gradient"]["with"], "cosine",
            label=Text(f"ε = {numbers['eps']:g}", f"ε = {numbers['eps']:g}"), mfc="white", lw=1.2,
        )  # fmt: skip
        canvas.bar_line(right, numbers["limit"], Text("bound: √d/ε", "上界：√d/ε"))
        canvas.label(
            right, Text("norm of the query", "查询的范数"), Text("norm of ∂s/∂q", "∂s/∂q 的范数"),
            Text("Gradient", "梯度"),
        )  # fmt: skip
        canvas.legend(right, loc="upper right")
        for axes in (left, right):
            axes.set_xscale("log")
            axes.set_yscale("log")


def moved(q: Tensor, k: Tensor, factor: float, score: Score) -> float:
    """Largest change of a score, relative to the largest score, when queries or keys are scaled."""
    before = regard.score(q, k, score).double()
    after = [regard.score(q * factor, k, score), regard.score(q, k * factor, score)]
    change = max(float((x.double() - before).abs().max()) for x in after)
    return change / float(before.abs().max())


def slopes(q: Tensor, k: Tensor, score: Score) -> Tensor:
    """|ds/dq| for pairs q, k (B, d)."""
    q = q.unsqueeze(-2).requires_grad_()
    (grad,) = torch.autograd.grad(regard.score(q, k.unsqueeze(-2), score).sum(), q)
    return grad.squeeze(-2).norm(dim=-1)
