"""I2: in gene regulation a product is AND and a sum is OR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import regard
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, compete
from regard.claims.tools.models import Matcher
from regard.figures.canvas import Canvas
from regard.measuring.statistics import mean
from regard.text import Text

# A model has learned a gate if its mean accuracy over seeds is at least this.
LEARNED = 0.98
QUICK = Budget(steps=150, rates=(0.1, 0.3), held=256)
FULL = Budget(steps=1000, rates=(0.03, 0.1, 0.3), held=1024)
# Outputs for (low, low), (low, high), (high, low), (high, high).
GATES: dict[str, tuple[int, int, int, int]] = {
    "AND": (0, 0, 0, 1),
    "OR": (0, 1, 1, 1),
    "NAND": (1, 1, 1, 0),
    "NOR": (1, 0, 0, 0),
    "x∧¬y": (0, 0, 1, 0),
    "XOR": (0, 1, 1, 0),
    "XNOR": (1, 0, 0, 1),
}
MODELS = {
    "product": Text("product x·y", "乘积 x·y"),
    "sum": Text("sum x + y", "求和 x + y"),
    "additive": Text("additive, 8 tanh", "加性，8 个 tanh"),
    "bilinear": Text("bilinear of (x, 1), (y, 1)", "(x, 1) 与 (y, 1) 的双线性"),
}


@dataclass(frozen=True)
class Gate:
    """Two graded inputs, each low or high; the target is the gate's output for these levels.

    Inputs: x (B, 1), y (B, 1), concentrations uniform in [0, 0.3] or [0.7, 1]. With `signed` they are
    stretched to [-1, 1]. Target (B,), 0 or 1.
    """

    table: tuple[int, int, int, int] = GATES["AND"]
    signed: bool = False

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw examples as the class describes; all four combinations of levels are equally likely."""
        high = torch.randint(2, (count, 2), generator=generator)
        level = 0.7 * high + 0.3 * torch.rand(count, 2, generator=generator)
        if self.signed:
            level = 2 * level - 1
        target = torch.tensor(self.table)[2 * high[:, 0] + high[:, 1]]
        return level[:, :1], level[:, 1:], target.float()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Binary cross entropy of the gate's logit."""
        return nn.functional.binary_cross_entropy_with_logits(output, target)

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """Accuracy: the fraction of right outputs."""
        return ((output > 0) == (target > 0.5)).double().mean()


