"""B5: with a bias inside tanh an additive score approximates any continuous score on a compact set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.fitting import Fit, Pairs, fit_additive, fit_bilinear
from regard.figures.canvas import Canvas
from regard.measuring.statistics import Estimate, log_slope, mean
from regard.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Target = Callable[[Tensor, Tensor], Tensor]
SMALL = 0.1  # unexplained fraction of the variance that is required at the largest width
NOTHING = 0.01  # R^2 that counts as 0
REACH = (1.0, 1.5, 2.0, 3.0, 4.0)  # sizes of the test box, relative to the training box
FLOOR = 1e-12  # smallest error drawn; exact fits are drawn here
KINDS = {"bias": True, "odd": False}


def product(query: Tensor, key: Tensor) -> Tensor:
    """A bilinear target: q.k."""
    return (query * key).sum(-1)


def bump(query: Tensor, key: Tensor) -> Tensor:
    """A target that is not bilinear: high when query and key are close."""
    return torch.exp(-2 * (query - key).square().sum(-1))


SHARE = Text("squared error / variance (1 − R²)", "平方误差 / 方差 (1 − R²)")
NAMES = {
    "bilinear": Text("target q·k", "目标 q·k"),
    "not bilinear": Text("target exp(−2‖q−k‖²)", "目标 exp(−2‖q−k‖²)"),
}


@dataclass(frozen=True)
class Universal(Claim):
    """`sum v tanh(w_q.q + w_k.k + b)` is one hidden layer on (q, k): universal on a compact set.

    Without b it is odd in (q, k), and explains nothing of an even target at any width.
    """

    id = "B5"
    statement = Text(
        "Additive attention is a universal approximator: given enough hidden units it can be any "
        "continuous score.",
        "加性注意力是通用逼近器：隐藏单元足够多时，可以表示任何连续的得分函数。",
    )
    criterion = Text(
        "With a bias inside tanh, the share of variance left on the box [−1, 1] falls with width (95% "
        "interval of the log-log slope below 0) to under 10%, for a bilinear target and another. It "
        "holds if the same is so without the bias and on a box twice as large; with conditions if not, "
        "and those are measured. It does not hold if with the bias over 10% is surely left.",
        "tanh 内有偏置时，在 [−1, 1] 的方盒上，双线性目标与非双线性目标所留方差均随宽度下降（双对数斜率的 "
        "95% 区间低于 0），且降到 10% 以下。若无偏置时以及在两倍大的方盒上也如此，则成立；"
        "否则为有条件成立，并测量这些条件。若有偏置时确定留下超过 10%，则不成立。",
    )
    meaning = Text(
        "Give an additive score a bias inside tanh and keep its inputs in the range it was trained on "
        "(LayerNorm). For a target that is bilinear, width buys nothing: a bilinear score is exact.",
        "请在加性得分的 tanh 内加偏置，并让输入保持在训练时的范围内（LayerNorm）。"
        "若目标本身是双线性的，加宽没有意义：双线性得分即为精确解。",
    )
    caption = Text(
        "Left and middle: share of variance left against width, with and without a bias, beside the "
        "best bilinear score. Right: the widest score with bias tested on larger boxes than it was "
        "fitted on. Bands: 95% intervals over draws.",
        "左、中：所留方差比例随宽度的变化（有偏置、无偏置），以及最优双线性得分。"
        "右：最宽且有偏置的得分在比拟合范围更大的方盒上的表现。色带：多次抽样的 95% 区间。",
    )
    control = Text(
        "The best bilinear score by least squares, on the same pairs. Of the additive score only v is "
        "solved for; its hidden units are random, so that its error is an upper bound. All may add a "
        "constant; fresh pairs are judged.",
        "对照：同样点对上最小二乘的最优双线性得分。加性得分只求解 v，隐藏单元随机，故其误差是上界。"
        "均可加常数；在新点对上评价。",
    )
    seconds = (3.0, 40.0)

    targets: dict[str, Target] = field(
        default_factory=lambda: {"bilinear": product, "not bilinear": bump}
    )
    dim: int = 2
    widths: tuple[int, ...] = (4, 16, 64, 256)
    widths_full: tuple[int, ...] = (4, 16, 64, 256, 1024)

    def pairs(self, count: int, generator: torch.Generator, reach: float = 1.0) -> Pairs:
        """Pairs in a box, each with its mirror image (-q, -k), so that parity is exact in the sample."""
        drawn = 2 * torch.rand(2, count, self.dim, generator=generator, dtype=torch.float64) - 1
        query, key = (torch.cat([half, -half]) for half in reach * drawn)
        return Pairs(query, key, torch.stack([f(query, key) for f in self.targets.values()], -1))

    def measure(self, run: Run) -> Numbers:
        """Unexplained fraction of the variance: by width, with and without bias, and outside the box."""
        count, draws = run.pick((1000, 4), (2000, 6))
        widths = run.pick(self.widths, self.widths_full)
        left = {kind: {name: [] for name in self.targets} for kind in (*KINDS, "bilinear")}
        outside = {name: [] for name in self.targets}
        for draw in run.steps(range(draws)):
            generator = run.generator("B5", draw)
            data, held, fresh = (self.pairs(count, generator) for _ in range(3))
            wider = [self.pairs(count, generator, reach) for reach in REACH]
            record(left["bilinear"], fit_bilinear(data), fresh)
            for kind, bias in KINDS.items():
                rows = {name: [] for name in self.targets}
                for width in widths:
                    fits = fit_additive(data, held, width, bias, generator)
                    record(rows, fits, fresh)
                    if bias and width == widths[-1]:
                        for number, name in enumerate(self.targets):
                            found = [fits[number].unexplained(pairs, number) for pairs in wider]
                            outside[name].append(found)
                for name, row in rows.items():
                    left[kind][name].append(row)
        return {"widths": list(widths), "left": left, "reach": list(REACH), "outside": outside}

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        left, names = numbers["left"], list(numbers["outside"])
        explained = max(1 - share for name in names for row in left["odd"][name] for share in row)
        twice = numbers["reach"].index(2.0)
        outside = max(column(numbers["outside"][name], twice).value for name in names)
        end = {name: column(left["bias"][name], -1) for name in names}
        facts = (
            *(Fact(Text(f"variance left at width {numbers['widths'][-1]}, {NAMES[name].en}",
                        f"宽度 {numbers['widths'][-1]} 时所留方差，{NAMES[name].zh}"), *end[name])
              for name in names if name in NAMES),
            Fact(Text("largest R² without bias, any width", "无偏置时的最大 R²（任意宽度）"), explained),
            Fact(Text("squared error / variance on a box twice as large", "两倍大方盒上的平方误差 / 方差"), outside),
        )  # fmt: skip
        if all(approximated(numbers, "bias", name) for name in names):
            even = explained <= NOTHING
            if all(approximated(numbers, "odd", name) for name in names) and outside < SMALL:
                because = Text(
                    "Error falls with width in every case.", "各种情形下误差都随宽度下降。"
                )
                return Judgement(ClaimVerdict.HOLDS, because, facts)
            return Judgement(ClaimVerdict.CONDITIONS, conditions(left, names, even, outside), facts)
        if any(one.low > SMALL for one in end.values()):
            because = Text(
                "With a bias the error still does not fall to a tenth.",
                "即使有偏置，误差也没有降到十分之一。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        because = Text(
            "The intervals straddle the bar: a full run has more widths and draws.",
            "区间跨过界线：完整运行有更多宽度与抽样。",
        )
        return Judgement(ClaimVerdict.UNDECIDED, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Error against width for each target, and outside the box."""
        *panels, last = canvas.panels(len(numbers["outside"]) + 1, wide=3.6)
        for axes, name in zip(panels, numbers["outside"], strict=True):
            draw_widths(numbers, name, canvas, axes)
        for name, rows in numbers["outside"].items():
            found = [column(rows, place) for place in range(len(numbers["reach"]))]
            dashes = "-" if name == "bilinear" else "--"
            band(canvas, last, numbers["reach"], found, NAMES.get(name, name), dashes)
        last.set_yscale("log")
        canvas.label(
            last,
            Text("size of the test box (training box = 1)", "测试方盒大小（训练方盒 = 1）"),
            SHARE,
            Text("outside the training box", "训练方盒之外"),
        )
        canvas.legend(last)


