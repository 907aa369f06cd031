"""B2: multiplicative and additive scores can never agree everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import Additive, Bilinear, Projected, Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.fitting import Pairs, fit_additive, fit_bilinear
from regard.claims.tools.untrained import drawn, pair_scores
from regard.figures.canvas import GREY, ORANGE, PURPLE, Canvas
from regard.measuring.statistics import Estimate, log_slope, mean
from regard.text import Text

NOTHING = 0.01  # explained fraction of the variance that counts as none
HALF = 0.5  # less unexplained variance than this at the largest width: the fits approach agreement
HIDDEN = 16  # hidden units of the additive target
EXACT = 1e-12
FRESH = 4  # test pairs for each fitted pair
FARTHER = 4.0  # factor on the inputs for the test outside the fitted range
KINDS = {"without": False, "with": True}
NAMES = {
    "without": Text("no bias", "无偏置"),
    "with": Text("bias", "有偏置"),
}
MARKS = ("o", "s", "^")


def bilinear(dim: int, generator: torch.Generator) -> Score:
    """The score q' W k with a random W: even under (q, k) -> (-q, -k)."""
    return drawn(lambda: Bilinear(dim, dim), generator)


def additive(dim: int, bias: bool, generator: torch.Generator) -> Score:
    """The score v.tanh(W_q q + W_k k + b) with random parameters: odd if b = 0."""

    def build() -> Score:
        inner = Additive(HIDDEN, bias=bias)
        if inner.bias is not None:
            torch.nn.init.normal_(inner.bias)
        return Projected(inner, dim, dim)

    return drawn(build, generator)


