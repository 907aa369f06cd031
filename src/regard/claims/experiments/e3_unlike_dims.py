"""E3: queries and keys of different dims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import regard
from regard import Additive, Bilinear, Cosine, LowRank, Projected, Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, train
from regard.claims.tools.models import Matcher
from regard.claims.tools.outcome import ahead, percent, plain, points, surely
from regard.figures.canvas import WORDS, Canvas
from regard.measuring.statistics import Estimate, bands, mean
from regard.synthetic.views import Views
from regard.text import Text

WORKS = 80.0  # a score works if it reaches this percentage of the best possible accuracy
NAMES = ("bilinear", "low rank", "additive")  # the scores that the statement names
SIZED = (
    "low rank",
    "additive",
    "cosine",
)  # the scores whose width can be fitted to a parameter count
SIZES = {
    "scores": Text("With the parameters of low rank", "参数量与低秩相同时"),
    "matrix_size": Text("With the parameters of the full matrix", "参数量与完整矩阵相同时"),
}
# Comparisons at equal parameters: the field of the numbers, the first score and the second.
PAIRS = (
    ("scores", "additive", "low rank"),
    ("matrix_size", "additive", "bilinear"),
    ("matrix_size", "cosine", "bilinear"),
    ("scores", "cosine", "additive"),
)


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
        "dims: with conditions. None does, or dot does not refuse: does not hold. Which score is ahead at "
        "equal parameters does not change the verdict: it is stated for each key dim where the 95% interval "
        "of the difference, paired by seed, excludes 0 (this comparison was added after a pilot run).",
        "点积报出一条错误，指明两个维数以及可用的打分函数；在每个键维数上，三种打分函数都达到理论最高准确率的 80%"
        "（整个 95% 区间）。仅部分打分函数或部分维数达到：有条件；都未达到，或点积没有拒绝：不成立。"
        "参数量相同时谁领先不影响结论：只在按种子配对之差的 95% 区间不含 0 的键维数上陈述（这一比较是在试运行之后加入的）。",
    )
    meaning = Text(
        "Unlike widths alone do not make the full matrix the score to use. Project both sides to one width: "
        "cosine there is ahead of low rank (scaled dot there), and never behind additive, in this task, in "
        "which the length of a key is noise. Additive is ahead of low rank at equal parameters, but it needs "
        "hidden units: at the few parameters of a matrix for keys of 4 dims it is behind. Below the dims "
        "that query and key share, information is lost, whichever the score.",
        "宽度不同本身并不意味着应当用完整矩阵。把两侧投影到同一宽度：在这个任务里（键的长度只是噪声），"
        "投影后的余弦领先于低秩（即投影后的缩放点积），也从不落后于加性。参数量相同时加性领先于低秩；"
        "但它需要足够的隐藏单元：键为 4 维、参数只有矩阵那么少时，它落后。"
        "若缩到低于查询与键共享的维数，无论哪种打分函数都会丢失信息。",
    )
    caption = Text(
        "Accuracy of finding the matching key among 8, for a query that keeps its dims, against the dims "
        "of a key. Left: low rank of rank 16, and additive and cosine with as many parameters, beside the "
        "full matrix, which has fewer. Right: every score with the parameters of the full matrix. Bands: "
        "95% intervals.",
        "查询维数不变时，从 8 个键中找出匹配键的准确率随键维数的变化。左：秩 16 的低秩、参数量与之相同的加性和余弦，"
        "以及参数更少的完整矩阵；右：所有打分函数的参数量都与完整矩阵相同。阴影：95% 区间。",
    )
    control = Text(
        "The same data, steps, learning rates to try and seeds. Additive and cosine are as wide as the "
        "parameters of low rank, or of the full matrix, allow. Cosine compares projections of both sides. "
        "The best possible accuracy is that of the exact posterior.",
        "数据、步数、候选学习率与种子均相同。加性和余弦取低秩（或完整矩阵）的参数量所允许的最大宽度；"
        "余弦比较的是两侧的投影。理论上限由精确后验给出。",
    )
    seconds = (16.0, 250.0)

    query_dim: int = 32
    key_dims: tuple[int, ...] = (32, 4)
    more_key_dims: tuple[int, ...] = (16, 8)  # additional key dims in a full run
    shared: int = 4
    rank: int = 16  # of the low-rank score, whose parameters additive and cosine get too
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
        cells = [cell for dim in sorted(dims) for cell in self.cells(dim)]
        found: dict[str, dict[str, list[Numbers]]] = {"scores": {}, "matrix_size": {}}
        for number, (dim, size, name) in enumerate(cells):
            world = self.world(dim)
            build = self.build(name, dim, self.parameters(dim, size))
            trained = train(build, world, seeds, budget, run.within(number, len(cells)))
            best = [world(seed).ceiling() for seed in seeds]
            found[size].setdefault(name, []).append(plain(trained, key_dim=dim, best=best))
        return {"query_dim": self.query_dim, "refusal": self.refusal(), **found}

    def cells(self, dim: int) -> list[tuple[int, str, str]]:
        """What is trained at a key dim: (key dim, field of the numbers, score)."""
        wide = [(dim, "scores", name) for name in ("bilinear", *SIZED)]
        return wide + [(dim, "matrix_size", name) for name in SIZED]

    def parameters(self, dim: int, size: str) -> int:
        """Parameters that a score may have: those of low rank, or those of the full matrix."""
        wide = self.rank * (self.query_dim + dim)
        return wide if size == "scores" else self.query_dim * dim

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

    def build(self, name: str, dim: int, parameters: int) -> Callable[[], nn.Module]:
        """A function that makes a score for keys of `dim` dims, with at most that many parameters."""
        q = self.query_dim
        both = q + dim  # parameters of one column of the two projections
        # Two more for each hidden unit: its v and its bias. One for cosine: the gain.
        hidden, width = max(parameters // (both + 2), 1), max((parameters - 1) // both, 1)
        builds: dict[str, Callable[[], Score]] = {
            "bilinear": lambda: Bilinear(q, dim),
            "low rank": lambda: LowRank(q, dim, max(parameters // both, 1)),
            "additive": lambda: Projected(Additive(hidden, bias=True), q, dim),
            "cosine": lambda: Projected(Cosine(), q, dim, width=width),
        }
        return lambda: Matcher(builds[name]())

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
            for name in NAMES
            for one in scores[name]
            if one["key_dim"] == smallest
        )
        leads = {pair: leads_of(numbers, *pair) for pair in PAIRS}
        facts += tuple(
            points(lead_label(*pair[1:], dim), lead)
            for pair, own in leads.items()
            for dim, lead in own.items()
        )
        if not refusal["clear"]:
            because = Text(
                f"Dot does not refuse clearly: {refusal['message'] or 'it raised nothing'}",
                f"点积没有明确拒绝：{refusal['message'] or '未报错'}",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        answers = {
            (name, one["key_dim"]): surely(share(one), WORKS)
            for name in NAMES
            for one in scores[name]
        }
        verdict, because = self.decide(answers)
        told = [because, *(told_lead(*pair, own) for pair, own in leads.items())]
        joined = Text(" ".join(text.en for text in told), "".join(text.zh for text in told))
        return Judgement(verdict, joined, facts)

    def decide(self, answers: dict[tuple[str, int], bool | None]) -> tuple[ClaimVerdict, Text]:
        """Verdict and reason, from whether each score works at each key dim."""
        if all(answers.values()):
            return ClaimVerdict.HOLDS, Text(
                f"Dot refuses and says what to use; the others reach {WORKS:.0f}% of what is possible at "
                "every key dim.",
                f"点积拒绝并给出建议；其余打分函数在每个键维数上都达到理论上限的 {WORKS:.0f}%。",
            )
        short = [which for which, works in answers.items() if works is False]
        if not short:
            return ClaimVerdict.UNDECIDED, Text(
                "An interval straddles the bar of 80%: longer training and more seeds are needed.",
                "区间跨过 80% 的界限：需要更长的训练和更多种子。",
            )
        if len(short) == len(answers):
            return ClaimVerdict.FAILS, Text("No score works.", "没有一种打分函数可用。")
        en = ", ".join(f"{WORDS[name].en} at {dim}" for name, dim in short)
        zh = "、".join(f"{WORDS[name].zh}（{dim} 维）" for name, dim in short)
        return ClaimVerdict.CONDITIONS, Text(
            f"All work but these, by key dim: {en}.", f"除以下情形外都可用（按键维数）：{zh}。"
        )

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Accuracy against key dims, at the parameters of low rank and at those of the full matrix."""
        left, right = canvas.panels(2)
        own = numbers["scores"]["bilinear"]
        dims, best = [one["key_dim"] for one in own], [100 * mean(one["best"]).value for one in own]
        for axes, (size, title) in zip((left, right), SIZES.items(), strict=True):
            for name, found in {"bilinear": own, **numbers[size]}.items():
                middle, low, high = bands([percent(one["quality"]) for one in found])
                canvas.line(
                    axes, [one["key_dim"] for one in found], middle, name, low=low, high=high
                )
            canvas.line(axes, dims, best, label=Text("best possible", "理论上限"), marker="", ls="--", lw=1.1)  # fmt: skip
            axes.set_xscale("log", base=2)
            axes.set_ylim(0, 104)
            axes.set_xticks(dims, [str(dim) for dim in dims])
            canvas.label(
                axes, Text("dims of a key", "键的维数"), Text("accuracy, %", "准确率（%）"), title
            )
        canvas.legend(right, loc="lower right")


