"""B4: decision boundaries between keys: hyperplanes for multiplicative scores, curves for additive."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard import Additive, Bilinear, Projected, ScaledDot, Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, Trained, compete
from regard.claims.tools.models import Matcher
from regard.figures.canvas import LOOKS, Canvas
from regard.measuring.statistics import difference, mean
from regard.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HALF = 1.5  # half the side of the square of keys around a query
FIXED = (0.5, -0.3)  # the query whose regions are drawn
# Fractions of a score's variance over keys that no affine function explains: affine up to rounding,
# and certainly not affine.
FLAT = 1e-10
CURVED = 0.05
GAIN = 0.1  # difference in accuracy that counts
GRID = 41

Region = Callable[[Tensor], Tensor]


def disc(offset: Tensor) -> Tensor:
    """Keys near the query: a disc of half the area of the square."""
    return offset.norm(dim=-1) < HALF * math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class Surroundings:
    """Decide for each key whether it lies in a region around the query; keys fill a square around it.

    Inputs: query (B, 2), keys (B, keys, 2). Target (B, keys): 1 inside, 0 outside.
    """

    inside: Region
    keys: int = 8

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw examples as the class describes."""
        query = 2 * torch.rand(count, 2, generator=generator) - 1
        offset = HALF * (2 * torch.rand(count, self.keys, 2, generator=generator) - 1)
        return query, query.unsqueeze(-2) + offset, self.inside(offset).float()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Binary cross entropy."""
        return nn.functional.binary_cross_entropy_with_logits(output, target)

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """Accuracy: the fraction of keys that are classified correctly."""
        return ((output > 0) == (target > 0)).double().mean()


class Decider(Matcher):
    """Accepts a key if its score exceeds a learned threshold."""

    def __init__(self, make: Callable[[], Score]) -> None:
        super().__init__(make())
        self.threshold = nn.Parameter(torch.zeros(()))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Query (B, 2), keys (B, n, 2) to logits (B, n)."""
        return super().forward(query, key) - self.threshold


def multiplying() -> Score:
    """Scaled dot on affine projections: 96 parameters."""
    return Projected(ScaledDot(), 2, 2, width=16, bias=True)


def adding() -> Score:
    """Additive with a bias inside tanh: 96 parameters."""
    return Projected(Additive(16, bias=True), 2, 2)


LABELS = {
    "bilinear": Text("bilinear", "双线性"),
    "scaled dot": Text("scaled dot,\nprojected", "缩放点积\n（带投影）"),
    "additive": Text("additive", "加性"),
}


