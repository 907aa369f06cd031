"""A1: attention is score, weigh, aggregate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import regard
from regard import Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.untrained import BUILDS, untrained
from regard.figures.canvas import BLUE, GREY, Canvas
from regard.text import Text

# (query, key, value, score) -> weights and output.
Attend = Callable[[Tensor, Tensor, Tensor, Score | str], tuple[Tensor, Tensor]]
TOLERANCE = 1e-6
MAJORITY = 0.5
DIM, QUERIES, KEYS = 8, 4, 6  # of the random problems


def in_one_call(
    query: Tensor, key: Tensor, value: Tensor, score: Score | str
) -> tuple[Tensor, Tensor]:
    """The library's attention: weights and output."""
    found = regard.attend(query, key, value, score, want={"weights"})
    assert found.weights is not None
    return found.weights, found.output


def by_hand(scores: Sequence[float], values: Sequence[float]) -> tuple[list[float], float]:
    """Weigh and aggregate one row of scores in plain Python."""
    powers = [math.exp(score) for score in scores]
    weights = [power / math.fsum(powers) for power in powers]
    return weights, math.fsum(w * v for w, v in zip(weights, values, strict=True))


def deviation(found: Tensor, expected: Sequence[float]) -> float:
    """Largest difference between a row of results and the numbers expected."""
    return float((found.double() - torch.tensor(expected, dtype=torch.float64)).abs().max())