class FixedGate(nn.Module):
    """The gate `gain * f(x, y) + offset`: promoter strength and threshold are learned, f is fixed."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.combine = combine
        self.gain, self.offset = nn.Parameter(torch.randn(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """(B, 1), (B, 1) to logits (B,)."""
        return (self.gain * self.combine(x, y) + self.offset).squeeze(-1)


class Scored(nn.Module):
    """The score of query x and key y plus a learned offset, as if it competed with an attention sink."""

    def __init__(self, score: regard.Score, constant: bool) -> None:
        super().__init__()
        self.match, self.constant = Matcher(score), constant
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """(B, 1), (B, 1) to logits (B,); with `constant` a feature of 1 is appended to both inputs."""
        if self.constant:
            x, y = (torch.cat([z, torch.ones_like(z)], -1) for z in (x, y))
        return self.match(x, y.unsqueeze(-2)).squeeze(-1) + self.offset


def multiply(x: Tensor, y: Tensor) -> Tensor:
    """Product: both transcription factors are needed, as if they bind together."""
    return x * y


def add(x: Tensor, y: Tensor) -> Tensor:
    """Sum: either transcription factor is enough, as if they act independently."""
    return x + y


def competitors() -> dict[str, Callable[[], nn.Module]]:
    """The models, by the names of `MODELS`."""
    return {
        "product": lambda: FixedGate(multiply),
        "sum": lambda: FixedGate(add),
        "additive": lambda: Scored(
            regard.Projected(regard.Additive(8, bias=True), 1, 1), constant=False
        ),
        "bilinear": lambda: Scored(regard.Bilinear(2, 2), constant=True),
    }


@dataclass(frozen=True)
class Gates(Claim):
    """Trains every model on every gate, to see which gates each can learn."""

    id = "I2"
    statement = Text(
        "In gene regulation the product of two factors is an AND gate, their sum an OR gate.",
        "在基因调控中，两个因子的乘积是“与”门，其和是“或”门。",
    )
    criterion = Text(
        "A product with learned gain and threshold learns AND and not OR, a sum learns OR and not "
        "AND (learned: at least 0.98 of graded inputs right, mean over seeds), and it does not matter "
        "whether inputs are concentrations in [0, 1] or signed in [-1, 1]. With conditions: the "
        "product learns AND and the sum OR for concentrations, but one of them another gate as well, "
        "or not with signs.",
        "增益和阈值可学习的乘积学会“与”而学不会“或”，求和学会“或”而学不会“与”（学会：分级输入的正确率在各种子上平均至少 "
        "0.98），且与输入是 [0, 1] 内的浓度还是 [-1, 1] 内的有符号量无关。附条件成立：对浓度而言乘积学会“与”、求和学会“或”，"
        "但其中之一还能学会另一种门，或带符号时不成立。",
    )
    meaning = Text(
        "A bare product needs a constant beside each input before it can say OR or NOT; then, or with "
        "a few tanh units and a bias, a score learns every gate tried here.",
        "单纯的乘积要在每个输入旁附加常数才能表示“或”与“非”；这样之后，或用几个带偏置的 tanh 单元，打分即可学会这里试过的所有门。",
    )
    caption = Text(
        "Share of graded inputs on which a trained gate is right (mean over seeds), for each score and "
        "gate: concentrations (left) and signed inputs (right). Bold: learned.",
        "训练后的门在分级输入上的正确率（各种子平均），按打分与门列出：浓度输入（左）与有符号输入（右）。粗体：学会。",
    )
    control = Text(
        "Same data, steps and learning rates to try for every score and gate; the best rate is kept for "
        "each. Product and sum have 2 parameters each, bilinear 5, additive 33.",
        "所有打分与门的数据、步数和可选学习率相同，各自取其最好的学习率。乘积与求和各有 2 个参数，双线性 5 个，"
        "加性 33 个。",
    )
    seconds = (5.0, 60.0)

    builds: dict[str, Callable[[], nn.Module]] = field(default_factory=competitors)
    gates: dict[str, tuple[int, int, int, int]] = field(default_factory=lambda: dict(GATES))
    quick: Budget = QUICK
    full: Budget = FULL

    def measure(self, run: Run) -> Numbers:
        """Accuracy by coding, model and gate, for each seed."""
        tables = [
            (coding, gate, Gate(table, signed=coding == "signed"))
            for coding in ("concentration", "signed")
            for gate, table in self.gates.items()
        ]
        # Every pair of seed and gate is a separate world; all of them are trained together.
        count = len(tables)
        codes = [seed * count + kind for seed in run.seeds(run.pick(3, 8)) for kind in range(count)]
        budget = run.pick(self.quick, self.full)
        trained = compete(
            self.builds, lambda code: tables[code % count][2], codes, budget, run, count
        )
        accuracy: Numbers = {"concentration": {}, "signed": {}}
        for name, one in trained.items():
            for kind, (coding, gate, _) in enumerate(tables):
                accuracy[coding].setdefault(name, {})[gate] = one.quality[kind::count]
        return {"accuracy": accuracy, "parameters": {n: x.parameters for n, x in trained.items()}}

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        accuracy = numbers["accuracy"]

        def learns(name: str, gate: str, coding: str = "concentration") -> bool:
            return mean(accuracy[coding][name][gate]).value >= LEARNED

        pairs = (("product", "AND"), ("product", "OR"), ("sum", "OR"), ("sum", "AND"))
        facts = tuple(
            Fact(
                Text(f"{MODELS[name].en} as {gate}", f"{MODELS[name].zh} 作 {gate}"),
                *mean(accuracy["concentration"][name][gate]),
            )
            for name, gate in pairs
        )
        known = {name: gates(accuracy, name) for name in accuracy["concentration"]}
        table = Text(
            "; ".join(f"{MODELS[name].en} learns {x.en}" for name, x in known.items()),
            "；".join(f"{MODELS[name].zh} 学会 {x.zh}" for name, x in known.items()),
        )
        if not (learns("product", "AND") and learns("sum", "OR")):
            because = Text(f"For concentrations: {table.en}.", f"对浓度：{table.zh}。")
            return Judgement(ClaimVerdict.FAILS, because, facts)
        strict = not learns("product", "OR") and not learns("sum", "AND")
        signed = learns("product", "AND", "signed") and learns("sum", "OR", "signed")
        if strict and signed:
            because = Text(f"{table.en}.", f"{table.zh}。")
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        signs = Text("", "")
        if not signed:
            other = gates(accuracy, "product", "signed")
            signs = Text(
                f" With signed inputs the product learns {other.en}.",
                f"输入带符号时，乘积学会 {other.zh}。",
            )
        because = Text(
            f"For concentrations: {table.en}.{signs.en}", f"对浓度：{table.zh}。{signs.zh}"
        )
        return Judgement(ClaimVerdict.CONDITIONS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Two tables of accuracy."""
        panels = canvas.panels(2, wide=4.6, high=2.9)
        titles = {
            "concentration": Text("concentrations, 0 to 1", "浓度，0 至 1"),
            "signed": Text("signed, -1 to 1", "有符号，-1 至 1"),
        }
        for axes, (coding, title) in zip(panels, titles.items(), strict=True):
            rows = numbers["accuracy"][coding]
            names = list(next(iter(rows.values())))
            values = [[mean(row[gate]).value for gate in names] for row in rows.values()]
            axes.imshow(values, cmap="cividis", vmin=0.5, vmax=1, aspect="auto")
            for y, line in enumerate(values):
                for x, value in enumerate(line):
                    axes.text(
                        x, y, f"{value:.2f}", ha="center", va="center", fontsize=8,
                        color="black" if value > 0.75 else "white",
                        fontweight="bold" if value >= LEARNED else "normal",
                    )  # fmt: skip
            axes.grid(False)
            axes.set_xticks(range(len(names)), names, rotation=30, fontsize=8)
            shown = (
                [canvas.say(MODELS[name]) for name in rows]
                if axes is panels[0]
                else [""] * len(rows)
            )
            axes.set_yticks(range(len(rows)), shown, fontsize=8)
            canvas.label(axes, Text("gate", "逻辑门"), "", title)


def gates(accuracy: Numbers, name: str, coding: str = "concentration") -> Text:
    """The gates that a model learns, in words."""
    rows = accuracy[coding][name]
    found = [gate for gate, each in rows.items() if mean(each).value >= LEARNED]
    if len(found) == len(rows):
        return Text("all", "全部")
    return Text(", ".join(found) or "none", "、".join(found) or "零种")
