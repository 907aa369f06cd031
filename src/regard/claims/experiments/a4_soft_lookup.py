"""A4: attention is a differentiable look-up in a database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

import regard
from regard import Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.untrained import untrained
from regard.figures.canvas import GREY, LOOKS, WORDS, Canvas
from regard.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REACHED = 1e-6
AGREED = 0.99
EXCESS = 1e-9  # how far rounding may carry a distance above the bound
FLOOR = 1e-9  # smallest distance drawn on the logarithmic axis
# Scores that measure similarity without training; an additive score would have to learn it.
SIMILARITIES = ("dot", "cosine", "gaussian")
DIM, KEYS = 8, 16


def on_sphere(count: int, generator: torch.Generator) -> Tensor:
    """Keys (count, KEYS, DIM) of norm 1."""
    return normalize(
        torch.randn(count, KEYS, DIM, generator=generator, dtype=torch.float64), dim=-1
    )


class Bank(NamedTuple):
    """B databases with one query each: (B, 1, DIM), (B, KEYS, DIM), (B, KEYS, DIM)."""

    query: Tensor
    key: Tensor
    value: Tensor

    def best(self, score: Score) -> Tensor:
        """The key with the best score, by exact search: (B,)."""
        return regard.score(self.query, self.key, score).squeeze(-2).argmax(-1)

    def nearest(self) -> Tensor:
        """The key at the smallest distance: (B,)."""
        return torch.cdist(self.query, self.key).squeeze(-2).argmin(-1)

    def at(self, place: Tensor) -> Tensor:
        """The values of the keys with these indices: (B, DIM)."""
        return self.value[torch.arange(len(place)), place]


@dataclass(frozen=True)
class SoftLookup(Claim):
    """Distance of soft attention from the value of the best key, against temperature and query norm.

    With a gap g between the two best scores, the other keys have a weight of at most
    `(n - 1) exp(-g / T)` together. The output is therefore at most that fraction of the largest distance
    between values away from the best key's value.
    """

    id = "A4"
    statement = Text(
        "Attention is a differentiable database look-up: as the temperature falls, or the query "
        "grows, it returns the value of the nearest key exactly.",
        "注意力是可微的数据库查找：温度降低或查询变长时，它精确地返回最近键的值。",
    )
    criterion = Text(
        "For each score the largest distance to the best key's value, found by exact search, falls "
        "below 1e-6 of the spread of values as T goes to 0 and never exceeds the bound "
        "(n-1) exp(-gap/T), with a gradient at T = 1. With conditions if growing the query does not do "
        "the same for every score, or the best key of dot, cosine or Gaussian is the nearest in fewer "
        "than 99% of cases.",
        "对每种打分函数，当 T 趋于 0 时，输出与精确搜索所得最佳键的值的最大距离降到值的散布的 1e-6 以下，从不超过上界 "
        "(n-1) exp(-间隔/T)，且 T = 1 时有梯度。若放大查询并非对每种打分都有同样效果，或点积、余弦、高斯的"
        "最佳键是最近键的情况不足 99%，则为有条件成立。",
    )
    meaning = Text(
        "Sharpen with the temperature: it works for every score. A longer query sharpens only scores "
        "that grow with it. If you mean nearest, normalise keys or use the Gaussian score.",
        "要更尖锐就调温度：对所有打分函数都有效。加长查询只对随之增长的打分有效。若要“最近”，请归一化键或用高斯打分。",
    )
    caption = Text(
        "Distance between the output and the value of the best key, as a share of the largest distance "
        "between values: median over databases, bands up to the worst. Dashed: the bound for dot. "
        "Right: how often the best key is the nearest.",
        "输出与最佳键的值之间的距离（占值间最大距离的比例）：各数据库的中位数，色带到最差者。虚线：点积的上界。"
        "右：最佳键就是最近键的频率。",
    )
    control = Text(
        "Exact search over the same scores; theory: the bound from the gap of the two best scores.",
        "对照为同样分数上的精确搜索；理论：由前两名分数之差得到的上界。",
    )
    seconds = (0.5, 1.0)

    scores: tuple[str, ...] = ("dot", "cosine", "gaussian", "additive")
    keys: Callable[[int, torch.Generator], Tensor] = on_sphere
    temperatures: tuple[float, ...] = tuple(10 ** (0.5 - step / 2) for step in range(14))
    factors: tuple[float, ...] = tuple(10 ** (step / 2) for step in range(13))
    spread: float = 0.5  # standard deviation of log key norms in the case of unequal norms

    def measure(self, run: Run) -> Numbers:
        """Distances on both paths to the hard look-up, and how often it finds the nearest key."""
        count = run.pick(200, 2000)
        found: Numbers = {
            "temperatures": list(self.temperatures), "factors": list(self.factors),
            "databases": count, "by score": {},
        }  # fmt: skip
        for name in run.steps(self.scores):
            generator = run.generator("A4", name)
            bank = self.bank(count, generator)
            score = untrained(name, DIM, generator)
            found["by score"][name] = self.follow(bank, score)
            if name in SIMILARITIES:
                norms = torch.exp(
                    self.spread
                    * torch.randn(count, KEYS, 1, generator=generator, dtype=torch.float64)
                )
                found["by score"][name]["nearest"] = [
                    float((own.best(score) == own.nearest()).double().mean())
                    for own in (bank, bank._replace(key=bank.key * norms))
                ]
        return found

    def bank(self, count: int, generator: torch.Generator) -> Bank:
        """Random databases."""
        query = torch.randn(count, 1, DIM, generator=generator, dtype=torch.float64)
        key = self.keys(count, generator)
        value = torch.randn(key.shape, generator=generator, dtype=torch.float64)
        return Bank(query, key, value)

    def follow(self, bank: Bank, score: Score) -> Numbers:
        """Distances from the hard look-up as T falls and as the query grows; median and largest."""
        target = bank.at(bank.best(score))
        width = (bank.value - target.unsqueeze(-2)).norm(dim=-1).amax(-1)
        logits = regard.score(bank.query, bank.key, score).squeeze(-2)
        first, second = logits.topk(2, -1).values.unbind(-1)

        def distance(factor: float, temperature: float) -> Tensor:
            output = regard.attention(
                factor * bank.query, bank.key, bank.value, score, temperature=temperature
            )
            return (output.squeeze(-2) - target).norm(dim=-1) / width

        cold = torch.stack([distance(1.0, t) for t in self.temperatures])
        long = torch.stack([distance(factor, 1.0) for factor in self.factors])
        rest = logits.shape[-1] - 1
        bound = torch.stack([rest * torch.exp((second - first) / t) for t in self.temperatures])
        return {
            "cold": summary(cold), "long": summary(long), "bound": summary(bound),
            "excess": float((cold - bound).max()), "slope": slope_at_one(bank, score),
        }  # fmt: skip

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        found = numbers["by score"]
        worst = max(own["cold"]["largest"][-1] for own in found.values())
        excess = max(own["excess"] for own in found.values())
        slope = min(own["slope"] for own in found.values())
        deaf = [name for name, own in found.items() if own["long"]["largest"][-1] > REACHED]
        agreement = {name: own["nearest"] for name, own in found.items() if "nearest" in own}
        misses = [name for name, (_, free) in agreement.items() if free < AGREED]
        misses_unit = [name for name, (unit, _) in agreement.items() if unit < AGREED]
        farthest = max(own["long"]["largest"][-1] for own in found.values())
        least = min((free for _, free in agreement.values()), default=1.0)
        facts = (
            Fact(Text("largest distance at the lowest T", "最低温度下的最大距离"), worst),
            Fact(Text("largest distance at the longest query", "查询最长时的最大距离"), farthest),
            Fact(
                Text(
                    "best key is nearest, unequal norms, least",
                    "范数不等时最佳键即最近键的最低比例",
                ),
                least,
            ),
        )
        if worst > REACHED or excess > EXCESS or slope <= 0:
            because = Text(
                f"At the lowest temperature the output is still {worst:.2g} from the best key's value "
                f"(largest excess over the bound {excess:.1g}, smallest gradient {slope:.1g}).",
                f"最低温度下，输出与最佳键的值仍相差 {worst:.2g}（超出上界的最大值 {excess:.1g}，最小梯度 {slope:.1g}）。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        if deaf or misses or misses_unit:
            return Judgement(ClaimVerdict.CONDITIONS, conditions(deaf, misses, misses_unit), facts)
        because = Text(
            "Both ways lead every score to the value of the nearest key.",
            "两种途径都使每种打分函数得到最近键的值。",
        )
        return Judgement(ClaimVerdict.HOLDS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Distance against temperature and against query norm; agreement with the nearest key."""
        cold, long, near = canvas.panels(3, 3.7, 3.3)
        found = numbers["by score"]
        for axes, way, x in (
            (cold, "cold", numbers["temperatures"]),
            (long, "long", numbers["factors"]),
        ):
            for name, own in found.items():
                middle, high = (
                    [max(y, FLOOR) for y in own[way][key]] for key in ("median", "largest")
                )
                canvas.line(axes, x, middle, name, low=middle, high=high)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_ylim(FLOOR / 2, 3)
        if "dot" in found:
            bound = [max(y, FLOOR) for y in found["dot"]["bound"]["median"]]
            label = Text("bound for dot", "点积的上界")
            canvas.line(
                cold,
                numbers["temperatures"],
                bound,
                label=label,
                marker="",
                ls="--",
                color="#444444",
            )
        y = Text("distance to the best key's value (share)", "与最佳键的值的距离（比例）")
        canvas.label(
            cold, Text("temperature T (no unit)", "温度 T（无单位）"), y, Text("colder", "降温")
        )
        cold.invert_xaxis()
        x = Text("query norm (times its own)", "查询的范数（原来的倍数）")
        canvas.label(long, x, "", Text("longer query", "加长查询"))
        canvas.legend(cold, loc="lower left")
        draw_agreement(canvas, near, found)


