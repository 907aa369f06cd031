"""C3: without a scale the softmax saturates, and gradients die."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.observe import observed
from regard.figures.canvas import Canvas
from regard.measuring.statistics import bands, log_slope, mean
from regard.text import Text

USUAL = 64  # the width of a head in most models
SHARP = 0.1  # saturated: entropy below this fraction of ln n, and largest weight above 1 minus it
DEAD = 0.1  # a gradient below this fraction of the scaled score's gradient counts as dead
STEADY = 0.1  # allowed relative change of the scaled score from the smallest d to the largest
SEEN = ("entropy", "max_weight", "jacobian", "mean_jacobian", "losing")


@dataclass(frozen=True)
class Saturation(Claim):
    """Scores with standard deviation sqrt(d) give one key all the weight.

    The weight of the losing keys falls as `exp(-sqrt(d) m)`, m the mean of the largest of n normals. The
    softmax's Jacobian is large only near ties. The two best scores are within 1 of each other in a
    fraction of queries that falls as 1 / sqrt(d), so its mean falls far more slowly than its median.
    """

    id = "C3"
    statement = Text(
        "Without a scale, the softmax of dot products saturates and its gradients die as d grows.",
        "不加缩放时，随着 d 增大，点积的 softmax 会饱和，梯度随之消失。",
    )
    criterion = Text(
        "Unscaled, from some d on: entropy below 10% of ln n, largest weight above 0.9, and for the "
        "typical (median) query less than 10% of the scaled score's softmax Jacobian and of its "
        "gradient at a losing key; scaled, the entropy changes by less than 10% over all d. It holds "
        "without conditions if that is so at d = 64 already.",
        "不缩放时，自某个 d 起：熵低于 ln n 的 10%，最大权重高于 0.9，且典型（中位数）查询的 softmax "
        "雅可比范数与落选键处的梯度均不足缩放后的 10%；缩放后，熵在所有 d 上的变化不超过 10%。若在 d = 64 "
        "时已如此，则无条件成立。",
    )
    meaning = Text(
        "Scale the scores. At d = 64 an unscaled softmax still passes gradients to its best keys, but "
        "losing keys receive none; at d in the hundreds no key does.",
        "请缩放分数。d = 64 时，未缩放的 softmax 对得分最高的几个键仍能学习，但落选的键已收不到梯度；"
        "d 达到数百时，所有键都收不到。",
    )
    caption = Text(
        "Standard normal queries and keys, 32 keys a query, before any training. Bands: 95% intervals "
        "over repeats. Dashed: for unit-variance scores, ln n − 1/2.",
        "标准正态的查询和键，每个查询 32 个键，尚未训练。阴影：重复实验的 95% 区间。虚线：方差为 1 的分数的 "
        "理论熵 ln n − 1/2。",
    )
    control = Text(
        "The same queries, keys and values with and without the scale; the loss is a random direction "
        "of the output, and gradients at a key include the factor q.",
        "有无缩放使用相同的查询、键和值；损失取输出的一个随机方向，键处的梯度已包含因子 q。",
    )
    seconds = (1.0, 12.0)

    unscaled: Score | str = "dot"
    scaled: Score | str = "scaled_dot"
    dims: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    keys: int = 32

    def measure(self, run: Run) -> Numbers:
        """Statistics of attention at every d, for each repeat, summarised over its queries."""
        repeats, queries = run.pick(6, 12), run.pick(64, 400)
        found = {name: {kind: [] for kind in SEEN} for name in ("dot", "scaled dot")}
        for dim in run.steps(self.dims):
            generator = run.generator("C3", dim)
            own = {name: {kind: [] for kind in SEEN} for name in found}
            for _ in range(repeats):
                q, k, v, g = draw_calls(queries, self.keys, dim, generator)
                for name, score in (("dot", self.unscaled), ("scaled dot", self.scaled)):
                    for kind, value in seen(q, k, v, g, score).items():
                        own[name][kind].append(value)
            for name, kinds in own.items():
                for kind, values in kinds.items():
                    found[name][kind].append(values)
        return {"dims": list(self.dims), "keys": self.keys, **found}

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        dims, most = numbers["dims"], math.log(numbers["keys"])
        dot, scaled = numbers["dot"], numbers["scaled dot"]
        sharp = [
            mean(entropy).below(SHARP * most) and mean(weight).above(1 - SHARP)
            for entropy, weight in zip(dot["entropy"], dot["max_weight"], strict=True)
        ]
        jacobian = shares(dot["jacobian"], scaled["jacobian"])
        losing = shares(dot["losing"], scaled["losing"])
        levels = [mean(entropy).value for entropy in scaled["entropy"]]
        steady = max(levels) - min(levels) < STEADY * max(levels)
        usual = dims.index(USUAL)
        decay = log_slope(dims[usual:], bands(dot["mean_jacobian"])[0][usual:])
        facts = (
            Fact(Text("largest weight at d = 64", "d = 64 时的最大权重"), *mean(dot["max_weight"][usual])),
            Fact(Text("Jacobian left at d = 64", "d = 64 时雅可比的剩余"), 100 * jacobian[usual], unit="%"),
            Fact(Text("gradient left at a losing key, d = 64", "d = 64 时落选键处梯度的剩余"), 100 * losing[usual], unit="%"),
            Fact(Text("exponent of d in the mean Jacobian, d ≥ 64 (theory −1/2)", "平均雅可比中 d 的指数，d ≥ 64（理论 −1/2）"), *decay),
        )  # fmt: skip
        starts = {
            "sharp": since(dims, sharp),
            "losing": since(dims, [share < DEAD for share in losing]),
            "jacobian": since(dims, [share < DEAD for share in jacobian]),
        }
        if not steady or None in starts.values():
            because = Text(
                f"Up to d = {dims[-1]} the unscaled score does not lose what the scaled one keeps.",
                f"直到 d = {dims[-1]}，未缩放的分数并未失去缩放分数所保有的梯度。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        because = Text(
            f"A losing key's gradient is gone from d = {starts['losing']} on, the typical query's "
            f"Jacobian from {starts['jacobian']}, and the weights are one-hot from {starts['sharp']}.",
            f"落选键的梯度自 d = {starts['losing']} 起消失，典型查询的雅可比自 d = {starts['jacobian']} 起"
            f"消失，权重自 d = {starts['sharp']} 起接近 one-hot。",
        )
        early = all(start is not None and start <= USUAL for start in starts.values())
        return Judgement(ClaimVerdict.HOLDS if early else ClaimVerdict.CONDITIONS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Entropy, Jacobian, and the gradient at losing keys, against d."""
        dims, most = numbers["dims"], math.log(numbers["keys"])
        panels = canvas.panels(3, wide=3.1)
        names = (
            ("entropy", Text("entropy (nats)", "熵（nat）"), Text("Weights saturate", "权重饱和")),
            ("jacobian", Text("Frobenius norm, median query", "Frobenius 范数，中位查询"), Text("Softmax Jacobian", "softmax 雅可比")),
            ("losing", Text("gradient norm, median key", "梯度范数，中位键"), Text("Gradient at losing keys", "落选键处的梯度")),
        )  # fmt: skip
        for axes, (kind, unit, title) in zip(panels, names, strict=True):
            for name in ("dot", "scaled dot"):
                middle, low, high = bands(numbers[name][kind])
                # A logarithmic axis cannot show the part of a band below 0.
                low = [max(x, y / 10) for x, y in zip(low, middle, strict=True)]
                canvas.line(axes, dims, middle, name, low=low, high=high)
            axes.set_xscale("log", base=2)
            canvas.label(axes, Text("dimension d", "维数 d"), unit, title)
        panels[0].set_ylim(0, most)
        panels[0].axhline(most - 0.5, color="#444444", ls=(0, (4, 3)), lw=1.1)
        panels[1].set_yscale("log")
        panels[2].set_yscale("log")
        canvas.legend(panels[2], loc="lower left")