@dataclass(frozen=True)
class Boundaries(Claim):
    """For a fixed query a multiplicative score is affine in the key, so its level sets are hyperplanes."""

    id = "B4"
    statement = Text(
        "For a fixed query, a multiplicative score separates keys by a hyperplane; an additive score "
        "by a curved boundary.",
        "固定查询时，乘性得分用超平面划分键；加性得分的边界可以弯曲。",
    )
    criterion = Text(
        "For fixed queries, trained multiplicative scores are affine in the key (all but 1e-10 of "
        "their variance) and the additive score is not (at least 5% of it); and on keys inside a disc, "
        "the additive score is more accurate than any half-plane can be by over 10 points (95% "
        "interval over seeds), while no multiplicative score surely beats the best half-plane by over 2.",
        "固定查询时，训练后的乘性得分关于键是仿射的（非仿射方差不超过 1e-10），而加性得分不是（至少 5%）；"
        "且在“键是否在圆盘内”的任务上，加性得分的准确率比任何半平面高出 10 个百分点以上（多种子 95% 区间），"
        "而没有乘性得分确定超过最优半平面 2 个百分点以上。",
    )
    meaning = Text(
        "If the keys that answer a query are not cut off by a plane, a multiplicative score needs a "
        "non-linear layer before it; an additive score has one inside.",
        "若回答查询的键无法用一个平面分开，乘性得分之前需要非线性层；加性得分内部已经有一层。",
    )
    caption = Text(
        "Left and middle: regions that the trained scores accept (shaded) for one fixed query (star); "
        "the dashed circle is right. Right: accuracy, with 95% intervals over seeds; the dashed line is "
        "the best any half-plane can do.",
        "左、中：对一个固定查询（星号），训练后的得分所接受的区域（阴影）；虚线圆为正确答案。"
        "右：准确率及多种子的 95% 区间；虚线是任何半平面所能达到的最好结果。",
    )
    control = Text(
        "Projected scaled dot and additive (with a bias inside tanh) have the same number of "
        "parameters; all have a learned threshold, the same data, steps and rates to try. The best "
        "half-plane is found by search.",
        "带投影的缩放点积与加性（tanh 内有偏置）参数量相同；所有得分都有可学习的阈值，数据、步数与候选学习率相同。"
        "最优半平面由搜索得到。",
    )
    seconds = (5.0, 9.0)

    inside: Region = disc
    scores: dict[str, Callable[[], Score]] = field(
        default_factory=lambda: {
            "bilinear": partial(Bilinear, 2, 2), "scaled dot": multiplying, "additive": adding
        }
    )  # fmt: skip
    budget: Budget = field(default_factory=lambda: Budget(steps=250, rates=(1e-2, 3e-2, 1e-1)))

    def measure(self, run: Run) -> Numbers:
        """Train each score; then measure its accuracy and its shape for fixed queries."""
        task = Surroundings(self.inside)
        builds: dict[str, Callable[[], nn.Module]] = {
            name: partial(Decider, make) for name, make in self.scores.items()
        }
        seeds = run.seeds(run.pick(4, 10))
        trained = compete(builds, task, seeds, self.budget, run)
        side = torch.linspace(-HALF, HALF, GRID)
        offset = torch.cartesian_prod(side, side)
        truth = self.inside(offset)
        return {
            "accuracy": {name: one.quality for name, one in trained.items()},
            "parameters": {name: one.parameters for name, one in trained.items()},
            "rate": {name: one.rate for name, one in trained.items()},
            "not affine": {name: not_affine(one, offset) for name, one in trained.items()},
            "half-plane": best_half_plane(offset, truth),
            "regions": {name: region(one, offset) for name, one in trained.items()},
            "truth": smooth_truth(self.inside, offset),
            "query": list(FIXED),
        }

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        accuracy, bent, plane = (numbers[name] for name in ("accuracy", "not affine", "half-plane"))
        straight = [name for name in accuracy if name != "additive"]
        gain = difference(accuracy["additive"], [plane] * len(accuracy["additive"]))
        best = max((mean(accuracy[name]) for name in straight), key=lambda one: one.value)
        flattest = min(bent["additive"])
        steepest = max(max(bent[name]) for name in straight)
        facts = (
            Fact(Text("accuracy of additive over the best half-plane", "加性准确率超出最优半平面"),
                 *(100 * x for x in gain), unit="%"),
            Fact(Text("accuracy of the best multiplicative score", "最好的乘性得分的准确率"),
                 *(100 * x for x in best), unit="%"),
            Fact(Text("share of the score not affine in the key, additive (least)",
                      "加性得分关于键的非仿射比例（最小）"), 100 * flattest, unit="%"),
            Fact(Text("the same, multiplicative (most)", "同上，乘性（最大）"), 100 * steepest, unit="%"),
        )  # fmt: skip
        # The best half-plane was found on a grid; on a random sample a better one may exist by chance.
        beaten = best.low > plane + 0.02
        shapes = steepest < FLAT and flattest > CURVED
        if shapes and gain.above(GAIN) and not beaten:
            because = Text(
                f"Additive is right on {100 * mean(accuracy['additive']).value:.0f}% of keys, "
                f"multiplicative scores on {100 * best.value:.0f}%; no half-plane can do better than "
                f"{100 * plane:.0f}%.",
                f"加性判断正确的键占 {100 * mean(accuracy['additive']).value:.0f}%，乘性为 "
                f"{100 * best.value:.0f}%；任何半平面最多 {100 * plane:.0f}%。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        if shapes and not beaten and gain.high > GAIN:
            because = Text(
                "The shapes are as stated; whether the accuracy gains 10 points takes more seeds.",
                "形状与陈述一致；准确率是否高出 10 个百分点需要更多种子。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        because = Text(
            f"Additive is {100 * gain.value:.0f} points more accurate than any half-plane. "
            f"{100 * flattest:.2g}% of its variance is not affine in the key; for multiplicative scores "
            f"it is {100 * steepest:.2g}%.",
            f"加性的准确率比任何半平面高 {100 * gain.value:.0f} 个百分点；其方差中非仿射部分占 "
            f"{100 * flattest:.2g}%，乘性打分为 {100 * steepest:.2g}%。",
        )
        return Judgement(ClaimVerdict.FAILS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Two regions, and the accuracies."""
        *maps, right = canvas.panels(3, wide=3.5, high=3.3)
        accuracy = numbers["accuracy"]
        for axes, name in zip(maps, ("scaled dot", "additive"), strict=True):
            draw_region(numbers, name, canvas, axes)
        found = {name: mean(values) for name, values in accuracy.items()}
        canvas.bars(
            right, [LABELS.get(name, name) for name in found],
            [100 * one.value for one in found.values()],
            errors=([100 * one.low for one in found.values()],
                    [100 * one.high for one in found.values()]),
            colors=[LOOKS[name][0] for name in found],
        )  # fmt: skip
        plane = 100 * numbers["half-plane"]
        canvas.bar_line(right, plane, Text("best half-plane", "最优半平面"))
        right.set_ylim(0, 118)
        right.set_yticks(range(0, 101, 20))
        canvas.label(right, "", Text("keys judged rightly (%)", "判断正确的键 (%)"),
                     Text("accuracy", "准确率"))  # fmt: skip
        canvas.legend(right, loc="upper left")


def not_affine(trained: Trained, offset: Tensor) -> list[float]:
    """For each seed, the fraction of a score's variance over keys that no affine function explains.

    It is the mean over four fixed queries.
    """
    ones = torch.ones(len(offset), 1, dtype=torch.float64)
    shares = []
    for query in torch.tensor([FIXED, (-0.6, 0.8), (-0.9, -0.2), (0.9, 0.9)]):
        key = (query + offset).double()
        found = logits(trained, query, key)
        plane = torch.cat([key, ones], 1)
        left = found - plane @ torch.linalg.lstsq(plane, found).solution
        shares.append(left.square().mean(0) / found.var(0, correction=0).clamp(min=1e-12))
    return torch.stack(shares).mean(0).tolist()


def logits(trained: Trained, query: Tensor, key: Tensor) -> Tensor:
    """Scores of one query with many keys, in fp64: (keys, seeds)."""
    exact = {name: x.double() for name, x in trained.weights.items()}
    with torch.no_grad():
        rows = [
            torch.func.functional_call(
                trained.model,
                {name: x[seed] for name, x in exact.items()},
                (query.double().unsqueeze(0), key.unsqueeze(0)),
            )
            for seed in range(len(trained.quality))
        ]
    return torch.cat(rows).mT


def region(trained: Trained, offset: Tensor) -> list[list[float]]:
    """The logits of the first seed on a grid around the query `FIXED`."""
    query = torch.tensor(FIXED)
    found = logits(trained, query, (query + offset).double())[:, 0]
    return [[round(x, 4) for x in row] for row in found.view(GRID, GRID).tolist()]


def smooth_truth(inside: Region, offset: Tensor) -> list[list[float]]:
    """The fraction of each grid cell inside the region, which gives a contour without steps."""
    fine = torch.linspace(-1, 1, 9) * HALF / (GRID - 1)
    within = inside(offset.unsqueeze(-2) + torch.cartesian_prod(fine, fine)).float().mean(-1)
    return [[round(x, 3) for x in row] for row in within.view(GRID, GRID).tolist()]


def best_half_plane(offset: Tensor, truth: Tensor) -> float:
    """The best accuracy of any rule `n.k > c`, over 180 directions n and all c."""
    best = 0.0
    for angle in torch.linspace(0, 2 * math.pi, 181)[:-1]:
        along = offset @ torch.stack([angle.cos(), angle.sin()])
        inside = truth[along.argsort()].double()
        # With a cut after the first i points, those before it are called outside, the others inside.
        before = torch.cat([torch.zeros(1, dtype=torch.float64), (1 - inside).cumsum(0)])
        after = inside.sum() - torch.cat([torch.zeros(1, dtype=torch.float64), inside.cumsum(0)])
        best = max(best, float((before + after).max()) / len(truth))
    return best


def draw_region(numbers: Numbers, name: str, canvas: Canvas, axes: Axes) -> None:
    """The keys that a score accepts for the fixed query, and the contour of the true region."""
    x, y = numbers["query"]
    side = torch.linspace(-HALF, HALF, GRID).tolist()
    across, up = [x + s for s in side], [y + s for s in side]
    ink = LOOKS[name][0]
    # `cartesian_prod` puts the first coordinate along the rows; matplotlib expects it along the columns.
    flipped = lambda rows: [list(row) for row in zip(*rows, strict=True)]  # noqa: E731
    found = flipped(numbers["regions"][name])
    axes.contourf(across, up, found, levels=[0, 1e9], colors=[ink], alpha=0.35)
    axes.contour(across, up, found, levels=[0], colors=[ink], linewidths=1.8)
    axes.contour(across, up, flipped(numbers["truth"]), levels=[0.5], colors=["#444444"],
                 linewidths=1.1, linestyles="--")  # fmt: skip
    axes.plot([x], [y], "*", color="#222222", ms=9)
    axes.set_aspect("equal")
    canvas.label(
        axes,
        Text("key, first component", "键的第一分量"),
        Text("key, second component", "键的第二分量"),
        canvas.say(LABELS[name]).replace("\n", " "),
    )