def summary(x: Tensor) -> Numbers:
    """Median and largest over databases, for each step of the path."""
    return {"median": x.median(-1).values.tolist(), "largest": x.amax(-1).tolist()}


def slope_at_one(bank: Bank, score: Score) -> float:
    """The smallest norm over databases of the gradient of the output's sum in the query, at T = 1."""
    query = bank.query.clone().requires_grad_()
    regard.attention(query, bank.key, bank.value, score).sum().backward()
    assert query.grad is not None
    return float(query.grad.norm(dim=-1).min())


def conditions(deaf: list[str], misses: list[str], misses_unit: list[str]) -> Text:
    """The conditions under which the statement holds, in words."""
    english = ["As T goes to 0 every score returns the value of its best key."]
    chinese = ["T 趋于 0 时，每种打分都返回其最佳键的值。"]
    named = lambda names: "、".join(WORDS[name].zh for name in names)  # noqa: E731
    if deaf:
        english.append(f"A longer query does not do it for {' and '.join(deaf)}.")
        chinese.append(f"加长查询对{named(deaf)}无效。")
    if misses:
        english.append(
            f"Unless keys have equal norms, the best key is not always the nearest for "
            f"{' and '.join(misses)}."
        )
        chinese.append(f"键的范数不等时，{named(misses)}的最佳键不一定是最近键。")
    if misses_unit:
        english.append(f"Even among equal norms it is not for {' and '.join(misses_unit)}.")
        chinese.append(f"即使范数相等，{named(misses_unit)}也不是。")
    return Text(" ".join(english), "".join(chinese))


