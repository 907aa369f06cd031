"""C8: a learned scale finds its own sharpness."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from regard import Dot
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, draw_held, train
from regard.claims.tools.models import Matcher
from regard.figures.canvas import GREY, LOOKS, Canvas
from regard.measuring.statistics import Estimate, bands, difference, mean
from regard.stabilize import Tempered
from regard.synthetic.task import ClassificationTask
from regard.text import Text

QUICK = Budget(steps=100, batch=32, rates=(0.1, 0.3))
FULL = Budget(steps=400, batch=64, rates=(0.01, 0.03, 0.1, 0.3), held=4096)
FACTORS = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3)  # starts, relative to the best temperature
SAME = 0.01  # nats: losses that differ by less count as equal
MATTERS = 0.05  # nats: least cost of a wrong temperature for the experiment to say anything
FLOOR = 1e-5  # nats: smallest excess loss that is drawn
BAD = 10.0  # a start counts as bad if it is off by this factor in either direction


@dataclass(frozen=True)
class NoisyDirection(ClassificationTask):
    """Keys are unit directions, and the query is one of them plus normal noise; find which.

    The log odds of key k are `<q, k> / noise^2`, so the best temperature of a dot product is noise^2.
    Inputs: query (B, dim), keys (B, keys, dim). Target (B,): index of the key.
    """

    noise: float
    dim: int = 8
    keys: int = 8

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw examples as the class describes."""
        key = torch.randn(count, self.keys, self.dim, generator=generator)
        key = key / key.norm(dim=-1, keepdim=True)
        right = torch.randint(self.keys, (count,), generator=generator)
        query = key[torch.arange(count), right]
        return query + self.noise * torch.randn(query.shape, generator=generator), key, right

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """The log likelihood, which unlike the accuracy depends on the temperature."""
        return -self.loss(output, target)


