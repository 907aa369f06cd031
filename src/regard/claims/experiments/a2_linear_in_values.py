"""A2: the output is linear in the values; all non-linearity is in the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import regard
from regard import Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.untrained import BUILDS, untrained
from regard.figures.canvas import BLUE, GREEN, RED, WORDS, Canvas
from regard.text import Text

Attend = Callable[[Tensor, Tensor, Tensor, Score], Tensor]
INPUTS = ("values", "queries", "keys")
LOOK = {"values": (BLUE, "o"), "queries": (RED, "v"), "keys": (GREEN, "s")}
NAMES = {
    "values": Text("values V", "值 V"),
    "queries": Text("queries Q", "查询 Q"),
    "keys": Text("keys K", "键 K"),
}
EXACT = 1e-12  # largest relative defect that rounding explains: fp64 sums of a few terms
CURVED = 0.01
FACTORS = (0.7, -1.3)
DIM, QUERIES, KEYS = 8, 4, 6


@dataclass(frozen=True)
class LinearInValues(Claim):
    """Compares f(a x + b y) with a f(x) + b f(y) for queries, keys and values in turn."""

    id = "A2"
    statement = Text(
        "The output is linear in the values; all non-linearity is in the weights.",
        "输出对值是线性的；所有非线性都在权重里。",
    )
    criterion = Text(
        "For each of six scores, the largest relative defect of superposition is at most 1e-12 in V, "
        "and in every trial above 1% in Q and above 1% in K.",
        "对六种打分函数的每一种：对 V 叠加的最大相对偏差不超过 1e-12；对 Q、对 K 则在每次试验中都超过 1%。",
    )
    meaning = Text(
        "Values may be scaled, mixed or projected before or after attention with the same result. "
        "A layer selects only through its queries and keys.",
        "值可以在注意力之前或之后缩放、混合、投影，结果相同。一层只能通过查询与键进行选择。",
    )
    caption = Text(
        "Left: the worst relative defect of superposition for each score (largest for V, smallest "
        "for Q and K). Right: one input moves on a straight line from x to y (scaled dot): how far "
        "the output leaves its own straight line; bands are the middle 80% of trials.",
        "左：每种打分函数的叠加相对偏差，取最不利的试验（V 取最大，Q、K 取最小）。右：一个输入沿直线从 x "
        "移到 y（缩放点积），输出偏离直线的程度；色带为中间 80% 的试验。",
    )
    control = Text(
        "The same two other inputs on both sides of each equation; all in fp64.",
        "每个等式两边的另外两个输入相同；全部用 fp64。",
    )
    seconds = (0.5, 1.0)

    attend: Attend = regard.attention
    scores: tuple[str, ...] = tuple(BUILDS)

    def measure(self, run: Run) -> Numbers:
        """Superposition defects of every score, and the path of the output between two inputs."""
        trials = run.pick(32, 256)
        defects: dict[str, dict[str, list[float]]] = {}
        for name in run.steps(self.scores):
            first, second, score = problems(name, trials, run)
            defects[name] = {}
            for part in INPUTS:
                defect = self.defect(first, second, part, score)
                defects[name][part] = [float(defect.min()), float(defect.max())]
        return {"trials": trials, "defects": defects, "way": self.way(trials, run)}

    def output(self, problem: dict[str, Tensor], score: Score) -> Tensor:
        """Output of attention for one batch of problems."""
        return self.attend(problem["queries"], problem["keys"], problem["values"], score)

    def defect(
        self, first: dict[str, Tensor], second: dict[str, Tensor], part: str, score: Score
    ) -> Tensor:
        """Relative defect of superposition in one input, for each trial."""
        a, b = FACTORS
        mixed = first | {part: a * first[part] + b * second[part]}
        one = a * self.output(first, score)
        two = b * self.output(first | {part: second[part]}, score)
        return size(self.output(mixed, score) - one - two) / (size(one) + size(two))

    def way(self, trials: int, run: Run) -> Numbers:
        """Distance of the output from a straight line while one input moves along a straight line."""
        first, second, score = problems("scaled dot", trials, run)
        times = torch.linspace(0, 1, 21, dtype=torch.float64)
        found: Numbers = {"time": times.tolist()}
        for part in INPUTS:
            start = self.output(first, score)
            end = self.output(first | {part: second[part]}, score)
            gone = []
            for t in times:
                between = first | {part: (1 - t) * first[part] + t * second[part]}
                line = (1 - t) * start + t * end
                gone.append(size(self.output(between, score) - line) / size(end - start))
            marks = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
            found[part] = torch.stack(gone).quantile(marks, dim=-1).tolist()
        return found

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        defects = numbers["defects"].values()
        values = max(defect["values"][1] for defect in defects)
        least = {part: min(defect[part][0] for defect in defects) for part in ("queries", "keys")}
        facts = (
            Fact(Text("largest relative defect in V", "V 的最大相对偏差"), values),
            Fact(Text("smallest relative defect in Q", "Q 的最小相对偏差"), least["queries"]),
            Fact(Text("smallest relative defect in K", "K 的最小相对偏差"), least["keys"]),
        )
        if values > EXACT:
            because = Text(
                f"Superposition in V fails by {values:.2g}: the output is not linear in the values.",
                f"对 V 的叠加相差 {values:.2g}：输出对值不是线性的。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        straight = [part for part, defect in least.items() if defect <= CURVED]
        if straight:
            because = Text(
                f"The output is as good as linear in the {' and the '.join(straight)} too.",
                f"输出对{'和'.join(NAMES[part].zh for part in straight)}也几乎是线性的。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        because = Text(
            f"Superposition in V is exact to {values:.0e}; in Q and K it is off by at least "
            f"{min(least.values()):.0%}.",
            f"对 V 的叠加精确到 {values:.0e}；对 Q、K 至少相差 {min(least.values()):.0%}。",
        )
        return Judgement(ClaimVerdict.HOLDS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Superposition defects of every score, and the path of the output between two inputs."""
        left, right = canvas.panels(2, 4.4, 3.2)
        names = list(numbers["defects"])
        for number, part in enumerate(INPUTS):
            worst = 1 if part == "values" else 0
            ink, mark = LOOK[part]
            places = [place + 0.2 * (number - 1) for place in range(len(names))]
            # A logarithmic axis cannot show an exact 0, so it is drawn at the bottom.
            heights = [max(numbers["defects"][name][part][worst], 1e-17) for name in names]
            canvas.line(left, places, heights, label=NAMES[part], color=ink, marker=mark, lw=0)
        left.set_yscale("log")
        left.set_ylim(3e-18, 1e4)
        canvas.bar_line(left, EXACT, Text("bar for V: below", "V 的界：在其下"))
        canvas.bar_line(left, CURVED, Text("bar for Q, K: above", "Q、K 的界：在其上"))
        left.get_lines()[-1].set_linestyle(":")
        words = [canvas.say(WORDS[name]) for name in names]
        left.set_xticks(range(len(names)), words, rotation=30, ha="right", rotation_mode="anchor")
        y = Text("relative defect (no unit)", "相对偏差（无单位）")
        canvas.label(left, "", y, Text("superposition", "叠加"))
        canvas.legend(left, ncols=2, loc="center", bbox_to_anchor=(0.5, 0.5))
        way = numbers["way"]
        for part in INPUTS:
            ink, mark = LOOK[part]
            low, middle, high = way[part]
            canvas.line(
                right, way["time"], middle, label=NAMES[part], low=low, high=high, color=ink,
                marker=mark, markevery=4,
            )  # fmt: skip
        x = Text("place on the way from x to y (share)", "从 x 到 y 的位置（比例）")
        y = Text(
            "distance from the straight line\n(share of its length)", "离直线的距离（占直线长度）"
        )
        canvas.label(right, x, y, Text("one input moves", "移动一个输入"))
        canvas.legend(right, loc="upper left")


def problems(
    name: str, trials: int, run: Run
) -> tuple[dict[str, Tensor], dict[str, Tensor], Score]:
    """Two batches of random inputs and the score."""
    generator = run.generator("A2", name)
    lengths = {"queries": QUERIES, "keys": KEYS, "values": KEYS}

    def batch() -> dict[str, Tensor]:
        return {
            part: torch.randn(trials, length, DIM, generator=generator, dtype=torch.float64)
            for part, length in lengths.items()
        }

    return batch(), batch(), untrained(name, DIM, generator)


def size(x: Tensor) -> Tensor:
    """Norm of each trial's output."""
    return x.flatten(1).norm(dim=-1)
