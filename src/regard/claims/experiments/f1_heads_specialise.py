"""F1: heads specialise in separate subspaces, tested on synthetic feature spaces."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.heads import SCORES, HeadedReader, MakeScore, members, sensitivity
from regard.claims.tools.learning import Budget, train
from regard.figures.canvas import LOOKS, WORDS, Canvas
from regard.measuring.statistics import Estimate, difference, mean
from regard.synthetic.criteria import Criteria
from regard.text import Text

HEADS = 2
TASK = Criteria()
QUICK = Budget(steps=250, rates=(1e-2, 3e-2), held=512)
FULL = Budget(steps=1000, rates=(3e-3, 1e-2, 3e-2), held=1024)
# Heads count as specialised from this separation on. 0 means equal heads, 1 a separate space for each.
BAR = 0.8
TASKS = {
    "apart": Text("two questions,\none for each space", "两个问题，\n每个空间一个"),
    "together": Text("one question\nto both spaces", "一个问题，\n同时用两个空间"),
}


@dataclass(frozen=True)
class HeadsSpecialise(Claim):
    """Two heads and two orthogonal, randomly rotated spaces: which space moves the scores of which head?

    Let p_h be the fraction of head h's squared score gradient that lies in the first space. The
    separation is |p_1 - p_2|.
    """

    id = "F1"
    statement = Text(
        "The heads of attention specialise in separate subspaces.",
        "注意力的各个头会专门负责不同的子空间。",
    )
    criterion = Text(
        "After training, the separation |p₁ - p₂| of two heads (p: share of a head's sensitivity that "
        "lies in the first of two orthogonal spaces) is surely above 0.8 for both scores, whether the "
        "task asks each space a question of its own or both one question. With conditions: only "
        "where there are two questions.",
        "训练后，两个头的分离度 |p₁ - p₂|（p 为该头的灵敏度落在两个正交空间中第一个的比例）对两种打分都确定高于 "
        "0.8，无论任务是对每个空间各提一个问题，还是对两个空间共提一个问题。附条件成立：仅在有两个问题时如此。",
    )
    meaning = Text(
        "Heads divide the work when the task has work to divide; more heads than questions need not "
        "specialise. This is measured on made-up feature spaces, not on a model of real text.",
        "任务可分工时，各头才会分工；头数多于问题数时不必然专门化。这是在人工构造的特征空间上测得的，而非真实文本的模型。",
    )
    caption = Text(
        "Left: separation of the two heads before and after training, for each seed (points) and the "
        "mean with its 95% interval. Right: share of each head's sensitivity in space 1; heads "
        "ordered by it.",
        "左：训练前后两个头的分离度，点为各随机种子，条为均值及其 95% 区间。右：各头灵敏度落在空间 1 的比例，"
        "按此排序。",
    )
    control = Text(
        "The same models before training; the same heads, width, data, steps and learning rates to "
        "try on a task with one question. Every seed turns the spaces anew, so that no axis gives "
        "them away.",
        "训练前的同一模型；以及在只有一个问题的任务上，头数、宽度、数据、步数、可选学习率均相同的模型。"
        "每个种子重新旋转空间，坐标轴不会泄露答案。",
    )
    seconds = (10.0, 90.0)

    task: Criteria = TASK
    scores: dict[str, MakeScore] = field(default_factory=lambda: dict(SCORES))
    width: int = 32
    quick: Budget = QUICK
    full: Budget = FULL

    def measure(self, run: Run) -> Numbers:
        """Fractions of sensitivity in the first space (seeds x heads), before and after training."""
        jobs = [(name, asked) for name in self.scores for asked in TASKS]
        numbers: Numbers = {name: {} for name in self.scores}
        for number, (name, asked) in enumerate(jobs):
            task = replace(self.task, together=self.task.together or asked == "together")
            part = run.within(number, len(jobs))
            numbers[name][asked] = self.shares(self.scores[name], task, run, part)
        return numbers

    def shares(self, make: MakeScore, task: Criteria, run: Run, part: Run) -> Numbers:
        """Fractions in the first space for one score on one task, heads sorted in rising order."""
        seeds = run.seeds(run.pick(4, 10))

        def build() -> HeadedReader:
            return HeadedReader(make(HEADS, task.spaces * task.dim, self.width), task)

        budget = run.pick(self.quick, self.full)
        trained = train(build, lambda seed: replace(task, world=seed), seeds, budget, part)
        before, after = [], []
        for seed, model in zip(seeds, members(trained), strict=True):
            torch.manual_seed(seed)
            world = replace(task, world=seed)
            query, key, _, _ = world.sample(256, run.generator("F1", seed))
            for found, one in ((before, build()), (after, model)):
                shares = sensitivity(one, query, key, world.bases())
                found.append(sorted(shares[:, 0].tolist()))
        return {
            "before": before, "after": after, "accuracy": trained.quality,
            "rate": trained.rate, "parameters": trained.parameters,
        }  # fmt: skip

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        found = {asked: [apart(one[asked]["after"]) for one in numbers.values()] for asked in TASKS}
        worst = {asked: min(each, key=lambda x: x.value) for asked, each in found.items()}
        grown = min(
            (
                difference(gaps(one["apart"]["after"]), gaps(one["apart"]["before"]))
                for one in numbers.values()
            ),
            key=lambda x: x.value,
        )
        facts = (
            Fact(Text("separation, two questions", "分离度，两个问题"), *worst["apart"]),
            Fact(Text("separation, one question", "分离度，一个问题"), *worst["together"]),
            Fact(Text("separation gained by training", "训练带来的分离度"), *grown),
        )
        words = Text(
            f"Separation (of the worse score) {worst['apart'].value:.2f} with two questions, "
            f"{worst['together'].value:.2f} with one.",
            f"（较差的打分的）分离度：两个问题时 {worst['apart'].value:.2f}，"
            f"一个问题时 {worst['together'].value:.2f}。",
        )
        if all(x.above(BAR) for x in found["apart"]):
            if all(x.above(BAR) for x in found["together"]):
                return Judgement(ClaimVerdict.HOLDS, words, facts)
            if any(x.below(BAR) for x in found["together"]):
                because = Text(
                    f"Only where the task asks each space a question of its own. {words.en}",
                    f"仅当任务对每个空间各提一个问题时成立。{words.zh}",
                )
                return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        if any(x.below(BAR) for x in found["apart"]):
            return Judgement(ClaimVerdict.FAILS, words, facts)
        because = Text(
            f"{words.en} The interval reaches across {BAR}: more seeds are needed.",
            f"{words.zh}区间跨过 {BAR}：需要更多随机种子。",
        )
        return Judgement(ClaimVerdict.UNDECIDED, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Separation before and after training, and the fractions of both heads."""
        left, right = canvas.panels(2, high=3.4)
        places = [Text("before", "训练前"), *TASKS.values()]
        for number, (name, one) in enumerate(numbers.items()):
            ink, mark = LOOKS[name]
            shift = 0.24 * (number - (len(numbers) - 1) / 2)
            groups = [one["apart"]["before"], *(one[asked]["after"] for asked in TASKS)]
            for place, shares in enumerate(groups):
                x, each = place + shift, apart(shares)
                left.plot([x - 0.06] * len(shares), gaps(shares), ".", color=ink, alpha=0.5)
                whisker = [[each.value - each.low], [each.high - each.value]]
                label = canvas.say(WORDS[name]) if place == 0 else None
                left.errorbar(
                    x, each.value, whisker, fmt=mark, color=ink, ms=5, capsize=3, label=label
                )
                for head, low_to_high in enumerate(zip(*shares, strict=True)):
                    spot = [place + shift + 0.1 * (head - 0.5)] * len(low_to_high)
                    filled = ink if head else "white"
                    right.plot(spot, low_to_high, mark, color=ink, mfc=filled, ms=4)
        canvas.bar_line(left, BAR, Text("bar", "界线"))
        titles = (Text("separation of two heads", "两个头的分离度"), Text("each head", "每个头"))
        heights = (
            Text("separation |p₁ - p₂|", "分离度 |p₁ - p₂|"),
            Text("share of sensitivity in space 1", "灵敏度落在空间 1 的比例"),
        )
        for axes, title, height in zip((left, right), titles, heights, strict=True):
            axes.set_xticks(range(3), [canvas.say(place) for place in places], fontsize=8)
            axes.set_ylim(-0.03, 1.05)
            canvas.label(axes, "", height, title)
        handles, labels = left.get_legend_handles_labels()
        canvas.figure.legend(
            handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8
        )


def gaps(shares: list[list[float]]) -> list[float]:
    """Separation of the two heads for each seed."""
    return [abs(second - first) for first, second in shares]


def apart(shares: list[list[float]]) -> Estimate:
    """Mean separation over seeds."""
    return mean(gaps(shares))
