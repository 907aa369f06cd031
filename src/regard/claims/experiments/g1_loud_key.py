"""G1: one key with a huge norm hijacks dot attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

import regard
from regard import Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.figures.canvas import GREY, LOOKS, PURPLE, SKY, Canvas
from regard.measuring.statistics import bands, mean
from regard.stabilize import ClippedKeys, Normalized, SoftCapped
from regard.text import Text

DIM, KEYS, QUERIES = 64, 64, 64
CAP = 30.0
# A query is captured when its largest weight is on the loud key, which does not depend on how sharp a score
# is. A score is captured if at least CAPTURED of the queries are at the largest norm (theory: 1/2), and safe
# if at most SAFE are, half of what dot loses. SAFE was set after a pilot run. The figure also shows the
# fraction of queries with more than half of their weight on the loud key.
CAPTURED, SAFE = 0.4, 0.25
ATTACKED = ("dot", "scaled dot")


def defences(dim: int) -> dict[str, Callable[[], Score]]:
    """The scores expected to be captured, then the defences that are said to resist."""
    return {
        "dot": regard.Dot,
        "scaled dot": regard.ScaledDot,
        "soft-capped": lambda: SoftCapped(regard.ScaledDot(), CAP),
        "clipped": lambda: ClippedKeys(regard.ScaledDot(), 1.5 * dim**0.5),
        "LayerNorm": lambda: Normalized(regard.ScaledDot(), dim, "layer"),
        "cosine": regard.Cosine,
        "additive": lambda: regard.Additive(dim),
    }


STYLES = {
    "dot": (Text("dot", "点积"), *LOOKS["dot"], "-"),
    "scaled dot": (Text("scaled dot", "缩放点积"), *LOOKS["scaled dot"], "-"),
    "soft-capped": (Text("scaled, soft cap 30", "缩放 + 软上限 30"), PURPLE, "^", "--"),
    "clipped": (Text("scaled, key norm clipped", "缩放 + 键范数截断"), SKY, "P", "--"),
    "LayerNorm": (Text("scaled, LayerNorm", "缩放 + LayerNorm"), GREY, "X", "--"),
    "cosine": (Text("cosine", "余弦"), *LOOKS["cosine"], "-"),
    "additive": (Text("additive", "加性"), *LOOKS["additive"], "-"),
}


@dataclass(frozen=True)
class LoudKey(Claim):
    """Queries and keys have unit variance; one key is multiplied by growing factors r.

    For large r, <q, r k> exceeds all other scores for every query with <q, k> > 0, that is for half.
    """

    id = "G1"
    statement = Text(
        "One key with a huge norm hijacks dot attention; bounded and normalised scores resist.",
        "一个范数极大的键会劫持点积注意力；有界的和归一化的打分能够抵抗。",
    )
    criterion = Text(
        "At the largest norm the loud key has the largest weight for at least 0.4 of the queries with "
        "dot and with scaled dot (the maths says 1/2), and for at most 0.25, half of that, with "
        "every defence (95% intervals over draws; the second bar was set after a pilot run). With "
        "conditions: some defences do not resist. It does not hold where dot is not captured, or every "
        "defence is.",
        "在最大范数下，点积和缩放点积至少有 0.4 的查询把最大的权重给了范数极大的键（理论值 1/2），而每种防御下"
        "不超过其一半 0.25（各次抽样的 95% 区间；后一界线是在试运行之后定的）。附条件成立：部分防御不能抵抗。"
        "若点积未被劫持，或所有防御都被劫持，则不成立。",
    )
    meaning = Text(
        "Where norms are not under your control, normalise or clip keys, or use a bounded score (which may "
        "still rank one saturated key first, for all queries alike). A soft cap keeps the order of the "
        "logits, so that it does not stop the hijack.",
        "若无法控制范数，请对键做归一化或截断，或使用有界的打分（一个饱和的键仍可能对所有查询都排第一）。"
        "软上限不改变 logit 的次序，因此挡不住劫持。",
    )
    caption = Text(
        "Share of queries whose largest weight (left), or more than half of whose weight (right), is on "
        "one key, against that key's length relative to the others. Bands: 95% over draws. "
        "Dashed: the limit 1/2; dotted: the bar for a defence.",
        "一个键占有最大权重（左）和一半以上权重（右）的查询比例，随该键相对其他键的长度倍数的变化。色带为各次抽样的 "
        "95% 区间。虚线：极限 1/2；点线：防御的界线。",
    )
    control = Text(
        "The same queries and keys for every score, all of dimension 64 and unit variance; scores "
        "with parameters as they start. At factor 1 the loud key is one of 64 like the others.",
        "所有打分使用相同的查询和键，维数 64、方差 1；带参数的打分取初始值。倍数为 1 时该键与其余 63 个无异。",
    )
    seconds = (1.5, 15.0)

    scores: dict[str, Callable[[], Score]] = field(default_factory=lambda: defences(DIM))
    quick: int = 60
    full: int = 600
    factors: tuple[float, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 1024)

    def measure(self, run: Run) -> Numbers:
        """Fractions of captured queries (draws x factors) for each score."""
        draws = run.pick(self.quick, self.full)
        captured: dict[str, list[list[float]]] = {name: [] for name in self.scores}
        half: dict[str, list[list[float]]] = {name: [] for name in self.scores}
        for draw in run.steps(range(draws)):
            generator = run.generator("G1", draw)
            query = torch.randn(QUERIES, DIM, generator=generator)
            key = torch.randn(KEYS, DIM, generator=generator)
            for name, make in self.scores.items():
                # Scores with parameters get new initial values in every draw, the same at all factors.
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(1000 * run.seed + draw)
                    score = make()
                found = [shares(query, key, score, r) for r in self.factors]
                captured[name].append([top for top, _ in found])
                half[name].append([most for _, most in found])
        return {"factors": list(self.factors), "captured": captured, "half": half}

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        last = {name: mean([row[-1] for row in rows]) for name, rows in numbers["captured"].items()}
        resist = {name: x for name, x in last.items() if name not in ATTACKED}
        facts = [
            Fact(
                Text(f"captured, {STYLES[name][0].en}", f"被劫持，{STYLES[name][0].zh}"),
                *last[name],
            )
            for name in ("dot", "scaled dot", "additive")
        ]
        worst = max(resist, key=lambda name: resist[name].value)
        if worst != "additive":
            word = STYLES[worst][0]
            facts.append(Fact(Text(f"captured, {word.en}", f"被劫持，{word.zh}"), *last[worst]))
        attacked = [last[name] for name in ATTACKED]
        if any(x.below(CAPTURED) for x in attacked):
            least = min(attacked, key=lambda x: x.value)
            because = Text(
                f"Only {least.value:.2f} of the queries are captured.",
                f"只有 {least.value:.2f} 的查询被劫持。",
            )
            return Judgement(ClaimVerdict.FAILS, because, tuple(facts))
        unsure = any(not x.above(CAPTURED) for x in attacked)
        unsure |= any(x.low <= SAFE < x.high for x in resist.values())
        if unsure:
            because = Text(
                "An interval reaches across its bar: more draws are needed.",
                "有区间跨过界线：需要更多抽样。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, tuple(facts))
        onset = self.onset(numbers)
        start = Text(
            f"Scaled dot loses a quarter of its queries to a key {onset:g} times as long.",
            f"键长 {onset:g} 倍时，缩放点积已失去四分之一的查询。",
        )
        weak = [STYLES[name][0] for name, x in resist.items() if x.above(SAFE)]
        if not weak:
            return Judgement(ClaimVerdict.HOLDS, start, tuple(facts))
        if len(weak) == len(resist):
            because = Text("Every score is captured alike.", "所有打分同样被劫持。")
            return Judgement(ClaimVerdict.FAILS, because, tuple(facts))
        because = Text(
            f"{start.en} Not every defence resists: {', '.join(x.en for x in weak)}.",
            f"{start.zh}并非所有防御都有效，失效的有：{'、'.join(x.zh for x in weak)}。",
        )
        return Judgement(ClaimVerdict.CONDITIONS, because, tuple(facts))

    def onset(self, numbers: Numbers) -> float:
        """The smallest factor at which the loud key captures a quarter of scaled dot's queries."""
        columns = zip(*numbers["captured"]["scaled dot"], strict=True)
        lost = (
            r
            for r, each in zip(numbers["factors"], columns, strict=True)
            if mean(each).value >= 0.25
        )
        return next(lost, numbers["factors"][-1])

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Fractions of captured queries against the norm."""
        panels = canvas.panels(2, high=3.7)
        titles = (
            ("captured", Text("largest weight on one key", "最大权重落在一个键上")),
            ("half", Text("over half of the weight on one key", "一半以上权重落在一个键上")),
        )
        for axes, (kind, title) in zip(panels, titles, strict=True):
            for name, rows in numbers[kind].items():
                label, ink, mark, line = STYLES[name]
                middle, low, high = bands(list(zip(*rows, strict=True)))
                canvas.line(
                    axes, numbers["factors"], middle, label=label, low=low, high=high,
                    color=ink, marker=mark, ls=line,
                )  # fmt: skip
            canvas.bar_line(axes, 0.5, Text("limit for dot: 1/2", "点积的极限：1/2"))
            if kind == "captured":
                axes.axhline(SAFE, color="#444444", ls=":", lw=1.1)
            axes.set_xscale("log", base=2)
            axes.set_ylim(-0.02, 0.56)
            norm = Text("norm of one key (multiple of others')", "一个键的范数（其他键的倍数）")
            canvas.label(axes, norm, Text("share of queries", "查询比例"), title)
        handles, labels = panels[0].get_legend_handles_labels()
        canvas.figure.legend(
            handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8
        )


def shares(query: Tensor, key: Tensor, score: Score, factor: float) -> tuple[float, float]:
    """Fractions of queries with their largest weight, and with over half of it, on the lengthened first key."""
    loud = torch.cat([key[:1] * factor, key[1:]])
    with torch.no_grad():
        logits = regard.score(query, loud, score)
    if score.softcap is not None:
        logits = score.softcap * torch.tanh(logits / score.softcap)
    top, half = logits.argmax(-1) == 0, logits.softmax(-1)[:, 0] > 0.5
    return float(top.double().mean()), float(half.double().mean())