@dataclass(frozen=True)
class LearnedScale(Claim):
    """Trains a single parameter, log t, from starts far from the best temperature.

    Adam moves log t by about the learning rate in a step. A start is therefore within reach if log t is
    off by less than the sum of the rates over all steps.
    """

    id = "C8"
    statement = Text(
        "A learned scale finds its own sharpness, wherever it starts.",
        "可学习的缩放会自己找到合适的尖锐程度，无论从哪里开始。",
    )
    criterion = Text(
        "From starts up to 1000 times too cold or too hot, at two noise levels, the learned temperature "
        "reaches a test loss within 0.01 nats (95% interval) of the best temperature, which theory says is "
        "the noise squared; and left at a start 10 times off it costs more than 0.05 nats. Conditions: "
        "from 10 times off, but not from everywhere.",
        "在两种噪声水平下，从偏冷或偏热至多 1000 倍的初值开始，学到的温度所达到的测试损失与最佳温度（理论值为噪声的平方）"
        "的损失相差不到 0.01 nat（95% 区间）；而停留在偏离 10 倍的初值则至少多损失 0.05 nat。"
        "若只在偏离 10 倍时成立：有条件成立。",
    )
    meaning = Text(
        "Learn the temperature, as a logarithm, and start it rather too hot than too cold: from far "
        "too cold, where the softmax is saturated, it takes many more steps to arrive.",
        "让温度（以对数形式）可学习；初值宁可偏热，不可过冷：过冷时 softmax 已饱和，要多走很多步才能到达。",
    )
    caption = Text(
        "Left: test loss above that of the best temperature, left as it starts and learned, against the "
        "start. Right: the temperature found, beside noise². Whiskers and bands: 95% intervals over seeds.",
        "左：测试损失超出最佳温度的部分随初值的变化（不学习与学习）。右：学到的温度与噪声²。误差线与阴影：各种子的 95% 区间。",
    )
    control = Text(
        "Every start has the same seeds, data, steps and rates to try, and one parameter. Theory: the "
        "posterior is a softmax at temperature noise².",
        "所有初值使用相同的种子、数据、步数和候选学习率，且只有一个参数。理论：后验是温度为噪声² 的 softmax。",
    )
    seconds = (6.0, 70.0)

    noises: tuple[float, ...] = (0.35, 0.7)
    factors: tuple[float, ...] = FACTORS
    quick: Budget = QUICK
    full: Budget = FULL

    def measure(self, run: Run) -> Numbers:
        """Fixed and learned losses, the loss at the best temperature, and the temperatures found.

        Lists are nested by noise, start and seed.
        """
        seeds, budget = run.seeds(run.pick(4, 8)), run.pick(self.quick, self.full)
        found = []
        for number, noise in enumerate(self.noises):
            task, best = NoisyDirection(noise), noise**2
            part = run.within(number, len(self.noises))
            floor = [fixed_loss(task, best, seed, budget) for seed in seeds]
            own: Numbers = {"noise": noise, "floor": floor, "fixed": [], "learned": [], "found": [], "rates": []}  # fmt: skip
            for place, factor in enumerate(self.factors):
                start = best * factor
                trained = train(
                    partial(model, start),
                    task,
                    seeds,
                    budget,
                    part.within(place, len(self.factors)),
                )
                moved = trained.weights["score.log_factor"].squeeze(-1).double().exp()
                own["fixed"].append([fixed_loss(task, start, seed, budget) for seed in seeds])
                own["learned"].append(trained.loss)
                own["found"].append((start * moved).tolist())
                own["rates"].append(trained.rate)
            found.append(own)
        return {"factors": list(self.factors), "steps": budget.steps, "noises": found}

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        factors, noises = numbers["factors"], numbers["noises"]
        left = [
            worst(excess(own, "learned", place) for own in noises) for place in range(len(factors))
        ]
        reached = [factor for factor, one in zip(factors, left, strict=True) if one.below(SAME)]
        bad = {factors.index(BAD), factors.index(1 / BAD)}
        cost = min(excess(own, "fixed", place) for own in noises for place in bad)
        errors = [
            abs(mean(found).value / own["noise"] ** 2 - 1)
            for own in noises
            for factor, found in zip(factors, own["found"], strict=True)
            if factor in reached
        ]
        facts = (
            Fact(Text("largest loss above the best, learned", "学习后超出最佳损失的最大值"), *worst(left), unit="nat"),
            Fact(Text("loss above the best, 10 times off and not learned", "偏离 10 倍且不学习时超出的损失"), *cost, unit="nat"),
            Fact(Text("temperature found where it got there, off noise² by at most", "到达时学到的温度与噪声² 的最大偏差"), 100 * max(errors, default=1.0), unit="%"),
        )  # fmt: skip
        if not cost.above(MATTERS):
            because = Text("The temperature hardly matters here.", "此处温度几乎没有影响。")
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        if len(reached) == len(factors):
            because = Text(
                f"From {factors[0]:g} to {factors[-1]:g} times the best temperature: the same loss.",
                f"从最佳温度的 {factors[0]:g} 倍到 {factors[-1]:g} 倍开始，损失都相同。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        if {BAD, 1 / BAD} <= set(reached):
            listed = ", ".join(f"{factor:g}" for factor in factors if factor not in reached)
            because = Text(
                f"Within {numbers['steps']} steps, from {min(reached):g} to {max(reached):g} times the best "
                f"temperature; not surely from {listed}.",
                f"在 {numbers['steps']} 步之内，从最佳温度的 {min(reached):g} 倍到 {max(reached):g} 倍开始时成立；"
                f"从 {listed} 倍开始则不能确定。",
            )
            return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        if any(left[place].above(SAME) for place in bad):
            because = Text(
                f"A start that is {BAD:g} times off stays worse.",
                f"偏离 {BAD:g} 倍的初值仍然更差。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        because = Text(
            "An interval straddles the bar: more seeds are needed.", "区间跨过界限：需要更多种子。"
        )
        return Judgement(ClaimVerdict.UNDECIDED, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Excess loss and the temperature found, against the start."""
        left, right = canvas.panels(2)
        factors = numbers["factors"]
        ink, _ = LOOKS["dot"]
        start = Text("start, in units of noise²", "初值（以噪声² 为单位）")
        for own, mark in zip(numbers["noises"], "ovs", strict=False):
            noise = f"{own['noise']:g}"
            for kind, color, word in (
                ("fixed", GREY, Text("fixed", "不学习")),
                ("learned", ink, Text("learned", "学习")),
            ):
                found = [excess(own, kind, place) for place in range(len(factors))]
                label = Text(f"{word.en}, noise {noise}", f"{word.zh}，噪声 {noise}")
                # A logarithmic axis cannot show an excess loss of 0.
                shown = [max(one.value, FLOOR) for one in found]
                low, high = (
                    [max(one.low, FLOOR) for one in found],
                    [max(one.high, FLOOR) for one in found],
                )
                canvas.line(
                    left, factors, shown, label=label, low=low, high=high, color=color, marker=mark
                )
            middle, low, high = bands(own["found"])
            canvas.line(
                right,
                factors,
                middle,
                label=Text(f"noise {noise}", f"噪声 {noise}"),
                low=low,
                high=high,
                color=ink,
                marker=mark,
            )
            theory = {"color": "#444444", "ls": (0, (4, 3)), "lw": 1.1}
            right.axhline(own["noise"] ** 2, **theory)
        canvas.bar_line(left, SAME, Text("bar: 0.01", "界限：0.01"))
        canvas.label(
            left,
            start,
            Text("loss above the best (nats)", "超出最佳的损失（nat）"),
            Text("Loss", "损失"),
        )
        canvas.label(
            right,
            start,
            Text("temperature", "温度"),
            Text("Temperature found (dashed: noise²)", "学到的温度（虚线：噪声²）"),
        )
        canvas.legend(left, loc="upper center", ncols=2)
        left.set_ylim(FLOOR / 2, 1e7)
        canvas.legend(right, loc="center right")
        for axes in (left, right):
            axes.set_xscale("log")
            axes.set_yscale("log")


def model(start: float) -> Matcher:
    """A dot product whose only parameter is its temperature."""
    return Matcher(Tempered(Dot(), start, heads=1))


def fixed_loss(task: NoisyDirection, temperature: float, seed: int, budget: Budget) -> float:
    """The loss at a fixed temperature, on the test data of the learned one."""
    *inputs, target = draw_held(task, seed, budget)["test"]
    with torch.no_grad():
        return float(task.loss(model(temperature)(*inputs), target))


def excess(own: Numbers, kind: str, place: int) -> Estimate:
    """The loss minus that at the best temperature, paired by seed, at one start."""
    return difference(own[kind][place], own["floor"])


def worst(found: Iterable[Estimate]) -> Estimate:
    """The estimate with the largest upper end."""
    return max(found, key=lambda one: one.high)
