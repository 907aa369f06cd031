"""B3: an additive score can respond to an angle by curves other than the cosine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import regard
from regard import Additive, Projected
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.fitting import Pairs, fit_additive, fit_bilinear
from regard.figures.canvas import Canvas
from regard.measuring.statistics import Estimate, mean, ratio
from regard.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Callable[[Tensor], Tensor]
# tanh(SHIFT + STEEP cos): the response of one hidden unit for a fixed query.
SHIFT, STEEP = 1.0, 3.0
RATIO = 0.1
ROUNDING = 1e-12


def squashed(cosine: Tensor) -> Tensor:
    """A tanh of the cosine."""
    return torch.tanh(SHIFT + STEEP * cosine)


def narrow(cosine: Tensor) -> Tensor:
    """High only at small angles."""
    return torch.exp((cosine - 1) / 0.2)


def plateau(cosine: Tensor) -> Tensor:
    """Constant up to about 60 degrees."""
    return torch.sigmoid(8 * (cosine - 0.5))


def two_peaks(cosine: Tensor) -> Tensor:
    """cos(2 theta): depends on the axis of the key but not on its sign."""
    return 2 * cosine.square() - 1


NAMES = {
    "squashed": Text("tanh(1 + 3 cos θ)", "tanh(1 + 3 cos θ)"),
    "narrow": Text("narrow peak", "窄峰"),
    "plateau": Text("plateau", "平台"),
    "two peaks": Text("cos 2θ", "cos 2θ"),
}


def on_circle(angle: Tensor) -> Tensor:
    """Unit vectors at these angles, (..., 2)."""
    return torch.stack([angle.cos(), angle.sin()], -1)


@dataclass(frozen=True)
class AngleResponse(Claim):
    """Dot responds by cos(theta) alone; additive fits other curves if it has a bias inside tanh.

    Every target here is even: it is the same for (q, k) and (-q, -k). Without a bias an additive
    score is odd, so it explains none of the target over all queries on the circle.
    """

    id = "B3"
    statement = Text(
        "Additive attention can reshape how the score answers the angle between query and key; "
        "a dot product answers with its cosine and nothing else.",
        "加性注意力可以改变得分对查询与键夹角的响应曲线；点积只能给出余弦。",
    )
    criterion = Text(
        "For each target curve over random pairs on the circle, the additive score leaves less than a "
        "tenth of the variance that the best bilinear score leaves (95% interval over draws), and one "
        "hidden unit gives tanh(β + α cos θ) for a fixed query to rounding. It holds if that is so "
        "with and without a bias inside tanh, with conditions if only with it.",
        "在圆上随机点对的每条目标曲线上，加性得分留下的方差不到最优双线性得分的十分之一（多次抽样的 95% "
        "区间），且对固定查询，一个隐藏单元即可给出 tanh(β + α cos θ)（仅舍入误差）。tanh 内有无偏置都"
        "成立则为成立；仅有偏置时成立则为有条件成立。",
    )
    meaning = Text(
        "To compare directions by anything but a cosine (a narrow peak, a plateau, an axis without a "
        "sign), take an additive score, and give it a bias inside tanh.",
        "若要用余弦以外的方式比较方向（窄峰、平台、无正负之分的轴），请用加性得分，并在 tanh 内加偏置。",
    )
    caption = Text(
        "Left: target curves (dashed) with the additive fit for one query (solid) and the best "
        "bilinear one (dotted). Right: the share of variance that each fit leaves, logarithmic.",
        "左：目标曲线（虚线）、某一查询下的加性拟合（实线）与最优双线性拟合（点线）。"
        "右：各拟合留下的方差比例（对数坐标）。",
    )
    control = Text(
        "The bilinear fit is the best there is, by least squares, and contains the dot product; the "
        "additive one only solves for v, its hidden units are random. Fresh pairs are judged; both may "
        "add a constant.",
        "双线性拟合是最小二乘意义下的最优解，并包含点积；加性拟合只求解 v，隐藏单元随机。"
        "均在新点对上评价；二者都可加常数。",
    )
    seconds = (3.0, 20.0)

    # Functions of the cosine of the angle.
    curves: dict[str, Curve] = field(
        default_factory=lambda: {
            "squashed": squashed, "narrow": narrow, "plateau": plateau, "two peaks": two_peaks
        }
    )  # fmt: skip
    hidden: int = 256

    def pairs(self, count: int, generator: torch.Generator) -> Pairs:
        """Pairs at random angles, each with its mirror image (-q, -k), so that parity is exact."""
        angles = 2 * math.pi * torch.rand(2, count, generator=generator, dtype=torch.float64)
        query, key = (torch.cat([half, -half]) for half in on_circle(angles))
        return Pairs(query, key, self.targets((query * key).sum(-1)))

    def targets(self, cosine: Tensor) -> Tensor:
        """The value of every curve, (N, curves)."""
        return torch.stack([curve(cosine) for curve in self.curves.values()], -1)

    def measure(self, run: Run) -> Numbers:
        """Unexplained fraction of the variance for each kind of fit, curve and draw."""
        count, draws = run.pick(1000, 3000), run.pick(5, 12)
        grid = torch.linspace(-math.pi, math.pi, 121, dtype=torch.float64)
        facing = on_circle(torch.full_like(grid, 0.7))
        turned = on_circle(0.7 + grid)
        left = {kind: {name: [] for name in self.curves} for kind in ("bilinear", "bias", "odd")}
        shown: dict[str, list[list[float]]] = {}
        for draw in run.steps(range(draws)):
            generator = run.generator("B3", draw)
            data, held, fresh = (self.pairs(count, generator) for _ in range(3))
            fits = {
                "bilinear": fit_bilinear(data),
                "bias": fit_additive(data, held, self.hidden, True, generator),
                "odd": fit_additive(data, held, self.hidden, False, generator),
            }
            for kind, own in fits.items():
                for number, name in enumerate(self.curves):
                    left[kind][name].append(own[number].unexplained(fresh, number))
                shown[kind] = [fit(facing, turned).tolist() for fit in own]
        return {
            "left": left,
            "curve names": list(self.curves),
            "angle": grid.rad2deg().tolist(),
            "target": self.targets(grid.cos()).mT.tolist(),
            "response": shown,
            "one unit error": one_unit_error(grid),
            "hidden": self.hidden,
        }

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        names, left = numbers["curve names"], numbers["left"]
        with_bias, without = (worst_ratio(left[kind], left["bilinear"]) for kind in ("bias", "odd"))
        explained = max(0.0, *(1 - mean(left["odd"][name]).value for name in names))
        facts = (
            Fact(Text("variance left, additive with bias / bilinear, worst curve",
                      "加性（有偏置）与双线性所留方差之比，最差曲线"), *with_bias),
            Fact(Text("most variance explained without bias, of all curves",
                      "无偏置时所有曲线中解释的最大方差比例"), explained),
            Fact(Text("error of one hidden unit on tanh(β + α cos θ), query fixed",
                      "固定查询时单个隐藏单元对 tanh(β + α cos θ) 的误差"), numbers["one unit error"]),
        )  # fmt: skip
        exact = numbers["one unit error"] <= ROUNDING
        if with_bias.below(RATIO) and exact:
            if without.below(RATIO):
                because = Text(
                    f"On each of {len(names)} curves additive leaves less than a tenth, with and "
                    "without a bias.",
                    f"在全部 {len(names)} 条曲线上，有无偏置时加性留下的都不到十分之一。",
                )
                return Judgement(ClaimVerdict.HOLDS, because, facts)
            because = Text(
                "Needs a bias inside tanh. Without it the score is odd in (q, k) while these curves are "
                f"even: over all queries it explains {explained:.2f} of the variance, so it works only "
                "for a fixed query.",
                "条件：tanh 内要有偏置。没有偏置时，得分关于 (q, k) 是奇函数，而这些曲线是偶函数："
                f"对所有查询而言它只能解释 {explained:.2f} 的方差，只有查询固定时才行。",
            )
            return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        if exact and with_bias.low < RATIO:
            because = Text(
                "The interval of the ratio straddles the bar: more draws, or more hidden units, are needed.",
                "比值的区间跨过界线：需要更多抽样或更多隐藏单元。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        because = Text(
            f"On the worst curve additive leaves {with_bias.value:.2g} times what bilinear leaves.",
            f"在最差的曲线上，加性留下的方差是双线性的 {with_bias.value:.2g} 倍。",
        )
        return Judgement(ClaimVerdict.FAILS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Responses to the angle, and the unexplained variance of each fit."""
        left, right = canvas.panels(2, wide=4.6, high=3.4)
        for number, name in enumerate(numbers["curve names"]):
            lift = 2.6 * number
            raised = lambda y, lift=lift: [lift + v for v in y]  # noqa: E731
            angle = numbers["angle"]
            left.plot(angle, raised(numbers["target"][number]), color="#444444", ls="--", lw=1.1)
            for kind, look, dashes in (("bilinear", "bilinear", ":"), ("bias", "additive", "-")):
                canvas.line(left, angle, raised(numbers["response"][kind][number]), look,
                            marker="", ls=dashes, zorder=1)  # fmt: skip
            left.text(-178, lift + 1.25, canvas.say(NAMES.get(name, name)), fontsize=8)
        left.set_ylim(top=lift + 1.7)
        left.set_yticks([])
        left.set_xticks(range(-180, 181, 90))
        canvas.label(
            left,
            Text("angle θ between query and key (degrees)", "查询与键的夹角 θ（度）"),
            Text("score (curves set apart)", "得分（各曲线错开）"),
        )
        draw_left_over(numbers, canvas, right)


