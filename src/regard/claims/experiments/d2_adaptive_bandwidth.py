"""D2: the norm of the query is a bandwidth, one for each query."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call

import regard
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, Trained, compete
from regard.figures.canvas import BLUE, ORANGE, Canvas
from regard.measuring.statistics import log_slope, mean, ratio
from regard.synthetic.task import DATA_SEEDS, RegressionTask
from regard.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Callable[[Tensor], Tensor]
DIM = 2
NORMS = tuple(2.0 ** (half / 2) for half in range(25))
# Below this norm the kernel is as wide as the circle, so its width cannot be measured.
NARROW = 16.0
TOLERANCE = 0.02
LITTLE = 0.95  # a ratio of errors above this counts as no gain
GRID = 200
FIXED = "fixed"
LEARNED = "learned"


def chirp(place: Tensor) -> Tensor:
    """Smooth on the left, rough on the right: the frequency rises from 1/2 to 8 over [0, 1]."""
    return torch.sin(2 * math.pi * (0.5 * place + 7.5 * place**4 / 4))


def on_arc(place: Tensor) -> Tensor:
    """Places in [0, 1] as unit vectors on half a circle, (..., 2)."""
    return torch.stack([(math.pi * place).cos(), (math.pi * place).sin()], -1)


@dataclass(frozen=True)
class Smoothing(RegressionTask):
    """Predict a noisy curve at new places from noisy observations of it.

    Inputs: places (B,), places of all observations (B, n), observed values (B, n, 1). Target (B, 1).
    The observations depend on the seed alone and are the same in every example.
    """

    curve: Curve
    seed: int
    observations: int = 300
    noise: float = 0.3

    def observed(self) -> tuple[Tensor, Tensor]:
        """Places (n,) and values (n, 1)."""
        generator = torch.Generator().manual_seed(DATA_SEEDS + 16 * self.seed + 11)
        place = torch.rand(self.observations, generator=generator)
        return place, self.noisy(place, generator)

    def noisy(self, place: Tensor, generator: torch.Generator) -> Tensor:
        """The curve at these places with noise, (..., 1)."""
        noise = self.noise * torch.randn(place.shape, generator=generator)
        return (self.curve(place) + noise).unsqueeze(-1)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw examples as the class describes."""
        place, value = self.observed()
        asked = torch.rand(count, generator=generator)
        return (
            asked,
            place.expand(count, -1),
            value.expand(count, -1, -1),
            self.noisy(asked, generator),
        )


class Smoother(nn.Module):
    """Attention of a query `norm * direction` over unit keys; the norm is learned.

    Args:
        score: of the attention.
        adaptive: if true, a small network computes a norm for each place; if false, one norm is learned
            for all places.
    """

    def __init__(self, score: str, adaptive: bool) -> None:
        super().__init__()
        self.score = score
        # Scaled dot has h^2 = sqrt(d) / norm, so this norm starts at h = 0.1.
        self.log_norm = nn.Parameter(torch.tensor(math.log(100 * math.sqrt(DIM))))
        layers = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
        self.change = layers if adaptive else None

    def norm(self, place: Tensor) -> Tensor:
        """The norm of the query at a place, (B, 1)."""
        place = place.unsqueeze(-1)
        if self.change is None:
            return self.log_norm.exp().expand_as(place)
        return (self.log_norm + self.change(2 * place - 1)).exp()

    def forward(self, asked: Tensor, place: Tensor, value: Tensor) -> Tensor:
        """Places (B,), observed places (B, n) and values (B, n, 1) to predictions (B, 1)."""
        query = self.norm(asked) * on_arc(asked)
        # Every example has the same observations, so one set of keys serves all queries.
        return regard.attention(query, on_arc(place[0]), value[0], self.score, engine="reference")


