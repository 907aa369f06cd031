"""E5: which score is better with little data, and which with much data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import nn

from regard import Additive, Projected, ScaledDot
from regard.claims.claim import Claim, ClaimVerdict, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, train
from regard.claims.tools.models import Matcher
from regard.claims.tools.outcome import ahead, percent, plain, points, surely
from regard.figures.canvas import Canvas
from regard.measuring.statistics import Estimate, bands
from regard.synthetic.views import Views
from regard.text import Text

MARGIN = 1.0  # points of accuracy that count as ahead
KINDS = {
    "like": Text("like q and k", "q、k 同类"),
    "unlike": Text("unlike, related by a matrix", "异类，由矩阵关联"),
    "folded": Text("unlike, by no matrix", "异类，无矩阵可关联"),
}


class Lead(NamedTuple):
    """Lead of one score over the other on one kind of pairs, with one size of training set."""

    kind: str
    size: int
    found: Estimate


def worlds() -> dict[str, Views]:
    """Tasks: "like" pairs are noisy copies of each other; "unlike" ones differ in dims, view, distribution."""
    return {
        "like": Views(alike=True, noise=0.5),
        "unlike": Views(query_dim=24, shown="bent", noise=0.5),
        "folded": Views(query_dim=24, shown="folded", noise=0.5),
    }


@dataclass(frozen=True)
class DataSize(Claim):
    """Scaled dot and additive behind equal projections, trained on sets of growing size."""

    id = "E5"
    statement = Text(
        "Little data with unlike queries and keys favours the additive score; scale favours the dot "
        "product.",
        "数据少且查询与键异类时，加性分数占优；数据规模大时，点积占优。",
    )
    criterion = Text(
        "A lead is more than 1 point of test accuracy (whole 95% interval). With the smallest training "
        "set additive leads on both kinds of unlike pairs, one that a matrix relates and one that none "
        "does; with the largest, dot leads on all kinds. All of it: holds. Some: with conditions. None: "
        "does not hold.",
        "领先指测试准确率高出 1 个百分点以上（整个 95% 区间）。最小训练集上，加性在两种异类对上都领先（一种可由矩阵关联，"
        "一种不能）；最大训练集上，点积在各类对上都领先。全部成立：成立；部分成立：有条件；全不成立：不成立。",
    )
    meaning = Text(
        "Do not choose between dot and additive by the amount of data alone: ask first whether a matrix "
        "could relate your queries and keys, then look at the lead in your own range of sizes.",
        "不要只凭数据量在点积与加性之间选择：先问查询与键能否由一个矩阵关联，再看自己数据规模下的差距。",
    )
    caption = Text(
        "Test accuracy of finding the matching key among 8 against the number of training examples. "
        "Bands: 95% intervals over seeds.",
        "从 8 个键中找出匹配键的测试准确率与训练样本数的关系。阴影：各种子的 95% 区间。",
    )
    control = Text(
        "Both scores have learned projections of one width: equal parameters, but for v and the bias of "
        "additive. The same data, steps, learning rates to try and seeds.",
        "两种分数的可学习投影宽度相同：参数量相等（加性仅多 v 与偏置）。数据、步数、候选学习率与种子均相同。",
    )
    seconds = (10.0, 170.0)

    worlds: dict[str, Views] = field(default_factory=worlds)
    width: int = 16
    sizes: tuple[int, ...] = (64, 8192)
    more_sizes: tuple[int, ...] = (256, 1024, 32768)  # additional sizes in a full run
    steps: tuple[int, int] = (300, 1200)  # quick and full

    def measure(self, run: Run) -> Numbers:
        """Both scores on both kinds of pairs with every size."""
        sizes = sorted(run.pick(self.sizes, self.sizes + self.more_sizes))
        rates = run.pick((1e-2, 3e-2), (3e-3, 1e-2, 3e-2, 1e-1))
        budget = Budget(run.pick(*self.steps), batch=32, held=2048, rates=rates)
        seeds = run.seeds(run.pick(4, 6))
        cells = [
            (kind, size, name)
            for kind in self.worlds
            for size in sizes
            for name in ("scaled dot", "additive")
        ]
        found = {kind: {"scaled dot": [], "additive": []} for kind in self.worlds}
        for number, (kind, size, name) in enumerate(cells):
            world = self.worlds[kind]
            trained = train(
                self.builds(world)[name],
                lambda seed, world=world: replace(world, seed=seed),
                seeds,
                replace(budget, examples=size),
                run.within(number, len(cells)),
            )
            found[kind][name].append(plain(trained, size=size))
        return {"sizes": sizes, "pairs": found}

    def builds(self, world: Views) -> dict[str, Callable[[], nn.Module]]:
        """Both scores for queries and keys of this world."""
        dims, width = (world.query_dim, world.key_dim), self.width
        return {
            "scaled dot": lambda: Matcher(Projected(ScaledDot(), *dims, width=width)),
            "additive": lambda: Matcher(Projected(Additive(width, bias=True), *dims)),
        }

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        leads = [
            Lead(kind, size, ahead(additive, dot))
            for kind, own in numbers["pairs"].items()
            for size, additive, dot in zip(
                numbers["sizes"], own["additive"], own["scaled dot"], strict=True
            )
        ]
        least, most = numbers["sizes"][0], numbers["sizes"][-1]
        little = [lead for lead in leads if lead.size == least and lead.kind != "like"]
        scale = [lead for lead in leads if lead.size == most]
        facts = tuple(
            points(
                Text(
                    f"additive − dot, {KINDS[lead.kind].en}, {lead.size} examples",
                    f"加性 − 点积，{KINDS[lead.kind].zh}，{lead.size} 个样本",
                ),
                lead.found,
            )
            for lead in (*little, *scale)
        )
        answers = [surely(lead.found, MARGIN) for lead in little]
        answers += [behind(lead.found) for lead in scale]
        seen = tell([lead for lead in leads if lead.size in (least, most)])
        # One true and one false part settle the verdict, whatever the undecided parts are.
        if None in answers and not {True, False} <= set(answers):
            because = Text(
                f"An interval straddles the bar of 1 point: more seeds are needed. {seen.en}",
                f"区间跨过 1 个百分点的界限：需要更多种子。{seen.zh}",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        verdict = ClaimVerdict.CONDITIONS if any(answers) else ClaimVerdict.FAILS
        if all(answers):
            verdict = ClaimVerdict.HOLDS
        return Judgement(verdict, seen, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Accuracy against the size of the training set, one panel for each kind of pairs."""
        panels = canvas.panels(len(numbers["pairs"]), wide=3.2)
        for axes, (kind, own) in zip(panels, numbers["pairs"].items(), strict=True):
            for name, cells in own.items():
                middle, low, high = bands([percent(one["quality"]) for one in cells])
                canvas.line(axes, numbers["sizes"], middle, name, low=low, high=high)
            axes.set_xscale("log")
            axes.set_ylim(0, 100)
            canvas.label(
                axes, Text("training examples", "训练样本数"), Text("test accuracy, %", "测试准确率（%）"), KINDS[kind]
            )  # fmt: skip
        canvas.legend(panels[0], loc="lower right")


def behind(found: Estimate) -> bool | None:
    """Whether additive is more than MARGIN behind by the whole interval; None if that is undecided."""
    return surely(Estimate(-found.value, -found.high, -found.low), MARGIN)


def tell(leads: list[Lead]) -> Text:
    """The score that is ahead at each size, in words."""
    en, zh = [], []
    for size in sorted({lead.size for lead in leads}):
        own = [lead for lead in leads if lead.size == size]
        listed = [(KINDS[lead.kind], winner(lead.found)) for lead in own]
        en.append(f"{size} examples: " + "; ".join(f"{k.en}, {who.en}" for k, who in listed) + ".")
        zh.append(f"{size} 个样本：" + "；".join(f"{k.zh}，{who.zh}" for k, who in listed) + "。")
    return Text(" ".join(en), "".join(zh))


def winner(found: Estimate) -> Text:
    """The score that is ahead by its whole interval, and its lead, in words."""
    if surely(found, MARGIN):
        return Text(f"additive by {found.value:.0f} points", f"加性领先 {found.value:.0f} 个百分点")
    if behind(found):
        return Text(f"dot by {-found.value:.0f} points", f"点积领先 {-found.value:.0f} 个百分点")
    return Text("nobody surely", "无人确定领先")
