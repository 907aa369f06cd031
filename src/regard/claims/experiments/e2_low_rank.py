"""E2: a low-rank matrix matches a full one, with as few parameters as an additive score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from regard import Additive, Bilinear, LowRank, Projected
from regard.claims.claim import Claim, ClaimVerdict, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, train
from regard.claims.tools.models import Matcher
from regard.claims.tools.outcome import ahead, percent, plain, points, surely
from regard.figures.canvas import LOOKS, Canvas
from regard.measuring.statistics import Estimate, bands
from regard.synthetic.views import Views
from regard.text import Text

MARGIN = 2.0  # a difference of at most this many points of accuracy counts as a match
FEW = 0.5  # fraction of the full matrix's parameters that a low-rank score may have


@dataclass(frozen=True)
class LowRankMatches(Claim):
    """W has d_q d_k parameters, P Q' of rank r has r (d_q + d_k), additive h (d_q + d_k + 2)."""

    id = "E2"
    statement = Text(
        "A low-rank bilinear score matches the full matrix, and comes down to the parameter count of "
        "an additive score.",
        "低秩双线性分数与满矩阵效果相当，且参数量可降到与加性分数相同。",
    )
    criterion = Text(
        "Every count is as its formula says. With at most half of the full matrix's parameters the "
        "low-rank score is less than 2 points of accuracy behind it (whole 95% interval), on a relation "
        "of low rank and on one of full rank. On one of the two only: with conditions.",
        "参数量均与公式一致；在参数不超过满矩阵一半时，低秩分数的准确率落后不到 2 个百分点（整个 95% 区间），"
        "且在低秩关系和满秩关系上都如此。只在其一成立：有条件地成立。",
    )
    meaning = Text(
        "Give a low-rank score the rank of what queries and keys share, not of their dims: more is "
        "wasted, less costs much.",
        "低秩分数的秩应取查询与键共有信息的维数，而不是它们各自的维数：多了浪费，少了代价很大。",
    )
    caption = Text(
        "Accuracy of finding the matching key among 8 against the parameters of the score, for a "
        "relation of low rank (left) and of full rank (right). Bands: 95% intervals over seeds.",
        "从 8 个键中找出匹配键的准确率与分数参数量的关系：低秩关系（左）与满秩关系（右）。阴影：各种子的 95% 区间。",
    )
    control = Text(
        "The same data, steps, learning rates to try and seeds for all; additive is compared at the same "
        "number of parameters, but for its v and bias.",
        "所有分数使用相同的数据、步数、候选学习率与种子；加性分数在参数量相同（仅多 v 与偏置）时比较。",
    )
    seconds = (8.0, 150.0)

    dim: int = 16
    low: int = 4  # rank of the low-rank relation
    ranks: tuple[int, ...] = (2, 4)
    more_ranks: tuple[int, ...] = (1, 6, 8)  # additional ranks in a full run
    steps: tuple[int, int] = (300, 1000)  # quick and full

    def measure(self, run: Run) -> Numbers:
        """Every score on both relations."""
        budget = run.pick(
            Budget(self.steps[0], batch=32, examples=8192, held=4096, rates=(1e-2, 3e-2)),
            Budget(
                self.steps[1],
                batch=64,
                examples=32768,
                held=4096,
                rates=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
            ),
        )
        seeds = run.seeds(run.pick(4, 6))
        builds = self.builds(run.pick(self.ranks, tuple(sorted(self.ranks + self.more_ranks))))
        cells = [(rank, *one) for rank in (self.low, self.dim) for one in builds]
        found: dict[int, list[Numbers]] = {self.low: [], self.dim: []}
        for number, (rank, name, build, formula) in enumerate(cells):
            world = self.world(rank)
            trained = train(build, world, seeds, budget, run.within(number, len(cells)))
            found[rank].append(plain(trained, score=name, formula=formula))
        return {
            "dim": self.dim,
            "relations": [
                {"rank": rank, "ceiling": self.world(rank)(seeds[0]).ceiling(), "scores": scores}
                for rank, scores in found.items()
            ],
        }

    def world(self, rank: int) -> Callable[[int], Views]:
        """A function from seed to a task whose queries and keys share `rank` dims; the seed draws the views."""
        return lambda seed: Views(rank, self.dim, self.dim, noise=0.5, seed=seed)

    def builds(self, ranks: tuple[int, ...]) -> list[tuple[str, Callable[[], nn.Module], int]]:
        """Each competitor: the name of its score, how to build it, and its expected number of parameters."""
        d = self.dim
        found: list[tuple[str, Callable[[], nn.Module], int]]
        found = [("bilinear", lambda: Matcher(Bilinear(d, d)), d * d)]
        for rank in ranks:
            low = lambda rank=rank: Matcher(LowRank(d, d, rank))  # noqa: E731
            add = lambda rank=rank: Matcher(Projected(Additive(rank, bias=True), d, d))  # noqa: E731
            found += [("low rank", low, rank * 2 * d), ("additive", add, rank * (2 * d + 2))]
        return found

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        (on_low, less), (on_full, _) = (self.compare(own) for own in numbers["relations"])
        ranks = [own["rank"] for own in numbers["relations"]]
        facts = (
            points(Text(f"low rank − full, relation of rank {ranks[0]}", f"低秩 − 满矩阵（关系秩 {ranks[0]}）"), on_low),
            points(Text(f"low rank − full, relation of rank {ranks[1]}", f"低秩 − 满矩阵（关系秩 {ranks[1]}）"), on_full),
            points(Text(f"low rank − additive, equal count, rank {ranks[0]}", f"低秩 − 加性（同参数量，关系秩 {ranks[0]}）"), less),
        )  # fmt: skip
        counted = all(
            one["parameters"] == one["formula"]
            for own in numbers["relations"]
            for one in own["scores"]
        )
        answers = [surely(found, -MARGIN) for found in (on_low, on_full)]
        if not counted:
            return Judgement(
                ClaimVerdict.FAILS,
                Text("A count is not what its formula says.", "有参数量与公式不符。"),
                facts,
            )
        if None in answers:
            because = Text(
                "An interval straddles the bar of 2 points: more seeds or longer training are needed.",
                "区间跨过 2 个百分点的界限：需要更多种子或更长的训练。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        if all(answers):
            because = Text(
                "It matches on both relations, with half of the parameters or fewer.",
                "在两种关系上都相当，参数不超过一半。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        if answers[0]:
            because = Text(
                "It matches while its rank reaches that of the relation; where query and key share all "
                f"{ranks[1]} dims, half of the parameters cost {-on_full.value:.0f} points.",
                f"当其秩不低于关系的秩时相当；若查询与键共享全部 {ranks[1]} 维，参数减半会损失 {-on_full.value:.0f} 个百分点。",
            )
            return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        if answers[1]:
            because = Text(
                f"It matches where query and key share all {ranks[1]} dims, and is {-on_low.value:.0f} "
                f"points behind on a relation of rank {ranks[0]}.",
                f"查询与键共享全部 {ranks[1]} 维时相当；关系的秩为 {ranks[0]} 时落后 {-on_low.value:.0f} 个百分点。",
            )
            return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        because = Text(
            f"With half of the parameters it is {-on_low.value:.0f} points behind even on a relation of "
            f"rank {ranks[0]}.",
            f"参数减半时，即使关系的秩只有 {ranks[0]}，也落后 {-on_low.value:.0f} 个百分点。",
        )
        return Judgement(ClaimVerdict.FAILS, because, facts)

    def compare(self, relation: Numbers) -> tuple[Estimate, Estimate]:
        """Leads over full and over additive of the largest low-rank score with at most FEW parameters."""
        scores = relation["scores"]
        (full,) = (one for one in scores if one["score"] == "bilinear")
        allowed = FEW * full["parameters"]
        small = [x for x in scores if x["score"] == "low rank" and x["parameters"] <= allowed]
        low = max(small, key=lambda one: one["parameters"])
        additive = [one for one in scores if one["score"] == "additive"]
        rival = min(additive, key=lambda one: abs(one["parameters"] - low["parameters"]))
        return ahead(low, full), ahead(low, rival)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Accuracy against parameters, one panel for each relation."""
        for axes, relation in zip(canvas.panels(2), numbers["relations"], strict=True):
            for name in ("low rank", "additive", "bilinear"):
                own = [one for one in relation["scores"] if one["score"] == name]
                middle, low, high = bands([percent(one["quality"]) for one in own])
                sizes = [one["parameters"] for one in own]
                canvas.line(axes, sizes, middle, name, low=low, high=high)
                axes.vlines(sizes, low, high, color=LOOKS[name][0], lw=1.2)
            canvas.bar_line(axes, 100 * relation["ceiling"], Text("best possible", "理论上限"))
            axes.set_xscale("log", base=2)
            ticks = sorted(
                {one["formula"] for one in relation["scores"] if one["score"] != "additive"}
            )
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.set_ylim(0, 104)
            rank = relation["rank"]
            canvas.label(
                axes,
                Text("parameters of the score", "分数的参数量"),
                Text("accuracy, %", "准确率（%）"),
                Text(f"relation of rank {rank} in {numbers['dim']} dims", f"{numbers['dim']} 维中秩为 {rank} 的关系"),
            )  # fmt: skip
        canvas.legend(axes, loc="lower right")