def draw_calls(count: int, keys: int, dim: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Queries (B, 1, d), keys (B, n, d), values (B, n, 16), and the gradient of a loss at the output."""
    shapes = ((count, 1, dim), (count, keys, dim), (count, keys, 16), (count, 1, 16))
    # fp64: the weights of losing keys reach 1e-60.
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


def seen(q: Tensor, k: Tensor, v: Tensor, g: Tensor, score: Score | str) -> dict[str, float]:
    """The statistics named in `SEEN` over the queries: means for weights, medians for gradients."""
    k = k.detach().requires_grad_()
    result = observed(q, k, v, score, "entropy", "max_weight", "jacobian", "weights")
    (grad,) = torch.autograd.grad((result["output"] * g).sum(), k)
    best = result["weights"].squeeze(-2).argmax(-1, keepdim=True)
    lost = torch.ones(k.shape[:-1], dtype=torch.bool).scatter(-1, best, False)
    return {
        "entropy": float(result["entropy"].detach().mean()),
        "max_weight": float(result["max_weight"].mean()),
        "jacobian": float(result["jacobian"].median()),
        "mean_jacobian": float(result["jacobian"].mean()),
        "losing": float(grad.norm(dim=-1)[lost].median()),
    }


def shares(unscaled: list[list[float]], scaled: list[list[float]]) -> list[float]:
    """Ratios of the unscaled score's value to the scaled score's at every d; medians over repeats."""
    middle = lambda x: float(torch.tensor(x, dtype=torch.float64).median())  # noqa: E731
    return [middle(x) / middle(y) for x, y in zip(unscaled, scaled, strict=True)]


def since(dims: list[int], true: list[bool]) -> int | None:
    """The smallest d from which on all entries are true, or None."""
    first = None
    for dim, one in zip(dims, true, strict=True):
        first = (first or dim) if one else None
    return first
