"""C10: at large d the unscaled dot product trains worse than additive; scaled, it catches up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from regard import Additive, Dot, Projected, ScaledDot, Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, train
from regard.claims.tools.models import Reader
from regard.claims.tools.outcome import ahead, percent, plain, points, surely
from regard.figures.canvas import Canvas
from regard.measuring.statistics import Estimate, bands
from regard.synthetic.lookup import Lookup
from regard.text import Text

LARGE = 64  # the usual width of a head; d counts as large from here on
STUCK = 95.0  # percent accuracy below which training counts as stuck; the other scores exceed 99
MARGIN = 1.0  # a lead of more points of accuracy counts as better, a smaller one as caught up


def scores() -> dict[str, Callable[[int], Score]]:
    """The competitors, for a width of the projections."""
    return {
        "dot": lambda width: Dot(),
        "scaled dot": lambda width: ScaledDot(),
        "additive": lambda width: Additive(width, bias=True),
    }


@dataclass(frozen=True)
class UnscaledAtLargeD(Claim):
    """A look-up through learned projections of width d; queries and keys have unit variance."""

    id = "C10"
    statement = Text(
        "At large d the unscaled dot product trains worse than an additive score; divided by √d it "
        "catches up.",
        "d 较大时，未缩放的点积比加性分数更难训练；除以 √d 后便能赶上。",
    )
    criterion = Text(
        "At every measured d from 64 on, unscaled dot is more than 1 point of test accuracy behind "
        "additive, and scaled dot is less than 1 point behind (whole 95% intervals). Only from some "
        "larger d on: with conditions. Not at the largest d: does not hold.",
        "对所有 d ≥ 64 的测量点，未缩放点积的测试准确率落后加性 1 个百分点以上，而缩放点积落后不到 1 个百分点（整个 95% 区间）。"
        "仅从更大的 d 起成立：有条件；在最大的 d 处不成立：不成立。",
    )
    meaning = Text(
        "Always scale. The damage comes late: Adam, a tuned rate and normalised inputs hide it in narrow "
        "heads, and it shows as seeds that never leave a wrong key.",
        "务必缩放。危害出现得较晚：Adam、调好的学习率和归一化输入会在窄头中掩盖它，表现为某些种子始终停在错误的键上。",
    )
    caption = Text(
        "Left: test accuracy of a look-up after equal training, against the width d. Right: how far "
        "additive is ahead. Bands: 95% intervals over seeds.",
        "左：相同训练后查找任务的测试准确率与宽度 d 的关系。右：加性领先的幅度。阴影：各种子的 95% 区间。",
    )
    control = Text(
        "The same projections for all (additive has v and a bias besides), inputs of unit mean square, "
        "and the same data, steps of Adam, learning rates to try and seeds. A quick run has a smaller "
        "look-up (4 keys of 8 dims) than a full one (8 of 16).",
        "所有分数使用相同的投影（加性另有 v 与偏置），输入的均方为 1，数据、Adam 步数、候选学习率与种子均相同。快速运行的查找任务（4 个键，8 维）小于完整运行（8 个键，16 维）。",
    )
    seconds = (11.0, 230.0)

    scores: dict[str, Callable[[int], Score]] = field(default_factory=scores)
    tasks: tuple[Lookup, Lookup] = (Lookup(dim=8, keys=4, labels=4), Lookup())  # quick and full
    dims: tuple[int, ...] = (64, 256)
    more_dims: tuple[int, ...] = (8, 16, 32, 128, 512)  # additional dims in a full run
    steps: int = 300

    def measure(self, run: Run) -> Numbers:
        """Every score at every width."""
        dims = sorted(run.pick(self.dims, self.dims + self.more_dims))
        rates = run.pick((3e-3, 1e-2, 3e-2), (3e-3, 1e-2, 3e-2, 1e-1))
        budget = Budget(self.steps, batch=run.pick(16, 32), held=2048, rates=rates)
        seeds, task = run.seeds(run.pick(8, 32)), run.pick(*self.tasks)
        cells = [(name, dim) for dim in dims for name in self.scores]
        found: dict[str, list[Numbers]] = {name: [] for name in self.scores}
        for number, (name, dim) in enumerate(cells):
            part = run.within(number, len(cells))
            trained = train(self.build(name, task, dim), task, seeds, budget, part)
            found[name].append(plain(trained))
        return {"dims": dims, "steps": budget.steps, "scores": found}

    def build(self, name: str, task: Lookup, width: int) -> Callable[[], nn.Module]:
        """A reader with projections of this width."""
        dim, labels = task.dim, task.labels

        def model() -> nn.Module:
            score = Projected(self.scores[name](width), dim, dim, width=width)
            unit = nn.RMSNorm(dim, elementwise_affine=False)
            return Reader(score, query=unit, key=unit, out=nn.Linear(labels, labels))

        return model

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        dims, scores = numbers["dims"], numbers["scores"]
        over = {name: leads(scores, name) for name in ("dot", "scaled dot")}
        worse = {d: surely(x, MARGIN) for d, x in zip(dims, over["dot"], strict=True)}
        # `surely` is False where the whole interval of additive's lead is below the margin: caught up.
        caught = {d: surely(x, MARGIN) for d, x in zip(dims, over["scaled dot"], strict=True)}
        caught = {d: None if x is None else not x for d, x in caught.items()}
        most, last = dims[-1], percent(scores["dot"][-1]["quality"])
        stuck = sum(x < STUCK for x in last) / len(last)
        facts = (
            points(Text(f"additive − dot, d = {most}", f"加性 − 点积，d = {most}"), over["dot"][-1]),
            points(Text(f"additive − scaled dot, d = {most}", f"加性 − 缩放点积，d = {most}"), over["scaled dot"][-1]),
            points(Text(f"additive − dot, d = {dims[0]}", f"加性 − 点积，d = {dims[0]}"), over["dot"][0]),
            Fact(Text(f"seeds of dot below {STUCK:.0f}%, d = {most}", f"点积准确率低于 {STUCK:.0f}% 的种子，d = {most}"), 100 * stuck, unit="%"),
        )  # fmt: skip
        from_there = dims[-1]
        for dim in reversed(dims):
            if not (worse[dim] and caught[dim]):
                break
            from_there = dim
        if False in (worse[most], caught[most]):
            because = Text(
                f"At d = {most} additive is {over['dot'][-1].value:.1f} points ahead of dot and "
                f"{over['scaled dot'][-1].value:.1f} ahead of scaled dot.",
                f"d = {most} 时，加性领先点积 {over['dot'][-1].value:.1f} 个百分点，领先缩放点积 {over['scaled dot'][-1].value:.1f} 个百分点。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        if None in (worse[most], caught[most]):
            open_one = over["dot"][-1] if worse[most] is None else over["scaled dot"][-1]
            seeds = enough(open_one, len(last))
            because = Text(
                f"At d = {most} an interval straddles the bar of 1 point: some runs get stuck and most do "
                f"not. About {seeds} seeds would do, if the spread stays.",
                f"d = {most} 处区间跨过 1 个百分点的界限：少数训练会卡住，多数不会。若离散程度不变，约需 {seeds} 个种子。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        not_yet = [dim for dim in dims if dim < from_there][-1:]
        because = Text(
            f"It does from d = {from_there} on{''.join(f', not yet at {d}' for d in not_yet)}; by "
            f"{over['dot'][-1].value:.1f} points at d = {most}.",
            f"从 d = {from_there} 起成立{''.join(f'（{d} 时尚不成立）' for d in not_yet)}；d = {most} 时相差 "
            f"{over['dot'][-1].value:.1f} 个百分点。",
        )
        large = [dim for dim in dims if dim >= LARGE] or dims[-1:]
        verdict = ClaimVerdict.HOLDS if from_there <= min(large) else ClaimVerdict.CONDITIONS
        return Judgement(verdict, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Accuracy, and the lead of additive, against d."""
        left, right = canvas.panels(2)
        dims, scores = numbers["dims"], numbers["scores"]
        for name, own in scores.items():
            middle, low, high = bands([percent(one["quality"]) for one in own])
            canvas.line(left, dims, middle, name, low=low, high=high)
        for name in ("dot", "scaled dot"):
            own = leads(scores, name)
            low, high = [x.low for x in own], [x.high for x in own]
            canvas.line(right, dims, [x.value for x in own], name, low=low, high=high)
        canvas.bar_line(right, MARGIN, Text("bar", "界限"))
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(dims, [str(dim) for dim in dims])
        width = Text("width d of the projections", "投影宽度 d")
        canvas.label(left, width, Text("test accuracy, %", "测试准确率（%）"))
        canvas.label(right, width, Text("additive ahead by, points", "加性领先（百分点）"))
        canvas.legend(left, loc="lower left")
        canvas.legend(right, loc="upper left")


def leads(scores: dict[str, list[Numbers]], name: str) -> list[Estimate]:
    """The lead of additive over the score `name` at every width."""
    return [ahead(x, y) for x, y in zip(scores["additive"], scores[name], strict=True)]


def enough(found: Estimate, count: int) -> int:
    """The number of seeds, instead of `count`, that would put the whole interval on one side of MARGIN."""
    half, room = found.value - found.low, max(abs(found.value - MARGIN), 0.1)
    return math.ceil(count * (half / room) ** 2)
