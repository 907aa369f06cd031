"""D1: on the unit sphere scaled dot attention is Nadaraya-Watson smoothing with a Gaussian kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import regard
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.figures.canvas import Canvas
from regard.text import Text

# Differences relative to the largest |value|: the most that fp64 rounding explains, and far above it.
ROUNDING = 1e-11
APART = 1e-3
SPREADS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)


def on_sphere(dim: int) -> float:
    """The bandwidth h with h^2 = sqrt(d)."""
    return dim**0.25


@dataclass(frozen=True)
class KernelSmoothing(Claim):
    """-|q - k|^2 / (2 h^2) = q.k / h^2 - (|q|^2 + |k|^2) / (2 h^2).

    With h^2 = sqrt(d) the first term is scaled dot. If all keys have the same norm, the other terms are
    equal for all keys of a query and cancel in the softmax. The norm of the query does not matter.
    """

    id = "D1"
    statement = Text(
        "On the unit sphere, scaled dot attention is Nadaraya-Watson smoothing with a Gaussian kernel "
        "of bandwidth h² = √d.",
        "在单位球面上，缩放点积注意力就是带宽 h² = √d 的高斯核 Nadaraya-Watson 平滑。",
    )
    criterion = Text(
        "For unit queries and keys of every dimension tried, attention and the kernel regression of "
        "statsmodels (local constant, Gaussian) differ by at most 1e-11 of the largest value, in fp64.",
        "对所试的每个维数，单位长度的查询与键，注意力与 statsmodels 的核回归（局部常数、高斯核）之差"
        "不超过最大值的 1e-11（fp64）。",
    )
    meaning = Text(
        "With normalised keys, what is known of kernel smoothing (bandwidth, bias, variance) is known of "
        "attention. Where key norms differ, long keys weigh more than their distance says: use the "
        "Gaussian score, or normalise keys.",
        "键归一化后，核平滑的理论（带宽、偏差、方差）都适用于注意力。"
        "键的范数不等时，长键的权重会大于其距离应得的：请用高斯得分，或归一化键。",
    )
    caption = Text(
        "Left: predictions of attention against those of statsmodels, unit queries and keys. Right: the "
        "largest difference as key norms spread (log-normal); at spread 0 it is rounding.",
        "左：单位查询与键时，注意力的预测与 statsmodels 的预测。"
        "右：键的范数离散（对数正态）时的最大差；离散度为 0 时仅有舍入误差。",
    )
    control = Text(
        "Other people's kernel regression, on the same data: statsmodels KernelReg. Beyond the "
        "criterion: queries of any length, and keys of unequal length.",
        "对照：他人实现的核回归 statsmodels KernelReg，数据相同。"
        "另测：任意长度的查询，以及长度不等的键。",
    )
    seconds = (1.5, 2.0)

    bandwidth: Callable[[int], float] = on_sphere
    dims: tuple[int, ...] = (2, 8, 32, 128)

    def measure(self, run: Run) -> Numbers:
        """Differences between attention and kernel regression, relative to the largest value."""
        keys, queries = run.pick((200, 30), (500, 100))
        sphere, long_queries = [], []
        points: list[list[float]] = [[], []]
        unequal = self.unequal(run, keys, queries)
        for dim in run.steps(self.dims):
            generator = run.generator("D1", dim)
            query, key = (
                unit(torch.randn(count, dim, generator=generator, dtype=torch.float64))
                for count in (queries, keys)
            )
            value = torch.sin(3 * key[:, 0]) + 0.3 * torch.randn(
                keys, generator=generator, dtype=torch.float64
            )
            attended, smoothed = self.both(query, key, value)
            sphere.append(apart(attended, smoothed, value))
            length = torch.rand(queries, 1, generator=generator, dtype=torch.float64) * 4
            long_queries.append(apart(*self.both(length * query, key, value), value))
            points[0] += attended.tolist()
            points[1] += smoothed.tolist()
        return {
            "dims": list(self.dims), "sphere": sphere, "long queries": long_queries,
            "points": points, "spreads": list(SPREADS), "unequal keys": unequal,
        }  # fmt: skip

    def both(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Attention, and kernel regression at the same points."""
        from statsmodels.nonparametric.kernel_regression import KernelReg

        attended = regard.attention(query, key, value.unsqueeze(-1), "scaled_dot").squeeze(-1)
        dim = key.shape[-1]
        with warnings.catch_warnings():
            # statsmodels warns about the default of its random generator. A given bandwidth does not use
            # the generator, and version 0.14 has no argument to set it.
            warnings.simplefilter("ignore", FutureWarning)
            smoother = KernelReg(
                value.numpy(), key.numpy(), "c" * dim, "lc", bw=[self.bandwidth(dim)] * dim
            )
        return attended, torch.from_numpy(smoother.fit(query.numpy())[0])

    def unequal(self, run: Run, keys: int, queries: int) -> list[float]:
        """The difference for keys of norm exp(spread * normal), in 8 dims."""
        generator = run.generator("D1", "unequal")
        query, key = (
            unit(torch.randn(count, 8, generator=generator, dtype=torch.float64))
            for count in (queries, keys)
        )
        lengths, value = torch.randn(2, keys, generator=generator, dtype=torch.float64)
        return [
            apart(*self.both(query, key * (spread * lengths).exp().unsqueeze(-1), value), value)
            for spread in SPREADS
        ]

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        worst, longer = max(numbers["sphere"]), max(numbers["long queries"])
        spread = dict(zip(numbers["spreads"], numbers["unequal keys"], strict=True))
        facts = (
            Fact(Text("largest difference on the sphere", "球面上的最大差"), worst),
            Fact(Text("with queries of any length", "查询长度任意时"), longer),
            Fact(Text("with key norms spread by 10%", "键的范数离散 10% 时"), spread[0.1]),
        )
        if worst <= ROUNDING:
            because = Text(
                f"Equal to {worst:.0e} from d = {numbers['dims'][0]} to {numbers['dims'][-1]}, and to "
                f"{longer:.0e} with queries of any length; with key norms spread by 10% they differ by "
                f"{spread[0.1]:.0e}.",
                f"从 d = {numbers['dims'][0]} 到 {numbers['dims'][-1]}，二者之差不超过 {worst:.0e}；"
                f"查询长度任意时为 {longer:.0e}；键的范数离散 10% 时相差 {spread[0.1]:.0e}。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        if worst < APART:
            because = Text(
                f"They differ by {worst:.1e}: more than rounding, less than a difference in method.",
                f"二者相差 {worst:.1e}：大于舍入误差，但不足以说明方法不同。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        because = Text(
            f"On the sphere they differ by {worst:.2g} of the largest value.",
            f"在球面上二者相差最大值的 {worst:.2g}。",
        )
        return Judgement(ClaimVerdict.FAILS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Both predictions against each other, and their difference against the spread of key norms."""
        left, right = canvas.panels(2)
        attended, smoothed = numbers["points"]
        canvas.line(left, smoothed, attended, "scaled dot", lw=0, ms=3.5, alpha=0.6, mew=0)
        left.axline((0, 0), slope=1, color="#444444", ls=(0, (4, 3)), lw=1.1)
        canvas.label(
            left,
            Text("kernel regression (statsmodels)", "核回归（statsmodels）"),
            Text("scaled dot attention", "缩放点积注意力"),
            Text("predictions on the sphere", "球面上的预测"),
        )
        canvas.line(right, numbers["spreads"], numbers["unequal keys"], "scaled dot", label="d = 8")
        right.set_xscale("symlog", linthresh=0.01)
        right.set_xticks(numbers["spreads"], [f"{s:g}" for s in numbers["spreads"]])
        right.set_yscale("log")
        canvas.bar_line(right, ROUNDING, Text("bar: rounding", "界线：舍入误差"))
        canvas.label(
            right,
            Text("spread of log key norm", "键范数对数的离散度"),
            Text("largest difference / largest value", "最大差 / 最大值"),
            Text("keys off the sphere", "键离开球面"),
        )
        canvas.legend(right)


def unit(x: Tensor) -> Tensor:
    """The vectors scaled to norm 1."""
    return x / x.norm(dim=-1, keepdim=True)


def apart(first: Tensor, second: Tensor, value: Tensor) -> float:
    """The largest difference, relative to the largest |value|."""
    return float((first - second).abs().max() / value.abs().max())
