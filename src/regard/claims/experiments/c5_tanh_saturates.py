"""C5: tanh saturates, so a query that grows loses its influence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import regard
from regard import Additive, ScaledDot, Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.observe import observed
from regard.claims.tools.untrained import drawn
from regard.figures.canvas import Canvas
from regard.measuring.statistics import Estimate, bands, log_slope, mean
from regard.scores.additive import TANH_POWER
from regard.text import Text

FACTORS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
LOUD = 1000.0  # factor on a query of unit variance at which the claim is judged
FADED = 0.1  # gradient at LOUD, relative to that at factor 1, that counts as faded
SHARP = 0.01  # with an entropy below this fraction of ln n attention is a look-up


@dataclass(frozen=True)
class TanhSaturates(Claim):
    """A hidden unit is active, not saturated, where about `|a_h + b_h| < 1`.

    For queries `a = t x` with x standard normal, a fraction of units proportional to 1 / t is active. The
    mean square of the gradient falls as `(4/3) / (sqrt(2 pi) t)`, the integral of sech^4 times the
    density of a at 0, and its root as `t ** -0.5`. Saturated units contribute the same to every key.
    """

    id = "C5"
    statement = Text(
        "tanh saturates: making a query longer no longer changes an additive score, while a dot product "
        "becomes sharper.",
        "tanh 会饱和：查询变长后，加性打分不再随之变化，而点积会变得更尖锐。",
    )
    criterion = Text(
        "At queries 1000 times as long: the additive score's gradient is below 10% of what it was, and "
        "its entropy is not lower than before; the scaled dot product's entropy is below 1% of ln n. With "
        "conditions: the gradient fades, but not all of the rest is so. (Whole 95% intervals.)",
        "当查询放大 1000 倍：加性分数的梯度降到原来的 10% 以下，其熵不低于原来；缩放点积的熵低于 ln n 的 1%。若梯度消退而其余不全成立：有条件成立。（均指整个 95% 区间。）",
    )
    meaning = Text(
        "Do not rely on the norm of a query to set the sharpness of additive attention: put a learned "
        "temperature behind it, or LayerNorm before it.",
        "不要指望用查询的范数调节加性注意力的尖锐程度：请在其后加可学习的温度，或在其前加 LayerNorm。",
    )
    caption = Text(
        "Queries t times a standard normal one, 32 keys, 64 dims. Left: root mean square of ∂s/∂q. "
        "Right: entropy of the weights. Bands: 95% intervals over repeats.",
        "查询为标准正态向量的 t 倍，32 个键，64 维。左：∂s/∂q 的均方根。右：权重的熵。阴影：重复实验的 95% 区间。",
    )
    control = Text(
        "The same queries and keys for both scores, both of variance 1 at t = 1. Theory for the gradient "
        "of the additive one: it falls as 1/√t.",
        "两种分数使用相同的查询和键，t = 1 时方差均为 1。加性分数梯度的理论：按 1/√t 下降。",
    )
    seconds = (1.5, 20.0)

    build: Callable[[int], Score] = Additive
    dim: int = 64
    keys: int = 32

    def measure(self, run: Run) -> Numbers:
        """Gradient and entropy at every length of the query, for each repeat."""
        repeats, queries = run.pick(6, 16), run.pick(50, 500)
        kinds = ("gradient", "entropy")
        found = {
            name: {kind: [[] for _ in FACTORS] for kind in kinds}
            for name in ("additive", "scaled dot")
        }
        for repeat in run.steps(range(repeats)):
            generator = run.generator("C5", repeat)
            q, k = (
                torch.randn(queries, length, self.dim, generator=generator, dtype=torch.float64)
                for length in (1, self.keys)
            )
            additive = drawn(lambda: self.build(self.dim), generator)
            scores = {"additive": additive, "scaled dot": ScaledDot()}
            for number, factor in enumerate(FACTORS):
                for name, score in scores.items():
                    gradient, entropy = heard(factor * q, k, score)
                    found[name]["gradient"][number].append(gradient)
                    found[name]["entropy"][number].append(entropy)
        return {"factors": list(FACTORS), "keys": self.keys, **found}

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        factors, most = numbers["factors"], math.log(numbers["keys"])
        one, loud = factors.index(1.0), factors.index(LOUD)
        additive, dot = numbers["additive"], numbers["scaled dot"]
        left = ratio(additive["gradient"][loud], additive["gradient"][one])
        rise = mean([
            (y - x) / most
            for x, y in zip(additive["entropy"][one], additive["entropy"][loud], strict=True)
        ])  # fmt: skip
        sharp = mean([x / most for x in dot["entropy"][loud]])
        steep = factors.index(10.0)
        decay = log_slope(factors[steep:], bands(additive["gradient"])[0][steep:])
        facts = (
            Fact(Text("additive gradient left", "加性梯度的剩余"), *(100 * x for x in left), unit="%"),
            Fact(Text("change of additive entropy, of ln n", "加性熵的变化（占 ln n）"), *(100 * x for x in rise), unit="%"),
            Fact(Text("entropy of scaled dot, of ln n", "缩放点积的熵（占 ln n）"), *(100 * x for x in sharp), unit="%"),
            Fact(Text("exponent of the additive gradient, t ≥ 10 (theory −1/2)", "加性梯度的指数，t ≥ 10（理论 −1/2）"), *decay),
        )  # fmt: skip
        parts = {
            Text("its gradient fades", "梯度消退"): left.below(FADED),
            Text("its attention does not sharpen", "注意力不会变尖锐"): rise.low >= 0,
            Text("dot sharpens", "点积变尖锐"): sharp.below(SHARP),
        }
        true = [text for text, so in parts.items() if so]
        listed = Text("; ".join(x.en for x in true), "；".join(x.zh for x in true))
        if len(true) == len(parts):
            because = Text(
                f"The additive gradient falls to {100 * left.value:.0f}% and its attention flattens; dot "
                "becomes a look-up.",
                f"加性梯度降到 {100 * left.value:.0f}%，注意力变平；点积则变为查表。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        straddled = ((left, FADED), (rise, 0.0), (sharp, SHARP))
        if any(x.low < bar <= x.high for x, bar in straddled):
            because = Text(
                "An interval straddles its bar: more repeats are needed.",
                "区间跨过界限：需要更多重复。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        if left.below(FADED):
            because = Text(f"True of it only: {listed.en}.", f"其中仅以下部分成立：{listed.zh}。")
            return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        because = Text(
            f"The gradient does not fade: {100 * left.value:.0f}% of it is left.",
            f"梯度没有消退：仍剩 {100 * left.value:.0f}%。",
        )
        return Judgement(ClaimVerdict.FAILS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Gradient and entropy against the length of the query."""
        factors = numbers["factors"]
        left, right = canvas.panels(2)
        tail = [factor for factor in factors if factor >= 10]
        theory = [math.sqrt(4 / 3 / TANH_POWER / math.sqrt(2 * math.pi) / t) for t in tail]
        canvas.line(left, tail, theory, label=Text("theory", "理论"), color="#444444", marker="", ls="--", lw=1.1, zorder=5)  # fmt: skip
        for axes, kind in ((left, "gradient"), (right, "entropy")):
            for name in ("additive", "scaled dot"):
                middle, low, high = bands(numbers[name][kind])
                canvas.line(axes, factors, middle, name, low=low, high=high)
            axes.set_xscale("log")
        canvas.bar_line(right, math.log(numbers["keys"]), Text("ln n: uniform", "ln n：均匀"))
        left.set_yscale("log")
        length = Text("length of the query, t", "查询的长度 t")
        canvas.label(left, length, Text("RMS of ∂s/∂q", "∂s/∂q 的均方根"), Text("Gradient", "梯度"))
        canvas.label(
            right, length, Text("entropy (nats)", "熵（nat）"), Text("Sharpness", "尖锐程度")
        )
        canvas.legend(left, loc="lower left")
        canvas.legend(right, loc="lower left")


def heard(q: Tensor, k: Tensor, score: Score) -> tuple[float, float]:
    """Root mean square over pairs of |ds/dq|, and the mean entropy; q (B, 1, d), k (B, n, d)."""
    # Every pair gets its own copy of the query, so that its gradient belongs to a single score.
    alone = q.expand(k.shape).reshape(-1, 1, q.shape[-1]).clone().requires_grad_()
    scores = regard.score(alone, k.reshape(-1, 1, k.shape[-1]), score)
    (grad,) = torch.autograd.grad(scores.sum(), alone)
    with torch.no_grad():
        entropy = observed(q, k, k, score, "entropy")["entropy"]
    return float(grad.square().sum(-1).mean().sqrt()), float(entropy.mean())


def ratio(first: list[float], second: list[float]) -> Estimate:
    """The ratio of the first to the second, paired by repeat."""
    return mean([x / y for x, y in zip(first, second, strict=True)])
