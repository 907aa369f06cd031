"""B1: the dot product is norm times norm times cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.untrained import pair_scores, untrained
from regard.figures.canvas import Canvas
from regard.text import Text

EXACT = 1e-12
DEPARTS = 0.1
MARKS = ("v", "o", "s")


@dataclass(frozen=True)
class NormsAndCosine(Claim):
    """Scores of pairs with known norms and angles; then scores of queries multiplied by growing factors."""

    id = "B1"
    statement = Text(
        "The dot product is norm × norm × cosine: scaling the query scales the score by the same "
        "factor. The additive score does not follow.",
        "点积 = 范数 × 范数 × 余弦：查询放大多少倍，分数就放大多少倍。加性打分则不然。",
    )
    criterion = Text(
        "For pairs built with given norms and angle, the dot score is within 1e-12 of norm × norm × "
        "cosine, relative to the norms; scaling q by c scales it by c, as closely; and the additive score "
        "departs from c times its own by over 10% in the median, for each c of 2 or more.",
        "对按给定范数和夹角构造的向量对，点积与“范数 × 范数 × 余弦”的偏差（相对范数之积）不超过 1e-12；q 放大 c 倍时"
        "分数也放大 c 倍（同样精确）；而加性打分在每个 c ≥ 2 时偏离其 c 倍的中位数超过 10%。",
    )
    meaning = Text(
        "With dot a long query attends harder and a long key is attended more, whatever the angle. If "
        "length means nothing in your data, normalise, or take cosine or additive.",
        "用点积时，查询越长注意越集中，键越长越受注意，与角度无关。若数据中长度没有意义，请归一化，或用余弦、加性打分。",
    )
    caption = Text(
        "Left: dot scores of pairs built with these norms (marks) on norm × norm × cosine (dashed). "
        "Right: how much a score grows when the query is made c times as long: median over pairs, "
        "bands the middle 80%; dashed: in proportion.",
        "左：按这些范数构造的向量对的点积（标记）与“范数 × 范数 × 余弦”（虚线）。右：查询加长 c 倍时分数增长的倍数："
        "各对的中位数，色带为中间 80%；虚线：成正比。",
    )
    control = Text(
        "The angle comes from the construction, not from the dot product; all scores see the same pairs.",
        "夹角来自构造，而非由点积算得；各打分函数使用相同的向量对。",
    )
    seconds = (0.5, 0.5)

    product: str = "dot"  # the score that should equal norm x norm x cosine
    other: str = "additive"  # the score that should not be proportional to the norm
    shown: tuple[str, ...] = ("scaled dot", "bilinear", "cosine")
    norms: tuple[tuple[float, float], ...] = ((1.0, 1.0), (2.0, 1.0), (2.0, 3.0))
    factors: tuple[float, ...] = (1.0, 2.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
    dim: int = 16

    def measure(self, run: Run) -> Numbers:
        """Deviation from the identity over angles, then growth over factors."""
        generator = run.generator("B1")
        angles = torch.linspace(0, math.pi, 25, dtype=torch.float64)
        score = untrained(self.product, self.dim, generator)
        found: Numbers = {
            "degrees": torch.rad2deg(angles).tolist(), "norms": [list(x) for x in self.norms],
            "factors": list(self.factors), "product": self.product, "other": self.other,
            "scores": [], "identity": [], "growth": {},
        }  # fmt: skip
        for one, two in self.norms:
            query, key = at_angles(angles, self.dim, generator)
            scores = pair_scores(one * query, two * key, score)
            error = (scores - one * two * angles.cos()).abs().max() / (one * two)
            found["scores"].append(scores.tolist())
            found["identity"].append(float(error))
        count = run.pick(200, 2000)
        query, key = (
            torch.randn(count, self.dim, generator=generator, dtype=torch.float64) for _ in range(2)
        )
        for name in run.steps((self.product, self.other, *self.shown)):
            score = untrained(name, self.dim, run.generator("B1", name))
            found["growth"][name] = self.growth(query, key, score)
        return found

    def growth(self, query: Tensor, key: Tensor, score: Score) -> Numbers:
        """How scores grow with the query, and how far the growth is from proportional."""
        start = pair_scores(query, key, score)
        factors = torch.tensor(self.factors, dtype=torch.float64).unsqueeze(-1)
        scores = torch.stack([pair_scores(c * query, key, score) for c in self.factors])
        departs = (scores / (factors * start) - 1).abs()
        norms = query.norm(dim=-1) * key.norm(dim=-1)
        marks = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        return {
            # A score that does not scale may change its sign, so absolute values are drawn.
            "ratio": (scores / start).abs().quantile(marks, dim=-1).tolist(),
            "departs": departs.median(-1).values.tolist(),
            # Relative to the norms, because a score near 0 has lost most of its digits.
            "departs at most": float((scores / factors - start).div(norms).abs().max()),
        }

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        identity = max(numbers["identity"])
        scaling = numbers["growth"][numbers["product"]]["departs at most"]
        departs = numbers["growth"][numbers["other"]]["departs"]
        least = min(d for d, c in zip(departs, numbers["factors"], strict=True) if c >= 2)
        facts = (
            Fact(Text("largest error of the identity", "恒等式的最大误差"), identity),
            Fact(Text("dot: largest departure from c", "点积：偏离 c 的最大值"), scaling),
            Fact(
                Text("additive: least median departure", "加性：偏离中位数的最小值"),
                100 * least,
                unit="%",
            ),
        )
        if identity > EXACT or scaling > EXACT:
            because = Text(
                f"The score is not norm × norm × cosine: off by {max(identity, scaling):.2g}.",
                f"分数不等于“范数 × 范数 × 余弦”：相差 {max(identity, scaling):.2g}。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        if least <= DEPARTS:
            because = Text(
                f"The other score follows the query's norm too: it departs by only {least:.1%}.",
                f"另一种打分也随查询的范数变化：只偏离 {least:.1%}。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        because = Text(
            f"The identity holds to {identity:.0e} and scaling to {scaling:.0e}; the additive score "
            f"departs from proportion by at least {least:.0%} in the median.",
            f"恒等式精确到 {identity:.0e}，比例精确到 {scaling:.0e}；加性打分偏离比例的中位数至少 {least:.0%}。",
        )
        return Judgement(ClaimVerdict.HOLDS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Score against angle; growth against factor."""
        left, right = canvas.panels(2, 4.4, 3.2)
        degrees = numbers["degrees"]
        curves = zip(numbers["norms"], numbers["scores"], MARKS, strict=False)
        for (one, two), scores, mark in curves:
            label = Text(f"‖q‖ = {one:g}, ‖k‖ = {two:g}", f"‖q‖ = {one:g}，‖k‖ = {two:g}")
            canvas.line(left, degrees, scores, numbers["product"], label=label, marker=mark, lw=0)
            theory = [one * two * math.cos(math.radians(x)) for x in degrees]
            left.plot(degrees, theory, color="#444444", ls="--", lw=1)
        x = Text("angle between q and k (degrees)", "q 与 k 的夹角（度）")
        canvas.label(left, x, Text("score (no unit)", "分数（无单位）"), "‖q‖ ‖k‖ cos θ")
        left.set_xticks(range(0, 181, 45))
        canvas.legend(left, loc="upper right")
        factors = numbers["factors"]
        right.plot(factors, factors, color="#444444", ls="--", lw=1, label="c", zorder=5)
        for name, found in numbers["growth"].items():
            low, middle, high = found["ratio"]
            canvas.line(right, factors, middle, name, low=low, high=high)
        right.set_xscale("log")
        right.set_yscale("log")
        x = Text("query made c times as long", "查询加长的倍数 c")
        y = Text("size of score (times the first)", "分数的大小（起始值的倍数）")
        canvas.label(right, x, y, Text("a longer query", "加长查询"))
        canvas.legend(right, loc="upper left")


def at_angles(angles: Tensor, dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs of unit vectors at these angles to each other, in random planes: both (angles, dim)."""
    noise = torch.randn(len(angles), dim, 2, generator=generator, dtype=torch.float64)
    across, up = torch.linalg.qr(noise).Q.unbind(-1)
    return across, angles.cos().unsqueeze(-1) * across + angles.sin().unsqueeze(-1) * up