def draw_agreement(canvas: Canvas, axes: Axes, found: Numbers) -> None:
    """Pairs of bars: keys of equal norms (full colour) and of unequal norms (pale)."""
    from matplotlib.patches import Patch

    names = [name for name, own in found.items() if "nearest" in own]
    labels = [
        canvas.say(Text("equal norms", "范数相等")), canvas.say(Text("unequal norms", "范数不等")),
    ]  # fmt: skip
    for place in range(2):
        axes.bar(
            [number + 0.36 * place for number in range(len(names))],
            [found[name]["nearest"][place] for name in names],
            width=0.34, color=[LOOKS[name][0] for name in names],
            alpha=1 - 0.55 * place,
        )  # fmt: skip
    axes.set_xticks(
        [number + 0.18 for number in range(len(names))], [canvas.say(WORDS[n]) for n in names]
    )
    axes.grid(False, axis="x")
    # Leaves room for the legend above the grid lines.
    axes.set_ylim(0, 1.28)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    canvas.label(
        axes,
        "",
        Text("best key is nearest (share)", "最佳键即最近键（比例）"),
        Text("nearest?", "是最近的吗？"),
    )
    # Colours stand for scores, so the legend explains only full and pale.
    handles = [Patch(color=GREY, alpha=alpha, lw=0) for alpha in (1, 0.45)]
    canvas.legend(axes, handles=handles, labels=labels, loc="upper center", ncols=2)
