"""G2: additive shrugs off magnitude outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.func import functional_call

import regard
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, Trained, compete
from regard.claims.tools.models import Matcher
from regard.figures.canvas import GREY, LOOKS, WORDS, Canvas
from regard.measuring.statistics import bands, difference
from regard.stabilize import Normalized
from regard.synthetic.volumes import Volumes
from regard.text import Text

DIM, WIDTH = 8, 24
# Additive shrugs off a spread if it loses at most this accuracy compared with keys of equal norm.
LOSS = 0.1
TASK = Volumes(keys=8)
QUICK = Budget(steps=250, batch=48, rates=(1e-2, 3e-2), held=512)
FULL = Budget(steps=1500, batch=48, rates=(3e-3, 1e-2, 3e-2), held=1024)
MODES = {
    "seen": Text("trained at that spread", "在该离散度下训练"),
    "unseen": Text("trained at equal norms", "在等范数下训练"),
}
STYLES = {
    "scaled dot": (WORDS["scaled dot"], *LOOKS["scaled dot"]),
    "additive": (WORDS["additive"], *LOOKS["additive"]),
    "normalised": (Text("scaled dot + LayerNorm", "缩放点积 + LayerNorm"), GREY, "X"),
}


def competitors() -> dict[str, Callable[[], nn.Module]]:
    """The competitors, each behind projections of the same width."""
    dot = lambda: regard.Projected(regard.ScaledDot(), DIM, DIM, width=WIDTH)  # noqa: E731
    additive = lambda: regard.Projected(regard.Additive(WIDTH, bias=True), DIM, DIM)  # noqa: E731
    return {
        "scaled dot": lambda: Matcher(dot()),
        "additive": lambda: Matcher(additive()),
        "normalised": lambda: Matcher(Normalized(dot(), DIM, "layer")),
    }


@dataclass(frozen=True)
class OutlierNorms(Claim):
    """Find the key with the query's direction when key norms are log-normal with a given spread.

    With a spread of 1 one key in six is over e = 2.7 times as long as the median.
    """

    id = "G2"
    statement = Text(
        "Additive attention shrugs off keys of outlying magnitude, which mislead dot attention.",
        "加性注意力不受幅度异常的键影响，而点积注意力会被误导。",
    )
    criterion = Text(
        "At every spread of the log norm (0.5, 1, 2), trained at that spread or at equal norms, "
        "additive is more accurate than scaled dot (95% interval of the paired difference above 0) "
        "and loses less than 0.1 of accuracy against equal norms. With conditions: at some of them.",
        "在对数范数的每个离散度（0.5、1、2）下，无论在该离散度还是在等范数下训练，加性都比缩放点积准确"
        "（配对差的 95% 区间在 0 以上），且相对等范数损失的准确率小于 0.1。附条件成立：仅在其中一部分成立。",
    )
    meaning = Text(
        "Where norms carry no meaning and vary, normalise queries and keys first: that costs almost "
        "nothing and helps far more than a change of score. Without it, additive is ahead of dot mainly "
        "where it was trained on such norms.",
        "若范数无意义又多变，请先对查询和键做归一化：代价几乎为零，效果远胜更换打分函数。不归一化时，加性主要在训练中见过这种范数的情况下才优于点积。",
    )
    caption = Text(
        "Accuracy of retrieval by direction among 8 keys against the spread of their log norm. "
        "Left: trained at that spread; right: trained at equal norms. Bands: 95% over seeds. Dotted: "
        "chance.",
        "在 8 个键中按方向检索的准确率，随其对数范数的离散度变化。左：在该离散度下训练；右：在等范数下训练。"
        "色带为各种子的 95% 区间。点线：随机水平。",
    )
    control = Text(
        "Same projections' width, data, seeds, steps and learning rates to try (the best is kept at "
        "each spread); parameters differ by "
        "at most 13%. LayerNorm before scaled dot is the cheap alternative.",
        "投影宽度、数据、种子、步数和可选学习率相同（每个离散度各取最好的）；参数量相差不超过 13%。缩放点积前加 LayerNorm 是廉价的替代方案。",
    )
    seconds = (8.0, 150.0)

    spreads: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)
    builds: dict[str, Callable[[], nn.Module]] = field(default_factory=competitors)
    task: Volumes = TASK
    quick: Budget = QUICK
    full: Budget = FULL

    def measure(self, run: Run) -> Numbers:
        """Accuracy (spreads x seeds) of every competitor."""
        kinds = len(self.spreads)
        # Every pair of seed and spread is a separate world; all of them are trained together.
        codes = [seed * kinds + kind for seed in run.seeds(run.pick(4, 8)) for kind in range(kinds)]
        worlds = [replace(self.task, spread=spread) for spread in self.spreads]
        budget = run.pick(self.quick, self.full)
        trained = compete(self.builds, lambda code: worlds[code % kinds], codes, budget, run, kinds)
        numbers: Numbers = {"spreads": list(self.spreads), "keys": self.task.keys}
        numbers |= {"seen": {}, "unseen": {}, "parameters": {}}
        for name, one in trained.items():
            numbers["seen"][name] = [one.quality[kind::kinds] for kind in range(kinds)]
            # "unseen": models trained at the first spread are tested at all spreads, each on its own data.
            first = range(0, len(codes), kinds)
            numbers["unseen"][name] = [
                [tested(one, number, world, run.generator("G2", codes[number])) for number in first]
                for world in worlds
            ]
            numbers["parameters"][name] = one.parameters
        return numbers

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        spreads = numbers["spreads"]
        found = {
            (mode, spread): self.shrugged(numbers[mode], place)
            for mode in MODES
            for place, spread in enumerate(spreads)
            if spread > 0
        }
        additive, dot = numbers["seen"]["additive"], numbers["seen"]["scaled dot"]
        ahead = difference(additive[-1], dot[-1])
        lost = difference(additive[0], additive[-1])
        behind = difference(numbers["seen"]["normalised"][-1], additive[-1])
        facts = (
            Fact(Text("additive over dot, widest spread", "加性比点积，最大离散度"), *ahead),
            Fact(Text("lost by additive there", "加性在该处的损失"), *lost),
            Fact(
                Text("LayerNorm + dot over additive there", "LayerNorm + 点积比加性，该处"), *behind
            ),
        )
        if all(each is True for each in found.values()):
            because = Text(
                f"It loses at most {LOSS} at every spread and beats dot.",
                f"在每个离散度下损失都不超过 {LOSS}，且优于点积。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        if any(each is True for each in found.values()):
            return Judgement(ClaimVerdict.CONDITIONS, self.where(found, numbers), facts)
        if all(each is False for each in found.values()):
            because = Text(
                f"At no spread does it both beat dot and lose less than {LOSS}; at the widest it "
                f"loses {lost.value:.2f}.",
                f"没有一个离散度下它既优于点积又损失小于 {LOSS}；最大离散度下损失 {lost.value:.2f}。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        because = Text(
            "An interval reaches across its bar: more seeds are needed.",
            "有区间跨过界线：需要更多种子。",
        )
        return Judgement(ClaimVerdict.UNDECIDED, because, facts)

    def shrugged(self, accuracy: Numbers, place: int) -> bool | None:
        """Whether additive shrugs off this spread; None if the intervals leave it open."""
        additive = accuracy["additive"]
        ahead = difference(additive[place], accuracy["scaled dot"][place])
        lost = difference(additive[0], additive[place])
        if ahead.below(0) or lost.above(LOSS):
            return False
        return True if ahead.above(0) and lost.below(LOSS) else None

    def where(self, found: dict[tuple[str, float], bool | None], numbers: Numbers) -> Text:
        """The spreads that additive shrugs off, and whether it is ahead of dot everywhere, in words."""
        ahead = all(
            difference(a, d).above(0)
            for mode in MODES
            for a, d in list(
                zip(numbers[mode]["additive"], numbers[mode]["scaled dot"], strict=True)
            )[1:]
        )
        lines_en, lines_zh = [], []
        for mode, word in MODES.items():
            held = [f"{s:g}" for (m, s), each in found.items() if m == mode and each is True]
            lines_en.append(f"{word.en}: {', '.join(held) if held else 'none'}")
            lines_zh.append(f"{word.zh}：{'、'.join(held) if held else '无'}")
        more_en = " It is ahead of dot at every spread." if ahead else ""
        more_zh = "它在所有离散度下都优于点积。" if ahead else ""
        return Text(
            f"It is ahead of dot and loses less than {LOSS} only at some spreads "
            f"({'; '.join(lines_en)}).{more_en}",
            f"仅在部分离散度下既优于点积、损失又小于 {LOSS}（{'；'.join(lines_zh)}）。{more_zh}",
        )

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Accuracy against spread, for spreads seen and unseen in training."""
        panels = canvas.panels(2, high=3.4)
        for axes, (mode, word) in zip(panels, MODES.items(), strict=True):
            for name, (label, ink, mark) in STYLES.items():
                middle, low, high = bands(numbers[mode][name])
                canvas.line(
                    axes, numbers["spreads"], middle, label=label, low=low, high=high,
                    color=ink, marker=mark,
                )  # fmt: skip
            axes.axhline(1 / numbers["keys"], color="#444444", ls=":", lw=1.1)
            axes.set_ylim(0, 1.05)
            spread = Text("spread of log norm", "对数范数的离散度")
            canvas.label(axes, spread, Text("accuracy", "准确率"), word)
        handles, labels = panels[0].get_legend_handles_labels()
        canvas.figure.legend(
            handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8
        )


def tested(trained: Trained, number: int, world: Volumes, generator: torch.Generator) -> float:
    """Accuracy of one seed's model in a world that it may not have been trained in."""
    query, key, right = world.sample(1024, generator)
    with torch.no_grad():
        logits = functional_call(trained.model, trained.member(number), (query, key))
    return float(world.quality(logits, right))