def record(rows: dict[str, list], fits: list[Fit], fresh: Pairs) -> None:
    """Append the unexplained variance of each fit on fresh pairs to the row of its target."""
    for number, row in enumerate(rows.values()):
        row.append(fits[number].unexplained(fresh, number))


def column(rows: list[list[float]], place: int) -> Estimate:
    """The mean over draws of the item at `place` of each row."""
    return mean([row[place] for row in rows])


def approximated(numbers: Numbers, kind: str, name: str) -> bool:
    """Whether, by their intervals, the error falls with width and ends below the bar."""
    rows = numbers["left"][kind][name]
    slope = mean([log_slope(numbers["widths"], row).value for row in rows])
    return slope.below(0) and column(rows, -1).below(SMALL)


def conditions(left: Numbers, names: list[str], even: bool, outside: float) -> Text:
    """The conditions under which the statement holds, in words."""
    # Being below the best bilinear score is an advantage only if that score has an error.
    beaten = [
        name
        for name in names
        if column(left["bias"][name], -1).high < mean(left["bilinear"][name]).low
    ]
    english = " and ".join(NAMES[name].en for name in beaten if name in NAMES) or "none"
    chinese = "、".join(NAMES[name].zh for name in beaten if name in NAMES) or "无"
    stays = ("explains nothing of these even targets at any width", "任何宽度都解释不了这些偶目标")
    slow = ("does not fall as it should", "误差下降不足")
    odd = stays if even else slow
    return Text(
        f"With a bias inside tanh and on the box it was fitted on. Without the bias it {odd[0]}; on a "
        f"box twice as large its squared error is up to {outside:.3g} times the variance. It is below "
        f"the best bilinear score only for: {english}.",
        f"条件：tanh 内有偏置，且限于拟合所用的方盒。无偏置时{odd[1]}；在两倍大的方盒上，平方误差最大达方差的 "
        f"{outside:.3g} 倍。误差低于最优双线性得分的仅有：{chinese}。",
    )