@dataclass(frozen=True)
class Parity(Claim):
    """Fits an even score by an odd one and the other way round; the best such fit is 0.

    If inputs are as likely as their mirror images, an even e and an odd o have E[e o] = 0. Then
    `E[(e - o)^2] = E[e^2] + E[o^2]`, so the best odd fit of e is 0 and leaves all of its variance.
    """

    id = "B2"
    statement = Text(
        "Multiplicative and additive scores can never agree everywhere.",
        "乘性打分与加性打分不可能处处一致。",
    )
    criterion = Text(
        "A bilinear score is even and an additive one without a bias inside tanh odd, to 1e-12; the "
        "best fit of either by the other explains at most 1% of its variance, at every width. It holds "
        "if with a bias too over half is left at the largest width. With conditions if with a bias the "
        "rest falls with width (95% interval of the exponent below 0), to under half.",
        "双线性打分是偶函数，tanh 内无偏置的加性打分是奇函数（误差 1e-12）；在任何宽度下，一方对另一方的最佳拟合至多解释"
        "其方差的 1%。若有偏置时在最大宽度也剩一半以上，则成立；若有偏置时剩余随宽度下降（指数的 95% 区间小于 0）"
        "到一半以下，则有条件成立。",
    )
    meaning = Text(
        "The two families are different functions, not two spellings of one. If an additive score has "
        "to imitate products, give it a bias and width, and expect it to hold only where it was fitted.",
        "这两类是不同的函数，而不是同一函数的两种写法。若要加性打分模仿乘积，请给它偏置和宽度，并且只在拟合过的范围内可信。",
    )
    caption = Text(
        "Left: share of a bilinear score's variance that additive fits leave on fresh pairs, against "
        "the number of hidden units; bands are 95% intervals over seeds. Right: what the best bilinear "
        "fit leaves of a random additive score.",
        "左：加性拟合在新样本上留下的双线性打分方差的比例，随隐藏单元数变化；色带为各种子的 95% 区间。右：最佳双线性拟合"
        "留下的随机加性打分方差的比例。",
    )
    control = Text(
        "Theory: an odd function explains nothing of an even one. Fits are least squares (over v, for "
        "random hidden units), on pairs with their mirror images, judged on fresh pairs; the same pairs "
        "with and without a bias.",
        "理论：奇函数完全不能解释偶函数。拟合为最小二乘（随机隐藏单元，只解 v），样本对含其镜像，在新样本上评判；有无偏置用相同样本。",
    )
    seconds = (5.0, 75.0)

    target: Callable[[int, torch.Generator], Score] = bilinear
    dims: tuple[int, ...] = (2, 4)
    widths: tuple[int, ...] = (8, 32, 128, 256)
    wider: tuple[int, ...] = (512,)  # additional widths in a full run
    pairs: tuple[int, int] = (1000, 4000)  # quick and full

    def measure(self, run: Run) -> Numbers:
        """Additive fits of a bilinear score over widths, bilinear fits of an additive one."""
        count, seeds = run.pick(*self.pairs), run.pick(4, 6)
        widths = self.widths + run.pick((), self.wider)
        found: Numbers = {
            "dims": list(self.dims), "widths": list(widths), "pairs": count,
            "left": {}, "farther": {}, "reverse": {}, "parity": self.parity(run),
        }  # fmt: skip
        for dim, kind in run.steps([(dim, kind) for dim in self.dims for kind in KINDS]):
            tries = [self.fit(dim, kind, widths, count, seed, run) for seed in range(seeds)]
            left, farther, reverse = (list(column) for column in zip(*tries, strict=True))
            name = f"{kind} {dim}"
            found["left"][name] = [list(column) for column in zip(*left, strict=True)]
            found["farther"][name], found["reverse"][name] = farther, reverse
        return found

    def fit(
        self, dim: int, kind: str, widths: tuple[int, ...], count: int, seed: int, run: Run
    ) -> tuple[list[float], float, float]:
        """Unexplained variance of one seed: at each width, farther out, and for the reverse fit."""
        generator = run.generator("B2", dim, seed)
        target = self.target(dim, generator)
        fitted, held = (mirrored(target, dim, count, generator) for _ in range(2))
        fresh = scored(target, *draw_pairs(dim, FRESH * count, generator))
        fits = [
            fit_additive(fitted, held, width, KINDS[kind], run.generator("B2", dim, seed, width))[0]
            for width in widths
        ]
        farther = scored(target, FARTHER * fresh.query, FARTHER * fresh.key)
        other = additive(dim, KINDS[kind], generator)
        back = fit_bilinear(mirrored(other, dim, count, generator))[0]
        return (
            [fit.unexplained(fresh, 0) for fit in fits],
            fits[-1].unexplained(farther, 0),
            back.unexplained(scored(other, fresh.query, fresh.key), 0),
        )

    def parity(self, run: Run) -> float:
        """Largest deviation of the target from even, and of an additive score without bias from odd."""
        generator = run.generator("B2", "parity")
        dim = self.dims[-1]
        query, key = draw_pairs(dim, 200, generator)
        even, odd = self.target(dim, generator), additive(dim, False, generator)
        apart = pair_scores(-query, -key, even) - pair_scores(query, key, even)
        total = pair_scores(-query, -key, odd) + pair_scores(query, key, odd)
        return float(torch.maximum(apart.abs(), total.abs()).max())

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        most, widest = explained(numbers), numbers["widths"][-1]
        last = {dim: mean(numbers["left"][f"with {dim}"][-1]) for dim in numbers["dims"]}
        easy = min(last, key=lambda dim: last[dim].value)
        far = mean(numbers["farther"][f"with {easy}"])
        facts = (
            Fact(
                Text("explained without a bias, at most", "无偏置时至多解释"),
                *percent(most),
                unit="%",
            ),
            *(
                Fact(
                    Text(
                        f"left with a bias, width {widest}, d = {dim}",
                        f"有偏置时的剩余，宽度 {widest}，d = {dim}",
                    ),
                    *percent(left),
                    unit="%",
                )
                for dim, left in last.items()
            ),
            Fact(
                Text(
                    f"the same at {FARTHER:g} times larger inputs, d = {easy}",
                    f"输入放大 {FARTHER:g} 倍时的剩余，d = {easy}",
                ),
                *percent(far),
                unit="%",
            ),
        )
        if numbers["parity"] > EXACT or most.above(NOTHING):
            because = Text(
                f"Even without a bias one explains {most.value:.0%} of the other, or the parities are "
                f"not opposite (off by {numbers['parity']:.1g}).",
                f"即使没有偏置，一方也能解释另一方的 {most.value:.0%}，或奇偶性并不相反（相差 {numbers['parity']:.1g}）。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        if most.below(NOTHING) and all(left.above(HALF) for left in last.values()):
            because = Text(
                "With or without a bias, most of the variance is left at every width.",
                "无论有无偏置，任何宽度下都剩下大部分方差。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        falls = all(falling(numbers, dim).below(0) for dim in last)
        if most.below(NOTHING) and falls and all(left.below(HALF) for left in last.values()):
            return Judgement(ClaimVerdict.CONDITIONS, condition(last, widest, far), facts)
        because = Text(
            "The intervals cross the bars: a full run has more pairs, seeds and hidden units.",
            "区间跨越了界限：完整运行有更多样本、种子和隐藏单元。",
        )
        return Judgement(ClaimVerdict.UNDECIDED, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Unexplained variance against width, and that of the reverse fit."""
        left, right = canvas.panels(2, 4.4, 3.3)
        for name, rows in numbers["left"].items():
            kind, dim = name.split()
            found = [mean(row) for row in rows]
            mark = MARKS[numbers["dims"].index(int(dim)) % len(MARKS)]
            canvas.line(
                left, numbers["widths"], [100 * e.value for e in found],
                low=[100 * e.low for e in found], high=[100 * e.high for e in found],
                label=f"{canvas.say(NAMES[kind])}, d = {dim}", marker=mark,
                color=ORANGE if kind == "with" else GREY,
            )  # fmt: skip
        canvas.bar_line(left, 100, Text("theory without a bias", "无偏置时的理论值"))
        left.set_xscale("log", base=2)
        left.set_yscale("log")
        y = Text("variance left (%)", "剩余方差（%）")
        x = Text("hidden units", "隐藏单元数")
        canvas.label(left, x, y, Text("additive fits bilinear", "加性拟合双线性"))
        canvas.legend(left, loc="lower left")
        names = list(numbers["reverse"])
        found = [mean(numbers["reverse"][name]) for name in names]
        words = [f"{canvas.say(NAMES[name.split()[0]])}\nd = {name.split()[1]}" for name in names]
        canvas.bars(
            right, words, [100 * e.value for e in found],
            errors=([100 * e.low for e in found], [100 * e.high for e in found]),
            colors=[PURPLE if name.startswith("with ") else GREY for name in names],
        )  # fmt: skip
        canvas.bar_line(right, 100, "")
        canvas.label(right, "", y, Text("bilinear fits additive", "双线性拟合加性"))


def draw_pairs(dim: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Standard normal queries and keys, which are as likely as their mirror images."""
    query, key = torch.randn(2, count, dim, generator=generator, dtype=torch.float64)
    return query, key


def scored(target: Score, query: Tensor, key: Tensor) -> Pairs:
    """Pairs with the target's scores."""
    return Pairs(query, key, pair_scores(query, key, target).unsqueeze(-1))


def mirrored(target: Score, dim: int, count: int, generator: torch.Generator) -> Pairs:
    """Random pairs, each together with its mirror image, so that the sample is exactly symmetric."""
    query, key = draw_pairs(dim, count, generator)
    return scored(target, torch.cat([query, -query]), torch.cat([key, -key]))


def explained(numbers: Numbers) -> Estimate:
    """The largest fraction explained without a bias, over dims, widths and both directions."""
    rows: list[list[float]] = []
    for dim in numbers["dims"]:
        rows += [*numbers["left"][f"without {dim}"], numbers["reverse"][f"without {dim}"]]
    return max((mean([1 - left for left in row]) for row in rows), key=lambda found: found.high)


def falling(numbers: Numbers, dim: int) -> Estimate:
    """Exponent of the unexplained variance against width, with a bias; the interval is over seeds."""
    rows = numbers["left"][f"with {dim}"]
    return mean([log_slope(numbers["widths"], seed).value for seed in zip(*rows, strict=True)])


def percent(share: Estimate) -> Estimate:
    """A fraction as a percentage."""
    return Estimate(*(100 * x for x in share))


def condition(last: dict[int, Estimate], widest: int, far: Estimate) -> Text:
    """The condition under which the statement holds, in words."""
    english = ", ".join(f"{left.value:.1%} (d = {dim})" for dim, left in last.items())
    chinese = "、".join(f"{left.value:.1%}（d = {dim}）" for dim, left in last.items())
    return Text(
        f"Only without a bias inside tanh: there, by parity, everything is left at any width. With a "
        f"bias the rest falls with width, to {english} at {widest} units; but {FARTHER:g} times farther "
        f"out {far.value:.0%} is left again, as tanh is bounded.",
        f"仅在 tanh 内无偏置时：由奇偶性，任何宽度下全部剩余。有偏置时剩余随宽度下降，{widest} 个单元时为 {chinese}；"
        f"但输入放大 {FARTHER:g} 倍时又剩下 {far.value:.0%}，因为 tanh 有界。",
    )
