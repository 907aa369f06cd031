"""A5: the hard limit is brittle, the soft one smooth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import regard
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.figures.canvas import BLUE, GREEN, ORANGE, Canvas
from regard.measuring.statistics import log_slope
from regard.text import Text

JUMP = 0.99  # fraction of the distance between the values that counts as a jump
CLOSE = 0.01  # allowed relative deviation of the Lipschitz constant from the theory
STRAIGHT = 0.01  # allowed deviation of the exponent from -1
INKS = (ORANGE, GREEN, BLUE)
DIM = 8


@dataclass(frozen=True)
class HardIsBrittle(Claim):
    """Two keys whose scores differ by m: how far the output moves when m crosses 0.

    Soft: the output lies at the fraction sigma(m / T) of the way from one value to the other; its
    steepest slope, at m = 0, is 1 / (4 T). Hard: any change across 0, however small, moves it all the way.
    """

    id = "A5"
    statement = Text(
        "Hard (argmax) attention is brittle: a tiny change of a score flips it. Soft attention moves "
        "in proportion.",
        "硬（argmax）注意力很脆弱：分数的微小变化就会使它翻转。软注意力则按比例移动。",
    )
    criterion = Text(
        "When two tied scores change by 1e-12, the hard output moves at least 99% of the way from one "
        "value to the other. The soft output never moves more than change/(4T) of the way (to 1%); its largest "
        "slope is within 1% of 1/(4T), with an exponent in T within 0.01 of -1.",
        "两个相等的分数改变 1e-12 时，硬输出至少移动两个值间距离的 99%。软输出的移动从不超过“变化/(4T)”（误差 1%）；"
        "其最大斜率与 1/(4T) 相差不超过 1%，对 T 的指数与 -1 相差不超过 0.01。",
    )
    meaning = Text(
        "Sharpness is bought with sensitivity: at temperature T noise of size e in the scores moves the "
        "output by up to e/(4T). Train soft; harden only at the end, and only where gaps are larger "
        "than the noise.",
        "尖锐以敏感为代价：温度为 T 时，大小为 e 的分数噪声最多使输出移动 e/(4T)。训练时用软的；"
        "只在最后、且分差大于噪声时才变硬。",
    )
    caption = Text(
        "Left: where the output lies between two values, against the difference of their scores. "
        "Middle: how far it moves when a tie is broken by a change of this size; whiskers would be "
        "smaller than the marks. Right: the largest slope against T, with the theory.",
        "左：输出在两个值之间的位置，随分差变化。中：以这样大小的变化打破平局时输出的移动（误差小于标记）。"
        "右：最大斜率随 T 的变化及理论值。",
    )
    control = Text(
        "The same keys and values for hard and soft; theory: 1/(4T).",
        "硬与软使用相同的键和值；理论：1/(4T)。",
    )
    seconds = (0.5, 0.5)

    hard: float = 0.0  # the temperature of the hard limit
    temperatures: tuple[float, ...] = (0.03, 0.3, 3.0)
    changes: tuple[float, ...] = tuple(10.0**-power for power in range(13))

    def measure(self, run: Run) -> Numbers:
        """Position of the output, its movement across a tie, and its steepest slope."""
        trials = run.pick(32, 256)
        generator = run.generator("A5")
        value = torch.randn(trials, 2, DIM, generator=generator, dtype=torch.float64)
        margins = torch.linspace(-2, 2, 81, dtype=torch.float64)
        place: Numbers = {}
        moved: Numbers = {}
        for temperature in run.steps((self.hard, *self.temperatures)):
            name = f"{temperature:g}"
            # The hard curve is ambiguous at m = 0 alone, where either value is right.
            place[name] = shares(margins, value, temperature).mean(-1).tolist()
            halves = torch.tensor(self.changes, dtype=torch.float64) / 2
            way = shares(halves, value, temperature) - shares(-halves, value, temperature)
            moved[name] = {"least": way.amin(-1).tolist(), "most": way.amax(-1).tolist()}
        return {
            "hard": f"{self.hard:g}", "temperatures": list(self.temperatures),
            "changes": list(self.changes), "margins": margins.tolist(), "place": place,
            "moved": moved, "slopes": [steepest(value, t) for t in self.temperatures], "trials": trials,
        }  # fmt: skip

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        temperatures, slopes, changes = (
            numbers[key] for key in ("temperatures", "slopes", "changes")
        )
        jump = numbers["moved"][numbers["hard"]]["least"][-1]
        exponent = log_slope(temperatures, slopes)
        off = max(abs(4 * t * slope - 1) for t, slope in zip(temperatures, slopes, strict=True))
        ahead = max(
            way * 4 * t / change
            for t in temperatures
            for way, change in zip(numbers["moved"][f"{t:g}"]["most"], changes, strict=True)
        )
        facts = (
            Fact(
                Text(f"hard output moves for a change of {changes[-1]:.0e}",
                     f"分数变化 {changes[-1]:.0e} 时硬输出的移动"),
                100 * jump, unit="%",
            ),
            Fact(Text("soft: movement over change/(4T), at most", "软：移动与“变化/(4T)”之比的最大值"), ahead),
            Fact(Text("exponent of the slope in T", "斜率对 T 的指数"), *exponent),
        )  # fmt: skip
        if jump < JUMP:
            because = Text(
                f"The hard output moved only {jump:.2g} of the way: it did not flip.",
                f"硬输出只移动了距离的 {jump:.2g}：没有翻转。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        if ahead > 1 + CLOSE or off > CLOSE or abs(exponent.value + 1) > STRAIGHT:
            because = Text(
                f"The soft output does not follow 1/(4T): the slope is off by {off:.0%}.",
                f"软输出不服从 1/(4T)：斜率相差 {off:.0%}。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        because = Text(
            f"A change of {changes[-1]:.0e} moves the hard output the whole way; the soft one moves at "
            f"most change/(4T), and its slope follows T to the power {exponent.value:.3f}.",
            f"{changes[-1]:.0e} 的变化使硬输出走完全程；软输出最多移动“变化/(4T)”，斜率服从 T 的 "
            f"{exponent.value:.3f} 次幂。",
        )
        return Judgement(ClaimVerdict.HOLDS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Place, movement, slope."""
        place, moved, steep = canvas.panels(3, 3.6, 3.2)
        hard = Text("hard", "硬")
        named = {numbers["hard"]: ("#444444", hard)}
        for ink, t in zip(INKS, numbers["temperatures"], strict=False):
            named[f"{t:g}"] = (ink, Text(f"T = {t:g}", f"T = {t:g}"))
        for name, (ink, label) in named.items():
            line, way = numbers["place"][name], numbers["moved"][name]["most"]
            canvas.line(place, numbers["margins"], line, label=label, color=ink, marker="")
            canvas.line(moved, numbers["changes"], way, label=label, color=ink, marker="o")
        canvas.label(
            place, Text("difference of the two scores", "两个分数之差"),
            Text("place between the values (share)", "在两值之间的位置（比例）"),
            Text("output", "输出"),
        )  # fmt: skip
        canvas.legend(place, loc="upper left")
        for axes in (moved, steep):
            axes.set_xscale("log")
            axes.set_yscale("log")
        canvas.label(
            moved, Text("change of score", "分数的变化"), Text("movement (share of the way)", "移动（占全程的比例）"),
            Text("a tie is broken", "打破平局"),
        )  # fmt: skip
        temperatures = numbers["temperatures"]
        theory = [1 / (4 * t) for t in temperatures]
        canvas.line(
            steep,
            temperatures,
            theory,
            label=Text("theory: 1/(4T)", "理论：1/(4T)"),
            marker="",
            ls="--",
        )
        canvas.line(
            steep, temperatures, numbers["slopes"], label=Text("measured", "测量"), color=BLUE,
            marker="o", lw=0,
        )  # fmt: skip
        canvas.label(
            steep, Text("temperature T", "温度 T"), Text("largest slope (share / score)", "最大斜率（比例 / 分数）"),
            Text("Lipschitz constant", "利普希茨常数"),
        )  # fmt: skip
        canvas.legend(steep)


def shares(margins: Tensor, value: Tensor, temperature: float) -> Tensor:
    """Position of the output between the second value (0) and the first (1): (margins, trials).

    The query is the number 1 and the keys are numbers, so the dot scores are the keys, m / 2 and -m / 2.
    """
    key = torch.stack([margins, -margins], -1).view(-1, 1, 2, 1) / 2
    key = key.expand(-1, len(value), -1, -1)
    output = regard.attention(
        torch.ones_like(key[..., :1, :]), key, value.expand(len(margins), -1, -1, -1), "dot",
        temperature=temperature,
    ).squeeze(-2)  # fmt: skip
    first, second = value.unbind(-2)
    way = first - second
    return ((output - second) * way).sum(-1) / way.square().sum(-1)


def steepest(value: Tensor, temperature: float) -> float:
    """The largest slope of the output's position against the score difference, by autograd."""
    margins = (torch.linspace(-4, 4, 81, dtype=torch.float64) * temperature).requires_grad_()
    (slope,) = torch.autograd.grad(shares(margins, value[:1], temperature).sum(), margins)
    return float(slope.max())