@dataclass(frozen=True)
class AdaptiveBandwidth(Claim):
    """Over unit keys scaled dot is a Gaussian kernel with h^2 = sqrt(d) / |q|: the norm sets the bandwidth."""

    id = "D2"
    statement = Text(
        "The norm of the query is an adaptive bandwidth: a longer query looks more narrowly, and "
        "learning a norm for each query beats one fixed bandwidth.",
        "查询的范数就是自适应带宽：查询越长，看得越窄；为每个查询学习范数优于固定带宽。",
    )
    criterion = Text(
        "The width of the weights over keys on a circle falls as |q|^(−1/2) (slope within 0.02), and on "
        "a curve of varying roughness a norm learned for each query has a lower error than one learned "
        "for all and than the best single norm of a grid chosen on the test itself (95% intervals of "
        "the ratios below 1, over seeds). It fails where the gain is surely below 5%.",
        "圆上各键的权重宽度按 |q|^(−1/2) 下降（斜率相差不超过 0.02）；且在粗糙度变化的曲线上，"
        "为每个查询学习的范数，其误差低于共同学习的单一范数，也低于直接在测试上挑选的网格最优单一范数"
        "（多种子比值的 95% 区间低于 1）。若改进确定低于 5%，则不成立。",
    )
    meaning = Text(
        "Do not normalise queries away where some need a sharp look and others a broad one; with a "
        "cosine score, give each query a temperature of its own instead.",
        "若有的查询需要看得窄、有的需要看得宽，就不要把查询归一化；用余弦得分时，请给每个查询各自的温度。",
    )
    caption = Text(
        "Left: root-mean-square distance of what is attended against the query's norm, beside "
        "h = d^(1/4) |q|^(−1/2). Middle: one data set and both fits. Right: error of the fixed "
        "bandwidths of a grid (band over seeds) beside the learned ones.",
        "左：被关注的键的均方根距离与查询范数的关系，及理论线 h = d^(1/4) |q|^(−1/2)。"
        "中：一组数据与两种拟合。右：网格中各固定带宽的误差（多种子区间）与学习所得结果。",
    )
    control = Text(
        "Both norms are learned from the same data with the same steps and rates to try; the one for "
        "each query comes from a small network (49 more parameters), the grid norm is even chosen on "
        "the test. Errors are against the curve without noise.",
        "两种范数用相同数据、步数与候选学习率学习；逐查询范数由一个小网络给出（多 49 个参数），"
        "网格范数甚至直接在测试上挑选。误差相对于无噪声曲线。",
    )
    seconds = (5.0, 13.0)

    curve: Curve = chirp
    score: str = "scaled_dot"
    budget: Budget = field(
        default_factory=lambda: Budget(
            steps=150, batch=32, rates=(1e-2, 3e-2, 1e-1), examples=600, held=600
        )
    )

    def measure(self, run: Run) -> Numbers:
        """Kernel widths against norms; then the errors of fixed and of learned bandwidths."""
        seeds = run.seeds(run.pick(5, 20))
        builds: dict[str, Callable[[], nn.Module]] = {
            name: partial(Smoother, self.score, name == LEARNED) for name in (FIXED, LEARNED)
        }
        task = lambda seed: Smoothing(self.curve, seed)  # noqa: E731
        trained = compete(builds, task, seeds, self.budget, run)
        grid = torch.linspace(0.02, 0.98, GRID)
        fits = {name: predictions(one, task, seeds, grid) for name, one in trained.items()}
        truth = self.curve(grid)
        error = {name: mean_square(fit, truth) for name, fit in fits.items()}
        on_grid = [mean_square(self.at_norm(norm, task, seeds, grid), truth) for norm in NORMS]
        place, value = task(seeds[0]).observed()
        return {
            "norms": list(NORMS), "width": [self.width(norm) for norm in NORMS], "error": error,
            "grid error": on_grid, "rate": {name: one.rate for name, one in trained.items()},
            "data": [place.tolist(), value.flatten().tolist()],
            "place": grid.tolist(), "truth": truth.tolist(),
            "fit": {name: fit[0].tolist() for name, fit in fits.items()},
        }  # fmt: skip

    def width(self, norm: float) -> float:
        """Root mean square distance of keys from the query's direction, weighted by attention."""
        angle = 2 * math.pi * torch.arange(20000, dtype=torch.float64) / 20000
        key = torch.stack([angle.cos(), angle.sin()], -1)
        distance = (key - key[:1]).square().sum(-1, keepdim=True)
        return float(regard.attention(norm * key[:1], key, distance, self.score).sqrt())

    def at_norm(
        self, norm: float, task: Callable[[int], Smoothing], seeds: list[int], grid: Tensor
    ) -> Tensor:
        """Predictions at one norm for all queries, (seeds, grid)."""
        rows = []
        for seed in seeds:
            place, value = task(seed).observed()
            rows.append(regard.attention(norm * on_arc(grid), on_arc(place), value, self.score))
        return torch.stack(rows).squeeze(-1)

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        slope = log_slope(*narrow(numbers))
        best = [min(column) for column in zip(*numbers["grid error"], strict=True)]
        learned = numbers["error"][LEARNED]
        against = ratio(learned, numbers["error"][FIXED])
        against_best = ratio(learned, best)
        facts = (
            Fact(Text("slope of log width over log norm", "log 宽度对 log 范数的斜率"), *slope),
            Fact(Text("error per query / learned fixed", "逐查询误差 / 学习的固定带宽误差"), *against),
            Fact(Text("error per query / best fixed on the test", "逐查询误差 / 测试上最优固定带宽误差"),
                 *against_best),
        )  # fmt: skip
        if abs(slope.value + 0.5) > TOLERANCE:
            because = Text(
                f"The width goes as the norm to the power {slope.value:.2f}, not −1/2.",
                f"宽度随范数的 {slope.value:.2f} 次方变化，不是 −1/2。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        gain, gain_best = (f"{100 * (1 - x):.0f}%" for x in (against.value, against_best.value))
        if against.below(1) and against_best.below(1):
            because = Text(
                f"The width follows |q|^(−1/2); a norm for each query lowers the error by {gain}, and by "
                f"{gain_best} against the best fixed one.",
                f"宽度遵循 |q|^(−1/2)；逐查询的范数使误差降低 {gain}，与最优固定带宽相比降低 {gain_best}。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        if against.low > LITTLE or against_best.low > LITTLE:
            because = Text(
                "The width follows |q|^(−1/2), but a norm for each query gains at most 5% here.",
                "宽度遵循 |q|^(−1/2)，但在这里逐查询范数的改进至多 5%。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        because = Text(
            "The width follows |q|^(−1/2); whether a norm for each query wins takes more seeds than "
            f"{len(learned)}.",
            f"宽度遵循 |q|^(−1/2)；逐查询范数是否更好，需要多于 {len(learned)} 个种子。",
        )
        return Judgement(ClaimVerdict.UNDECIDED, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Width against norm, the fits, the errors."""
        left, middle, right = canvas.panels(3, wide=3.7, high=3.2)
        norms = numbers["norms"]
        theory = [DIM**0.25 * norm**-0.5 for norm in norms]
        canvas.line(left, norms, theory, label=Text("theory", "理论"), marker="", ls="--")
        canvas.line(left, norms, numbers["width"], "scaled dot", lw=0,
                    label=Text("measured", "测量"))  # fmt: skip
        left.set_xscale("log", base=2)
        left.set_yscale("log")
        canvas.label(left, Text("norm of the query", "查询的范数"),
                     Text("effective bandwidth", "有效带宽"))  # fmt: skip
        canvas.legend(left)
        draw_fits(numbers, canvas, middle)
        draw_errors(numbers, canvas, right)


def predictions(
    trained: Trained, task: Callable[[int], Smoothing], seeds: list[int], grid: Tensor
) -> Tensor:
    """Predictions of each seed's model from its own observations, (seeds, grid)."""
    rows = []
    for number, seed in enumerate(seeds):
        place, value = task(seed).observed()
        inputs = (grid, place.expand(len(grid), -1), value.expand(len(grid), -1, -1))
        with torch.no_grad():
            rows.append(functional_call(trained.model, trained.member(number), inputs).squeeze(-1))
    return torch.stack(rows)


def mean_square(fit: Tensor, truth: Tensor) -> list[float]:
    """The mean squared error of each seed."""
    return (fit - truth).square().mean(-1).tolist()


def narrow(numbers: Numbers) -> tuple[list[float], list[float]]:
    """Norms, and the widths at these norms, for which the kernel is narrower than the circle."""
    pairs = [(n, w) for n, w in zip(numbers["norms"], numbers["width"], strict=True) if n >= NARROW]
    return [n for n, _ in pairs], [w for _, w in pairs]


def draw_fits(numbers: Numbers, canvas: Canvas, axes: Axes) -> None:
    """One data set with both fits."""
    axes.plot(*numbers["data"], ".", color="#777777", ms=2.5, alpha=0.5)
    place = numbers["place"]
    axes.plot(place, numbers["truth"], color="#444444", ls="--", lw=1.1, label=canvas.say(
        Text("curve", "真实曲线")))  # fmt: skip
    for name, ink, label in (
        (FIXED, BLUE, Text("one norm", "单一范数")),
        (LEARNED, ORANGE, Text("a norm for each query", "逐查询范数")),
    ):
        axes.plot(place, numbers["fit"][name], color=ink, lw=1.6, label=canvas.say(label))
    axes.set_ylim(-2.1, 3.4)
    canvas.label(axes, Text("place (fraction of the arc)", "位置（弧长比例）"), Text("value", "值"))
    canvas.legend(axes, loc="upper left")


def draw_errors(numbers: Numbers, canvas: Canvas, axes: Axes) -> None:
    """The errors of all fixed norms and of the learned ones."""
    found = [mean(row) for row in numbers["grid error"]]
    pairs = [(n, one) for n, one in zip(numbers["norms"], found, strict=True) if n >= NARROW]
    canvas.line(
        axes, [n for n, _ in pairs], [one.value for _, one in pairs], "scaled dot",
        low=[one.low for _, one in pairs], high=[one.high for _, one in pairs],
        label=Text("fixed norm, grid", "固定范数（网格）"),
    )  # fmt: skip
    learned = mean(numbers["error"][LEARNED])
    axes.axhspan(learned.low, learned.high, color=ORANGE, alpha=0.25, lw=0)
    axes.axhline(learned.value, color=ORANGE, lw=1.8, label=canvas.say(
        Text("a norm for each query", "逐查询范数")))  # fmt: skip
    canvas.bar_line(axes, mean(numbers["error"][FIXED]).value,
                    Text("one norm, learned", "单一范数（学习）"))  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    canvas.label(axes, Text("norm of all queries", "所有查询的范数"),
                 Text("mean squared error", "均方误差"))  # fmt: skip
    canvas.legend(axes)