def band(
    canvas: Canvas,
    axes: Axes,
    x: list[float],
    found: list[Estimate],
    label: Text | str,
    dashes: str,
) -> None:
    """A line for additive scores with the band of their intervals, on a logarithmic axis."""
    low = [max(one.low, one.value / 10) for one in found]
    high = [one.high for one in found]
    fill = None if dashes == "-" else "white"
    canvas.line(
        axes, x, [one.value for one in found], "additive",
        label=label, low=low, high=high, ls=dashes, mfc=fill,
    )  # fmt: skip


def draw_widths(numbers: Numbers, name: str, canvas: Canvas, axes: Axes) -> None:
    """Unexplained variance of one target against width."""
    left, widths = numbers["left"], numbers["widths"]
    labels = {
        "bias": Text("additive with bias", "加性，有偏置"),
        "odd": Text("additive, no bias", "加性，无偏置"),
    }
    for kind, label in labels.items():
        found = [column(left[kind][name], place) for place in range(len(widths))]
        band(canvas, axes, widths, found, label, ":" if kind == "odd" else "-")
    best = mean(left["bilinear"][name]).value
    exact = best < FLOOR
    label = (
        Text("best bilinear: exact (0)", "最优双线性：精确（0）")
        if exact
        else Text("best bilinear", "最优双线性")
    )
    heights = [FLOOR if exact else best] * len(widths)
    canvas.line(axes, widths, heights, "bilinear", marker="", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(FLOOR / 3, 30)
    canvas.label(axes, Text("hidden units", "隐藏单元数"), SHARE, NAMES.get(name, name))
    canvas.legend(axes, loc="lower left", bbox_to_anchor=(0, 0.06))
