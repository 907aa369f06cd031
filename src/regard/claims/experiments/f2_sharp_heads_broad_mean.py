"""F2: many sharp heads make a broad average."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from torch import Tensor

from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.heads import SCORES, HeadedReader, MakeScore, members
from regard.claims.tools.learning import Budget, train
from regard.figures.canvas import LOOKS, WORDS, Canvas
from regard.measuring.statistics import Estimate, bands, difference, mean
from regard.synthetic.criteria import Criteria
from regard.text import Text

# A head is sharp with at most SHARP effective keys (of 8). The mean is broad with at least BROAD times as
# many. Several heads are better with at least GAIN more accuracy.
SHARP, BROAD, GAIN = 2.0, 2.0, 0.1
COUNTS = (1, 2, 4)
TASK = Criteria(spaces=4)
QUICK = Budget(steps=350, rates=(1e-2, 3e-2), held=512)
FULL = Budget(steps=2000, rates=(3e-3, 1e-2, 3e-2), held=1024)


@dataclass(frozen=True)
class SharpHeadsBroadMean(Claim):
    """Effective keys, exp(entropy), of each head and of the mean of the heads, and the gain from more heads.

    exp(H(mean)) / exp(mean H) = exp(Jensen-Shannon divergence) lies between 1 and the number of heads.
    """

    id = "F2"
    statement = Text(
        "Many sharp heads make a broad average, and do what one head of the same size cannot.",
        "许多尖锐的头合成宽广的平均，并能做到同样大小的单个头做不到的事。",
    )
    criterion = Text(
        "On a task with 4 criteria, 4 heads each see at most 2 effective keys (exp of entropy) while "
        "their mean sees at least 2 times as many, and 4 heads beat one head of equal parameters by "
        "more than 0.1 of accuracy; each with its whole 95% interval over seeds, with scaled dot and with "
        "additive (a quick run has time for the first only, and does not decide). With conditions: "
        "one of the two halves only, or some of the scores only.",
        "在有 4 个准则的任务上，4 个头各自的有效键数（熵的指数）不超过 2，而其平均至少是 2 倍；且 4 个头的准确率比"
        "同参数量的单头高出 0.1 以上；均以各随机种子的整个 95% 区间为准，缩放点积与加性都如此（快速运行只来得及测前者，不作判定）。附条件成立：只有其中一半成立，或只对部分打分成立。",
    )
    meaning = Text(
        "Give a layer at least as many heads as it has things to look for at once; one wide head has "
        "to compromise.",
        "一层要同时查找多少样东西，就至少给它多少个头；一个宽头只能折中。",
    )
    caption = Text(
        "Left: effective keys of a head and of the mean of all heads, after training with 4 heads. "
        "Right: accuracy against heads at equal parameters. Whiskers and bands: 95% over seeds. "
        "Dashed: the most the maths allows, heads × a head's keys.",
        "左：4 头模型训练后，单个头与各头平均的有效键数。右：参数量相同时准确率随头数的变化。误差线和色带为各种子的 "
        "95% 区间。虚线：数学上限，即头数 × 单头有效键数。",
    )
    control = Text(
        "Equal parameters: heads share one total width of projections and values. Same data, steps "
        "and learning rates to try. The heads agree in a second task, where all criteria point to "
        "one key: there the mean must stay sharp.",
        "参数量相同：各头分享同一总宽度的投影和值。数据、步数、可选学习率均相同。另有一个所有准则指向同一个键的对照任务，"
        "那里各头一致，平均应保持尖锐。",
    )
    seconds = (10.0, 180.0)

    task: Criteria = TASK
    scores: dict[str, MakeScore] = field(default_factory=lambda: dict(SCORES))
    width: int = 16
    quick: Budget = QUICK
    full: Budget = FULL

    def measure(self, run: Run) -> Numbers:
        """Accuracy for each number of heads, and effective keys at the largest number."""
        chosen = list(self.scores)[: run.pick(1, len(self.scores))]
        jobs = [(name, count, False) for name in chosen for count in COUNTS]
        jobs += [(name, COUNTS[-1], True) for name in chosen]
        numbers: Numbers = {name: {"accuracy": [], "parameters": []} for name in chosen}
        for number, (name, heads, agree) in enumerate(jobs):
            task = replace(self.task, together=self.task.together or agree)
            trained, keys = self.trained(name, heads, task, run, run.within(number, len(jobs)))
            if agree:
                numbers[name]["agreeing"] = keys
            else:
                numbers[name]["accuracy"].append(trained.quality)
                numbers[name]["parameters"].append(trained.parameters)
                numbers[name]["apart"] = keys
        untried = [name for name in self.scores if name not in chosen]
        return {
            "heads": list(COUNTS), "keys": self.task.keys, "scores": numbers, "untried": untried,
        }  # fmt: skip

    def trained(self, name: str, heads: int, task: Criteria, run: Run, part: Run) -> tuple:
        """Train one competitor; also return effective keys of a head and of the mean for each seed."""
        budget = run.pick(self.quick, self.full)
        seeds = run.seeds(run.pick(4, 8))
        dim = task.spaces * task.dim
        build = lambda: HeadedReader(self.scores[name](heads, dim, self.width), task)  # noqa: E731
        found = train(build, lambda seed: replace(task, world=seed), seeds, budget, part)
        keys = {"head": [], "mean": []}
        for seed, model in zip(seeds, members(found), strict=True):
            query, key, _, _ = replace(task, world=seed).sample(256, run.generator("F2", seed))
            weights = model.weights(query, key).detach().double()
            keys["head"].append(math.exp(float(entropy(weights).mean())))
            keys["mean"].append(math.exp(float(entropy(weights.mean(1)).mean())))
        return found, keys

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        scores = numbers["scores"]
        halves = {name: (self.broad(one), self.better(one)) for name, one in scores.items()}
        # The facts are those of the score whose mean is least broad.
        name, first = min(scores.items(), key=lambda one: spread(one[1]["apart"])[1].value)
        _, ratio = spread(first["apart"])
        _, agreeing = spread(first["agreeing"])
        gain = difference(first["accuracy"][-1], first["accuracy"][0])
        facts = (
            Fact(
                Text("effective keys of a head", "单个头的有效键数"), *mean(first["apart"]["head"])
            ),
            Fact(Text("mean of heads over one head", "各头平均比单个头"), *ratio, "×"),
            Fact(Text("the same where heads agree", "各头一致时的同一比值"), *agreeing, "×"),
            Fact(Text("accuracy of 4 heads over 1", "4 头比 1 头的准确率增量"), *gain),
        )
        untried = [WORDS[name] for name in numbers.get("untried", [])]
        more = Text(
            "".join(f" Only a full run tries {x.en}." for x in untried),
            "".join(f"{x.zh}只在完整运行中测试。" for x in untried),
        )
        because = Text(
            f"With {WORDS[name].en} the mean of 4 heads sees {ratio.value:.1f} times the keys of one, and "
            f"4 heads gain {gain.value:.2f} of accuracy over 1.{more.en}",
            f"用{WORDS[name].zh}时，4 个头的平均看到的键是单个头的 {ratio.value:.1f} 倍；4 头比 1 头的准确率高 "
            f"{gain.value:.2f}。{more.zh}",
        )
        flat = [half for pair in halves.values() for half in pair]
        if all(half is True for half in flat):
            verdict = ClaimVerdict.UNDECIDED if untried else ClaimVerdict.HOLDS
            return Judgement(verdict, because, facts)
        if any(half is None for half in flat):
            unsure = Text(
                f"{because.en} An interval reaches across its bar: more seeds or steps are needed.",
                f"{because.zh}有区间跨过界线：需要更多种子或步数。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, unsure, facts)
        if any(flat):
            lines = [
                (WORDS[n].en, WORDS[n].zh, "yes" if b else "no", "yes" if g else "no")
                for n, (b, g) in halves.items()
            ]
            condition = Text(
                "; ".join(f"{en}: broad mean {b}, better {g}" for en, _, b, g in lines),
                "；".join(
                    f"{zh}：平均宽广{'是' if b == 'yes' else '否'}，更好{'是' if g == 'yes' else '否'}"
                    for _, zh, b, g in lines
                ),
            )
            return Judgement(
                ClaimVerdict.CONDITIONS,
                Text(f"{because.en} {condition.en}.", f"{because.zh}{condition.zh}。"),
                facts,
            )
        return Judgement(ClaimVerdict.FAILS, because, facts)

    def broad(self, one: Numbers) -> bool | None:
        """Whether heads are sharp and their mean is broad; None if the intervals leave it open."""
        head, ratio = spread(one["apart"])
        if head.above(SHARP) or ratio.below(BROAD):
            return False
        return True if head.below(SHARP) and ratio.above(BROAD) else None

    def better(self, one: Numbers) -> bool | None:
        """Whether several heads beat one; None if the interval leaves it open."""
        gain = difference(one["accuracy"][-1], one["accuracy"][0])
        if gain.below(GAIN):
            return False
        return True if gain.above(GAIN) else None

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Effective keys, and accuracy against heads."""
        left, right = canvas.panels(2)
        labels, values, colors = [], [], []
        for name, one in numbers["scores"].items():
            for part, word in (("apart", Text("criteria differ", "准则不同")),
                               ("agreeing", Text("criteria agree", "准则一致"))):  # fmt: skip
                for kind, what in (
                    ("head", Text("a head", "单头")),
                    ("mean", Text("mean", "平均")),
                ):
                    labels.append(Text(f"{what.en}\n{word.en}", f"{what.zh}\n{word.zh}"))
                    values.append(mean(one[part][kind]))
                    colors.append(LOOKS[name][0])
        whiskers = ([x.low for x in values], [x.high for x in values])
        canvas.bars(left, labels, [x.value for x in values], errors=whiskers, colors=colors)
        for place in range(0, len(values), 2):
            most = min(numbers["heads"][-1] * values[place].value, numbers["keys"])
            left.plot([place + 0.6, place + 1.4], [most, most], color="#444444", ls=(0, (4, 3)))
        left.tick_params(axis="x", labelsize=7.5 if len(values) < 5 else 5)
        canvas.label(
            left,
            "",
            Text("effective keys", "有效键数"),
            Text("one head and the mean", "单头与平均"),
        )
        for name, one in numbers["scores"].items():
            middle, low, high = bands(one["accuracy"])
            canvas.line(right, numbers["heads"], middle, name, low=low, high=high)
        right.set_xticks(numbers["heads"])
        right.set_ylim(0, 1.05)
        heads = Text("heads, at equal parameters", "头数（参数量相同）")
        canvas.label(right, heads, Text("accuracy", "准确率"), Text("4 criteria", "4 个准则"))
        canvas.legend(right, loc="lower right")


def entropy(weights: Tensor) -> Tensor:
    """Entropy in nats over the last dim."""
    return -(weights * weights.clamp(min=1e-300).log()).sum(-1)


def spread(keys: dict[str, list[float]]) -> tuple[Estimate, Estimate]:
    """Effective keys of a head, and the ratio of the mean's effective keys to them."""
    ratio = [broad / sharp for broad, sharp in zip(keys["mean"], keys["head"], strict=True)]
    return mean(keys["head"]), mean(ratio)
