"""E3: queries and keys of different dims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import regard
from regard import Additive, Bilinear, LowRank, Projected, Score
from regard.claims.claim import Claim, Fact, Judgement, Numbers, Run, Verdict
from regard.claims.tools.learning import Budget, train
from regard.claims.tools.models import Matcher
from regard.claims.tools.outcome import percent, plain, surely
from regard.figures.canvas import WORDS, Canvas
from regard.measuring.statistics import Estimate, bands, mean
from regard.synthetic.views import Views
from regard.text import Text

WORKS = 80.0  # a score works if it reaches this percentage of the best possible accuracy
NAMES = ("bilinear", "low rank", "additive")


@dataclass(frozen=True)
class UnlikeDims(Claim):
    """The case of an edge device: it stores small keys, and the query comes from a large model."""

    id = "E3"
    statement = Text(
        "Where queries and keys differ in dimension the dot product cannot be used; bilinear, low-rank "
        "and additive scores can, down to keys an eighth as wide as the query.",
        "当查询与键维数不同时，点积无法使用；双线性、低秩和加性分数可以，键的宽度甚至可缩到查询的八分之一。",
    )
    criterion = Text(
        "Dot refuses with one error that names both dims and a score that takes them. At every key dim "
        "each of the three reaches 80% of the best possible accuracy (whole 95% interval). Some do at some "
        "dims: with conditions. None does, or dot does not refuse: does not hold.",
        "点积报出一条错误，指明两个维数以及可用的分数；在每个键维数上，三种分数都达到理论最高准确率的 80%"
        "（整个 95% 区间）。仅部分分数或部分维数达到：有条件；都未达到，或点积没有拒绝：不成立。",
    )
    meaning = Text(
        "Shrink the keys you have to store and keep the query: the model shrinks with them. Below the "
        "dims that query and key share, information is lost, whichever the score.",
        "可以缩小需要存储的键而保留查询，模型会随之变小。若缩到低于查询与键共享的维数，无论哪种分数都会丢失信息。",
    )
    caption = Text(
        "Accuracy of finding the matching key among 8, for a query that keeps its dims, against the dims "
        "of a key (left) and against the parameters of the score (right). Bands: 95% intervals.",
        "查询维数不变时，从 8 个键中找出匹配键的准确率：对键的维数（左）和对分数参数量（右）。阴影：95% 区间。",
    )
    control = Text(
        "The same data, steps, learning rates to try and seeds; low rank and additive have the same "
        "width, which makes low rank larger than the full matrix at the smallest keys. The best possible accuracy is that of the exact posterior.",
        "数据、步数、候选学习率与种子均相同；低秩与加性的宽度相同，因此键最小时低秩的参数反多于满矩阵。理论上限由精确后验给出。",
    )
    seconds = (7.0, 100.0)

    query_dim: int = 32
    key_dims: tuple[int, ...] = (32, 4)
    more_key_dims: tuple[int, ...] = (16, 8)  # additional key dims in a full run
    shared: int = 4
    width: int = 16  # rank of the low-rank score, hidden units of the additive score
    refuses: str | Score = "dot"
    steps: tuple[int, int] = (400, 1000)  # quick and full

    def measure(self, run: Run) -> Numbers:
        """Whether dot refuses different dims, and the accuracy of every score at every key dim."""
        budget = run.pick(
            Budget(self.steps[0], batch=32, examples=8192, held=2048, rates=(1e-2, 3e-2)),
            Budget(
                self.steps[1], batch=64, examples=32768, held=4096, rates=(3e-3, 1e-2, 3e-2, 1e-1)
            ),
        )
        seeds = run.seeds(run.pick(4, 6))
        dims = run.pick(self.key_dims, self.key_dims + self.more_key_dims)
        cells = [(dim, name) for dim in sorted(dims) for name in NAMES]
        scores: dict[str, list[Numbers]] = {name: [] for name in NAMES}
        for number, (dim, name) in enumerate(cells):
            build, world = self.builds(dim)[name], self.world(dim)
            trained = train(build, world, seeds, budget, run.within(number, len(cells)))
            best = [world(seed).ceiling() for seed in seeds]
            scores[name].append(plain(trained, key_dim=dim, best=best))
        return {"query_dim": self.query_dim, "refusal": self.refusal(), "scores": scores}

    def refusal(self) -> Numbers:
        """The error of dot for a query and keys of different dims; empty if it accepts them."""
        dim = min(self.key_dims)
        query, key = torch.ones(1, self.query_dim), torch.ones(3, dim)
        try:
            regard.attention(query, key, torch.ones(3, 2), self.refuses)
        except ValueError as error:
            said = str(error)
            named = all(f"dim {size}" in said for size in (self.query_dim, dim))
            helps = any(word in said for word in ("Bilinear(", "LowRank(", "Projected("))
            return {"message": said, "clear": named and helps}
        return {"message": "", "clear": False}

    def world(self, dim: int) -> Callable[[int], Views]:
        """A function from seed to a task with keys of `dim` dims and views drawn by the seed."""
        return lambda seed: Views(self.shared, self.query_dim, dim, noise=0.5, seed=seed)

    def builds(self, dim: int) -> dict[str, Callable[[], nn.Module]]:
        """The scores that take keys of `dim` dims."""
        q, width = self.query_dim, self.width
        return {
            "bilinear": lambda: Matcher(Bilinear(q, dim)),
            "low rank": lambda: Matcher(LowRank(q, dim, width)),
            "additive": lambda: Matcher(Projected(Additive(width, bias=True), q, dim)),
        }

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        scores, refusal = numbers["scores"], numbers["refusal"]
        smallest = min(one["key_dim"] for one in scores["bilinear"])
        facts = tuple(
            Fact(
                Text(
                    f"{WORDS[name].en}, keys of {smallest} dims, of the best possible",
                    f"{WORDS[name].zh}，键 {smallest} 维，占理论上限",
                ),
                *share(one),
                unit="%",
            )
            for name, own in scores.items()
            for one in own
            if one["key_dim"] == smallest
        )
        if not refusal["clear"]:
            because = Text(
                f"Dot does not refuse clearly: {refusal['message'] or 'it raised nothing'}",
                f"点积没有明确拒绝：{refusal['message'] or '未报错'}",
            )
            return Judgement(Verdict.FAILS, because, facts)
        answers = {
            (name, one["key_dim"]): surely(share(one), WORKS)
            for name, own in scores.items()
            for one in own
        }
        return Judgement(*self.decide(answers), facts)

    def decide(self, answers: dict[tuple[str, int], bool | None]) -> tuple[Verdict, Text]:
        """Verdict and reason, from whether each score works at each key dim."""
        if all(answers.values()):
            return Verdict.HOLDS, Text(
                f"Dot refuses and says what to use; the others reach {WORKS:.0f}% of what is possible at "
                "every key dim.",
                f"点积拒绝并给出建议；其余分数在每个键维数上都达到理论上限的 {WORKS:.0f}%。",
            )
        short = [which for which, works in answers.items() if works is False]
        if not short:
            return Verdict.UNDECIDED, Text(
                "An interval straddles the bar of 80%: longer training and more seeds are needed.",
                "区间跨过 80% 的界限：需要更长的训练和更多种子。",
            )
        if len(short) == len(answers):
            return Verdict.FAILS, Text("No score works.", "没有一种分数可用。")
        en = ", ".join(f"{WORDS[name].en} at {dim}" for name, dim in short)
        zh = "、".join(f"{WORDS[name].zh}（{dim} 维）" for name, dim in short)
        return Verdict.CONDITIONS, Text(
            f"All work but these, by key dim: {en}.", f"除以下情形外都可用（按键维数）：{zh}。"
        )

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Accuracy against key dims and against model size."""
        left, right = canvas.panels(2)
        for axes, field in ((left, "key_dim"), (right, "parameters")):
            for name, own in numbers["scores"].items():
                middle, low, high = bands([percent(one["quality"]) for one in own])
                canvas.line(axes, [one[field] for one in own], middle, name, low=low, high=high)
            axes.set_xscale("log", base=2)
            axes.set_ylim(0, 104)
        own = numbers["scores"]["bilinear"]
        dims, best = [one["key_dim"] for one in own], [100 * mean(one["best"]).value for one in own]
        canvas.line(left, dims, best, label=Text("best possible", "理论上限"), marker="", ls="--", lw=1.1)  # fmt: skip
        left.set_xticks(dims, [str(dim) for dim in dims])
        said = Text(f"query of {numbers['query_dim']} dims", f"查询为 {numbers['query_dim']} 维")
        accuracy = Text("accuracy, %", "准确率（%）")
        canvas.label(left, Text("dims of a key", "键的维数"), accuracy, said)
        canvas.label(right, Text("parameters of the score", "分数的参数量"), accuracy)
        canvas.legend(left, loc="lower right")


def share(one: Numbers) -> Estimate:
    """Accuracy as a percentage of the best possible, over seeds."""
    return mean([100 * x / best for x, best in zip(one["quality"], one["best"], strict=True)])
