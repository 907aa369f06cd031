"""A3: keys are for addressing, values for content."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import regard
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, Trained, train
from regard.figures.canvas import BLUE, GREY, ORANGE, Canvas
from regard.measuring.statistics import Estimate, difference, mean
from regard.synthetic.lookup import Lookup
from regard.text import Text

GOOD = 0.9  # accuracy that separate values have to exceed
SLACK = 0.05  # accuracies this far above chance count as chance, and this far apart as equal
LOOK = {
    "free": (BLUE, "o", Text("separate V", "独立的 V")),
    "whole": (ORANGE, "D", Text("V = K of the whole item", "V = K，取自整个条目")),
    "address": (GREY, "s", Text("V = K of the address", "V = K，只取自地址")),
}


class Store(nn.Module):
    """Attention over items with an address and a content; it answers with the content at an address.

    Args:
        kind: "free": keys from addresses, values from contents. "address": V = K from addresses.
            "whole": V = K, one projection of address and content together.
        task: supplies the widths of addresses and contents.
        width: of the query, keys and values.
    """

    def __init__(self, kind: str, task: Lookup, width: int) -> None:
        super().__init__()
        self.kind = kind
        wide = task.dim + (task.labels if kind == "whole" else 0)
        self.query = nn.Linear(task.dim, width, bias=False)
        self.key = nn.Linear(wide, width, bias=False)
        self.value = nn.Linear(task.labels, width, bias=False) if kind == "free" else None
        self.out = nn.Linear(width, task.labels, bias=False)

    def forward(self, query: Tensor, address: Tensor, content: Tensor) -> Tensor:
        """Query (B, dim), addresses (B, n, dim), contents (B, n, labels) to logits (B, labels)."""
        known = torch.cat([address, content], -1) if self.kind == "whole" else address
        key = self.key(known)
        value = key if self.value is None else self.value(content)
        asked = self.query(query).unsqueeze(-2)
        return self.out(regard.attention(asked, key, value, engine="reference").squeeze(-2))


@dataclass(frozen=True)
class KeysAddress(Claim):
    """Compares separate values with V = K, made of the address or of the whole item.

    Contents are independent of addresses. Therefore no function of query and addresses alone can answer
    better than chance, 1 / labels; that is the analytic bound for V = K made of addresses.
    """

    id = "A3"
    statement = Text(
        "Keys are for addressing, values for content: with V = K attention can only return blends "
        "of addresses.",
        "键用于寻址，值用于内容：若令 V = K，注意力只能返回地址的混合。",
    )
    criterion = Text(
        "When content is unrelated to address and parameters are equal, a separate V is right in over "
        "90% of cases, and V = K made of addresses is within 5 points of chance (95% intervals). It holds "
        "if V = K made of the whole item is also over 5 points behind at every width, and holds with "
        "conditions if it draws level at some width.",
        "内容与地址无关：参数量相等时，独立的 V 正确率超过 90%，由地址构成的 V = K 与随机猜测相差不到 5 个百分点"
        "（95% 区间）。若由整个条目构成的 V = K 在所有宽度上也落后 5 个百分点以上，则成立；若在某个宽度上追平，"
        "则有条件成立。",
    )
    meaning = Text(
        "Give values a projection of their own. Sharing one between K and V saves a cache, and works "
        "only if it sees the content too and is wide enough for both.",
        "让值有自己的投影。K、V 共用一个投影可以省缓存，但它必须看得到内容，且宽度足以容纳两者。",
    )
    caption = Text(
        "Share of right answers on look-ups whose content is unrelated to the address, against the "
        "width of keys and values; bands are 95% intervals over seeds, the dashed line is chance.",
        "内容与地址无关的查找任务的正确率，随键与值的宽度变化；色带为各种子的 95% 区间，虚线为随机猜测。",
    )
    control = Text(
        "The same data, seeds, steps and learning rates for all. At the compared width all three have "
        "the same number of parameters: V = K of the address gets wider keys for the projection it lacks.",
        "各方数据、种子、步数和可选学习率相同。在比较的宽度上三者参数量相等：由地址构成的 V = K 少一个投影，"
        "用更宽的键补足。",
    )
    seconds = (7.0, 90.0)

    task: Lookup = field(default_factory=Lookup)
    width: int = 20
    budget: Budget | None = None  # None: chosen by the size of the run

    def measure(self, run: Run) -> Numbers:
        """Train every kind, from several seeds."""
        budget = self.budget or run.pick(Budget(steps=150, rates=(1e-2, 3e-2)), Budget(steps=400))
        seeds = run.seeds(run.pick(3, 5))
        widths = sorted({*run.pick((8,), (4, 8, 12, 40)), self.width})
        dim, labels = self.task.dim, self.task.labels
        # Parameters for each unit of width: "free" and "whole" 2 (dim + labels), "address" 2 dim + labels.
        # So "address" gets wider keys, to have as many parameters in all.
        wider = round(self.width * 2 * (dim + labels) / (2 * dim + labels))
        jobs = [("address", wider)]
        jobs += [(kind, width) for width in widths for kind in ("free", "whole")]
        found: Numbers = {"free": {}, "whole": {}, "address": {}}
        for number, (kind, width) in enumerate(jobs):
            part = run.within(number, len(jobs))
            build = lambda kind=kind, width=width: Store(kind, self.task, width)  # noqa: E731
            found[kind][str(width)] = told(train(build, self.task, seeds, budget, part))
        return found | {
            "widths": widths, "width": self.width, "chance": 1 / labels,
            "steps": budget.steps, "rates": list(budget.rates),
        }  # fmt: skip

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        free = numbers["free"][str(numbers["width"])]["quality"]
        (address,) = (own["quality"] for own in numbers["address"].values())
        lead, right, blend = difference(free, address), mean(free), mean(address)
        behind = lags(numbers)
        at, last = str(numbers["width"]), behind[str(numbers["width"])]
        facts = (
            Fact(Text("accuracy with a separate V", "独立 V 的正确率"), *right),
            Fact(Text("accuracy with V = K of the address", "由地址构成的 V = K 的正确率"), *blend),
            Fact(Text("lead of a separate V", "独立 V 的领先"), *lead),
            Fact(
                Text(
                    f"V = K of the whole item behind, width {at}",
                    f"由整个条目构成的 V = K 的落后，宽度 {at}",
                ),
                *last,
            ),
        )
        ceiling = numbers["chance"] + SLACK
        if blend.above(ceiling) or right.below(GOOD):
            because = Text(
                f"V = K of the address answers {blend.value:.1%} right where chance is "
                f"{numbers['chance']:.1%}, a separate V {right.value:.1%}.",
                f"由地址构成的 V = K 正确率为 {blend.value:.1%}（随机猜测为 {numbers['chance']:.1%}），"
                f"独立 V 为 {right.value:.1%}。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        if not (blend.below(ceiling) and right.above(GOOD)):
            return Judgement(ClaimVerdict.UNDECIDED, MORE_SEEDS, facts)
        return self.judge_whole(behind, blend, facts)

    def judge_whole(
        self, behind: dict[str, Estimate], blend: Estimate, facts: tuple[Fact, ...]
    ) -> Judgement:
        """The verdict when V = K of addresses is at chance: it depends on V = K of the whole item."""
        level = [width for width, lag in behind.items() if lag.below(SLACK)]
        if level:
            narrow, lag = next(iter(behind.items()))
            because = Text(
                f"V = K made of addresses stays at chance ({blend.value:.1%}). V = K made of the whole "
                f"item draws level with a separate V at width {level[0]}; at width {narrow} it is "
                f"{100 * lag.value:.0f} points behind.",
                f"由地址构成的 V = K 停在随机水平（{blend.value:.1%}）。由整个条目构成的 V = K 在宽度 "
                f"{level[0]} 追平独立的 V；宽度 {narrow} 时落后 {100 * lag.value:.0f} 个百分点。",
            )
            return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        if all(lag.above(SLACK) for lag in behind.values()):
            because = Text(
                f"V = K made of addresses stays at chance ({blend.value:.1%}), and V = K made of the "
                "whole item is behind at every width.",
                f"由地址构成的 V = K 停在随机水平（{blend.value:.1%}），由整个条目构成的 V = K 在所有宽度上都落后。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        return Judgement(ClaimVerdict.UNDECIDED, MORE_SEEDS, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Accuracy against width."""
        (axes,) = canvas.panels(1, 6.0, 3.4)
        for kind, (ink, mark, label) in LOOK.items():
            found = {int(width): mean(own["quality"]) for width, own in numbers[kind].items()}
            low, high = [e.low for e in found.values()], [e.high for e in found.values()]
            middle = [e.value for e in found.values()]
            canvas.line(
                axes, list(found), middle, label=label, low=low, high=high, color=ink, marker=mark
            )
            if len(found) == 1:
                whiskers = [[middle[0] - low[0]], [high[0] - middle[0]]]
                axes.errorbar(list(found), middle, whiskers, color=ink, capsize=3, lw=1)
        canvas.bar_line(axes, numbers["chance"], Text("chance", "随机猜测"))
        axes.set_ylim(0, 1.03)
        x = Text("width of keys and values (dimensions)", "键与值的宽度（维数）")
        canvas.label(axes, x, Text("share of right answers", "正确率"))
        canvas.legend(axes, loc="center left", bbox_to_anchor=(1.0, 0.5))


MORE_SEEDS = Text(
    "The intervals cross the bars: a full run trains longer, at more widths and from more seeds.",
    "区间跨越了界限：完整运行会训练更久，用更多宽度和更多种子。",
)


def told(trained: Trained) -> Numbers:
    """The numbers of one training that verdict and figure use."""
    return {
        "quality": trained.quality, "rate": trained.rate, "parameters": trained.parameters,
    }  # fmt: skip


def lags(numbers: Numbers) -> dict[str, Estimate]:
    """Lag of V = K of the whole item behind separate values, by width in rising order."""
    return {
        str(width): difference(
            numbers["free"][str(width)]["quality"], numbers["whole"][str(width)]["quality"]
        )
        for width in numbers["widths"]
    }