def share(one: Numbers) -> Estimate:
    """Accuracy as a percentage of the best possible, over seeds."""
    return mean([100 * x / best for x, best in zip(one["quality"], one["best"], strict=True)])


def leads_of(numbers: Numbers, size: str, first: str, second: str) -> dict[int, Estimate]:
    """Lead of the first score over the second in points, by key dim; both have the same parameters."""
    found = {"bilinear": numbers["scores"]["bilinear"], **numbers[size]}
    return {
        one["key_dim"]: ahead(one, other)
        for one, other in zip(found[first], found[second], strict=True)
    }


def lead_label(first: str, second: str, dim: int) -> Text:
    """The label of a lead among the facts."""
    return Text(
        f"{WORDS[first].en} over {WORDS[second].en}, keys of {dim} dims",
        f"{WORDS[first].zh}比{WORDS[second].zh}，键 {dim} 维",
    )


def told_lead(size: str, first: str, second: str, leads: dict[int, Estimate]) -> Text:
    """One sentence: at which key dims the first score is ahead of the second, behind, or neither."""
    sides = {answer: {} for answer in (True, False, None)}
    for dim, lead in leads.items():
        sides[surely(lead, 0.0)][dim] = lead
    en, zh = [], []
    for answer, (english, chinese) in {
        True: ("ahead of", "领先"),
        False: ("behind", "落后"),
    }.items():
        if own := sides[answer]:
            by = sorted(abs(lead.value) for lead in own.values())
            ends = [f"{x:.1f}" for x in (by[0], by[-1])][: len(by)]
            dims = [str(dim) for dim in own]
            en.append(
                f"{english} {WORDS[second].en} by {' to '.join(ends)} points (keys of {', '.join(dims)} dims)"
            )
            zh.append(f"{chinese} {' 到 '.join(ends)} 个百分点（键 {'、'.join(dims)} 维）")
    if own := sides[None]:
        dims = [str(dim) for dim in own]
        en.append(f"not surely different from {WORDS[second].en} (keys of {', '.join(dims)} dims)")
        zh.append(f"差别不确定（键 {'、'.join(dims)} 维）")
    return Text(
        f"{SIZES[size].en}, {WORDS[first].en} is {'; '.join(en)}.",
        f"{SIZES[size].zh}，{WORDS[first].zh}与{WORDS[second].zh}相比{'，'.join(zh)}。",
    )
