"""E6: a score with more parameters is not automatically better, and an additive score can overfit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import nn

from regard import Additive, Bilinear, LowRank, Projected, ScaledDot
from regard.claims.claim import Claim, ClaimVerdict, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, train
from regard.claims.tools.models import Matcher
from regard.claims.tools.outcome import ahead, percent, plain, points, surely
from regard.figures.canvas import WORDS, Canvas
from regard.measuring.statistics import Estimate, bands, mean
from regard.stabilize import Tempered
from regard.synthetic.views import Views
from regard.text import Text

MARGIN = 1.0  # points of accuracy that count as ahead
GAP = 5.0  # points between training and test accuracy that count as overfitting


def builds(world: Views) -> dict[str, Callable[[], nn.Module]]:
    """Models with one to a thousand parameters, by the names that figures use."""
    q, k = world.query_dim, world.key_dim
    return {
        "scaled dot": lambda: Matcher(Tempered(ScaledDot(), heads=1)),
        "low rank": lambda: Matcher(LowRank(q, k, 4)),
        "bilinear": lambda: Matcher(Bilinear(q, k)),
        "additive": lambda: Matcher(Projected(Additive(32, bias=True), q, k)),
    }


@dataclass(frozen=True)
class Overfitting(Claim):
    """Four scores with increasing numbers of parameters, trained on sets of growing size."""

    id = "E6"
    statement = Text(
        "“More parameters, so better” is a misconception: an additive score can overfit.",
        "“参数越多越好”是误解：加性分数会过拟合。",
    )
    criterion = Text(
        "With the smallest training set: some score with fewer parameters than additive is ahead of it by "
        "more than 1 point of test accuracy, and additive is more than 5 points better on its training set "
        "than on test data. The same lead with the largest set too: holds. With the smallest only: with "
        "conditions. (Whole 95% intervals.)",
        "在最小训练集上：某个参数比加性少的分数，测试准确率领先加性超过 1 个百分点，且加性的训练准确率比测试高 5 个百分点以上。"
        "若最大训练集上仍领先：成立；仅在最小训练集上成立：有条件。（均指整个 95% 区间。）",
    )
    meaning = Text(
        "With few examples take the score that already knows the geometry of your data. Parameters pay "
        "once there are examples enough to fill them: watch the gap between training and test.",
        "样本少时，请选本身就符合数据几何的分数；样本足够多时，参数才有回报：请关注训练与测试之间的差距。",
    )
    caption = Text(
        "Left: test accuracy against the number of training examples. Right: training minus test "
        "accuracy. Bands: 95% intervals over seeds.",
        "左：测试准确率与训练样本数的关系。右：训练准确率减测试准确率。阴影：各种子的 95% 区间。",
    )
    control = Text(
        "Query and key are two noisy copies in one space, so that a plain dot product is a fair rival. "
        "The same data, steps, learning rates to try and seeds for all.",
        "查询与键是同一空间中的两个含噪副本，因此普通点积是公平的对手。数据、步数、候选学习率与种子均相同。",
    )
    seconds = (8.0, 130.0)

    world: Views = field(default_factory=lambda: Views(alike=True, noise=0.5))
    sizes: tuple[int, ...] = (64, 8192)
    more_sizes: tuple[int, ...] = (256, 1024, 32768)  # additional sizes in a full run
    steps: tuple[int, int] = (400, 1200)  # quick and full

    def measure(self, run: Run) -> Numbers:
        """Every score with every size."""
        sizes = sorted(run.pick(self.sizes, self.sizes + self.more_sizes))
        rates = run.pick((1e-2, 3e-2), (3e-3, 1e-2, 3e-2, 1e-1))
        budget = Budget(run.pick(*self.steps), batch=32, held=2048, rates=rates)
        seeds = run.seeds(run.pick(4, 6))
        competitors = builds(self.world)
        cells = [(name, size) for name in competitors for size in sizes]
        found: dict[str, list[Numbers]] = {name: [] for name in competitors}
        for number, (name, size) in enumerate(cells):
            trained = train(
                competitors[name],
                lambda seed: replace(self.world, seed=seed),
                seeds,
                replace(budget, examples=size),
                run.within(number, len(cells)),
            )
            found[name].append(plain(trained, size=size))
        return {"sizes": sizes, "scores": found}

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        sizes, scores = numbers["sizes"], numbers["scores"]
        leads = [best_lead(scores, number) for number in range(len(sizes))]
        overfit = gap(scores["additive"][0])
        facts = (
            points(Text(f"best smaller score − additive, {sizes[0]} examples", f"最优的较小分数 − 加性，{sizes[0]} 个样本"), leads[0]),
            points(Text(f"best smaller score − additive, {sizes[-1]} examples", f"最优的较小分数 − 加性，{sizes[-1]} 个样本"), leads[-1]),
            points(Text(f"additive, training − test, {sizes[0]} examples", f"加性，训练 − 测试，{sizes[0]} 个样本"), overfit),
            points(Text(f"additive, training − test, {sizes[-1]} examples", f"加性，训练 − 测试，{sizes[-1]} 个样本"), gap(scores["additive"][-1])),
        )  # fmt: skip
        small = [surely(leads[0], MARGIN), surely(overfit, GAP)]
        large = surely(leads[-1], MARGIN)
        if False in small:
            because = Text(
                f"With {sizes[0]} examples the smaller scores are {leads[0].value:.0f} points ahead, and "
                f"additive has a gap of {overfit.value:.0f}: not both bars are passed.",
                f"{sizes[0]} 个样本时，较小分数领先 {leads[0].value:.0f} 个百分点，加性的差距为 {overfit.value:.0f}：未同时达到两条界限。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        if None in (*small, large):
            because = Text(
                "An interval straddles its bar: more seeds are needed.",
                "区间跨过界限：需要更多种子。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        if large:
            because = Text(
                f"A smaller score is ahead from {sizes[0]} to {sizes[-1]} examples.",
                f"从 {sizes[0]} 到 {sizes[-1]} 个样本，较小的分数都领先。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        flip = next(
            s for s, lead in zip(sizes, leads, strict=True) if surely(lead, MARGIN) is not True
        )
        because = Text(
            f"With {sizes[0]} examples fewer parameters win by {leads[0].value:.0f} points; from {flip} "
            "examples on they no longer do.",
            f"{sizes[0]} 个样本时，参数少者领先 {leads[0].value:.0f} 个百分点；到 {flip} 个样本时不再领先。",
        )
        return Judgement(ClaimVerdict.CONDITIONS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Test accuracy, and the gap, against the size of the training set."""
        left, right = canvas.panels(2)
        sizes = numbers["sizes"]
        for name, own in numbers["scores"].items():
            count = own[0]["parameters"]
            label = Text(f"{name}: {count}", f"{WORDS[name].zh}：{count}")
            middle, low, high = bands([percent(one["quality"]) for one in own])
            canvas.line(left, sizes, middle, name, low=low, high=high)
            gaps = [gap(one) for one in own]
            canvas.line(
                right, sizes, [x.value for x in gaps], name, label=label,
                low=[x.low for x in gaps], high=[x.high for x in gaps],
            )  # fmt: skip
        size = Text("training examples", "训练样本数")
        canvas.label(left, size, Text("test accuracy, %", "测试准确率（%）"))
        canvas.label(right, size, Text("training − test, points", "训练 − 测试（百分点）"))
        for axes in (left, right):
            axes.set_xscale("log")
        left.set_ylim(0, 100)
        canvas.bar_line(right, GAP, Text("bar", "界限"))
        right.legend(frameon=False, fontsize=8, title=canvas.say(Text("parameters", "参数量")))


def gap(one: Numbers) -> Estimate:
    """Training minus test accuracy, in points."""
    pairs = zip(one["train"], one["quality"], strict=True)
    return mean([100 * (train - test) for train, test in pairs])


def best_lead(scores: dict[str, list[Numbers]], number: int) -> Estimate:
    """Lead over additive of the best score with fewer parameters, at one size."""
    additive = scores["additive"][number]
    others = [own[number] for name, own in scores.items() if name != "additive"]
    smaller = [one for one in others if one["parameters"] < additive["parameters"]]
    return max((ahead(one, additive) for one in smaller), key=lambda found: found.value)