@dataclass(frozen=True)
class ThreeSteps(Claim):
    """Compares the library with plain arithmetic: on the example q = 2, and for every score on random problems."""

    id = "A1"
    statement = Text(
        "Attention is three steps: score every key, turn scores into weights, add up the values.",
        "注意力就是三步：给每个键打分，把分数变成权重，按权重汇总值。",
    )
    criterion = Text(
        "For q = 2, k = (0.1, 0.2, 0.5), v = (1, -1, 3), scores, weights and output agree with a "
        "computation by hand to 1e-6, and so do, for each of six scores on random problems, weights and "
        "output from its scores; and the third item has more weight than the other two together.",
        "对 q = 2、k = (0.1, 0.2, 0.5)、v = (1, -1, 3)，分数、权重和输出与手工计算相差不超过 1e-6；六种打分函数的"
        "随机问题中，由其分数得到的权重和输出也是如此；且第三项的权重超过其余两项之和。",
    )
    meaning = Text(
        "Only the first step differs between mechanisms. Choosing an attention is choosing a score; "
        "weights and sums stay the same.",
        "各种注意力机制只有第一步不同。选择注意力就是选择打分函数；加权与求和都不变。",
    )
    caption = Text(
        "The example step by step: scores, weights, and what each item adds to the output. Bars are "
        "the library's; crosses are worked out by hand.",
        "示例的三个步骤：分数、权重，以及每一项对输出的贡献。柱为程序结果，叉为手工计算。",
    )
    control = Text(
        "The hand computation uses plain Python arithmetic and none of the library's code; on the random "
        "problems it starts from the library's scores.",
        "手工计算只用 Python 的普通算术，不用本库的任何代码；随机问题中从本库给出的分数开始。",
    )
    seconds = (0.5, 0.5)

    attend: Attend = in_one_call
    query: float = 2.0
    keys: tuple[float, ...] = (0.1, 0.2, 0.5)
    values: tuple[float, ...] = (1.0, -1.0, 3.0)
    scores: tuple[str, ...] = tuple(BUILDS)

    def measure(self, run: Run) -> Numbers:
        """The example, then every score."""
        found = self.example()
        others = {name: self.deviation_of(name, run) for name in run.steps(self.scores)}
        return found | {"deviation by score": others}

    def example(self) -> Numbers:
        """The example of the criterion: one query, three keys."""
        column = lambda row: torch.tensor(row, dtype=torch.float64).unsqueeze(-1)  # noqa: E731
        query, key, value = column([self.query]), column(self.keys), column(self.values)
        scores = regard.score(query, key, "dot").squeeze(0)
        weights, output = (x.squeeze(0) for x in self.attend(query, key, value, "dot"))
        expected = [self.query * key for key in self.keys]
        expected_weights, expected_output = by_hand(expected, self.values)
        return {
            "scores": scores.tolist(),
            "weights": weights.tolist(),
            "output": output.item(),
            "values": list(self.values),
            "scores by hand": expected,
            "weights by hand": expected_weights,
            "output by hand": expected_output,
            "deviation": max(
                deviation(scores, expected),
                deviation(weights, expected_weights),
                deviation(output, [expected_output]),
            ),
        }

    def deviation_of(self, name: str, run: Run) -> float:
        """Largest deviation of weights and output from a hand computation that starts at the score's logits."""
        generator = run.generator("A1", name)
        sizes = ((QUERIES, DIM), (KEYS, DIM), (KEYS, 1))
        query, key, value = (
            torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes
        )
        score = untrained(name, DIM, generator)
        weights, output = self.attend(query, key, value, score)
        rows = regard.score(query, key, score).tolist()
        expected = [by_hand(row, value.squeeze(-1).tolist()) for row in rows]
        return max(
            max(deviation(w, hand[0]), deviation(o, [hand[1]]))
            for w, o, hand in zip(weights, output, expected, strict=True)
        )

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        worst = max(numbers["deviation"], *numbers["deviation by score"].values())
        third = numbers["weights"][2]
        facts = (
            Fact(
                Text("largest deviation from the hand computation", "与手工计算的最大偏差"), worst
            ),
            Fact(Text("weight of the third item", "第三项的权重"), third),
            Fact(Text("output", "输出"), numbers["output"]),
        )
        if worst > TOLERANCE:
            because = Text(
                f"Score, weigh, aggregate by hand gives something else: off by {worst:.2g}.",
                f"手工三步的结果不同：相差 {worst:.2g}。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        if third <= MAJORITY:
            because = Text(
                f"The three steps are right, but the third item has only {third:.3f} of the weight.",
                f"三个步骤无误，但第三项的权重只有 {third:.3f}。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        because = Text(
            f"The three steps give the output {numbers['output']:.4f}; the third item has {third:.2%} of "
            f"the weight; the deviation is {worst:.1g}.",
            f"三个步骤得到输出 {numbers['output']:.4f}，第三项占权重的 {third:.2%}；偏差为 {worst:.1g}。",
        )
        return Judgement(ClaimVerdict.HOLDS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Three panels, one for each step."""
        values = numbers["values"]
        share = lambda weights: [w * v for w, v in zip(weights, values, strict=True)]  # noqa: E731
        total = Text(f"output {numbers['output']:.4f}", f"输出 {numbers['output']:.4f}")
        steps = (
            (Text("1. score", "1. 打分"), Text("q·k (no unit)", "q·k（无单位）"),
             numbers["scores"], numbers["scores by hand"]),
            (Text("2. weigh", "2. 加权"), Text("weight (sum 1)", "权重（和为 1）"),
             numbers["weights"], numbers["weights by hand"]),
            (Text(f"3. aggregate: {total.en}", f"3. 汇总：{total.zh}"),
             Text("weight × value", "权重 × 值"),
             share(numbers["weights"]), share(numbers["weights by hand"])),
        )  # fmt: skip
        names = [f"v = {value:g}" for value in values]
        for axes, (title, y, found, hand) in zip(canvas.panels(3, 3.0), steps, strict=True):
            canvas.bars(axes, names, found, colors=[GREY, GREY, BLUE])
            axes.plot(range(3), hand, "x", color="#222222", ms=7, label=canvas.say(HAND))
            axes.axhline(0, color="#888888", lw=0.8)
            canvas.label(axes, Text("item", "项"), y, title)
        canvas.legend(axes, loc="upper left")


HAND = Text("by hand", "手工计算")