def one_unit_error(grid: Tensor) -> float:
    """Deviation of tanh(w_q.q + w_k.k) with w_k = STEEP q and w_q = SHIFT q from the curve."""
    query = on_circle(torch.tensor([0.7], dtype=torch.float64))
    unit = Additive(1)
    score = Projected(unit, 2, 2).double()
    with torch.no_grad():
        score.query_weight.copy_(SHIFT * query)
        score.key_weight.copy_(STEEP * query)
        unit.v.fill_(1.0)
        found = regard.score(query, on_circle(0.7 + grid), score).squeeze(0)
    return float((found - squashed(grid.cos())).abs().max())


def worst_ratio(own: dict[str, list[float]], other: dict[str, list[float]]) -> Estimate:
    """The largest ratio of unexplained variances over the curves."""
    # An exact rival may leave exactly 0, whose logarithm the ratio could not take.
    ratios = [ratio(own[name], [max(left, 1e-30) for left in other[name]]) for name in own]
    return max(ratios, key=lambda one: one.high)


def draw_left_over(numbers: Numbers, canvas: Canvas, axes: Axes) -> None:
    """Unexplained fractions of the variance for each curve and kind of score."""
    names = numbers["curve names"]
    rows = (
        ("bilinear", "bilinear", None, None),
        ("odd", "additive", Text("additive, no bias", "加性，无偏置"), "white"),
        ("bias", "additive", Text("additive with bias", "加性，有偏置"), None),
    )
    for number, (kind, look, label, fill) in enumerate(rows):
        found = [mean(numbers["left"][kind][name]) for name in names]
        places = [place + 0.2 * (number - 1) for place in range(len(names))]
        canvas.line(axes, places, [one.value for one in found], look, label=label, lw=0, mfc=fill)
        low = [max(one.low, one.value / 10) for one in found]  # the axis is logarithmic
        axes.vlines(places, low, [one.high for one in found], color="#444444", lw=1)
    axes.set_yscale("log")
    axes.set_ylim(top=60)
    axes.set_xticks(range(len(names)), [canvas.say(NAMES.get(name, name)) for name in names])
    axes.tick_params(axis="x", labelsize=7.5)
    canvas.label(axes, Text("target curve", "目标曲线"),
                 Text("share of variance left (1 − R²)", "留下的方差比例 (1 − R²)"))  # fmt: skip
    canvas.legend(axes, loc="upper center", ncols=3, columnspacing=0.8, handletextpad=0.1)
