"""G3: unlike modalities favour separate projections and tanh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

import regard
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, compete
from regard.claims.tools.models import Matcher
from regard.figures.canvas import LOOKS, RED, WORDS, Canvas
from regard.measuring.statistics import Estimate, difference, mean
from regard.stabilize import Normalized
from regard.synthetic.volumes import Volumes
from regard.text import Text

# Dims of the two modalities, and the width to which both are projected.
QUERY, KEY, WIDTH = 8, 12, 24
# Smallest difference in accuracy that counts as a lead.
MARGIN = 0.02
TASK = Volumes(query_dim=QUERY, key_dim=KEY, keys=8)
QUICK = Budget(steps=250, batch=32, rates=(1e-2, 3e-2), held=512)
FULL = Budget(steps=1500, batch=32, rates=(3e-3, 1e-2, 3e-2), held=1024)
# The halves of the statement, each as the score that should lead and the one that it is compared with.
CONTESTS = {
    "separate": ("dot", "shared"),
    "tanh": ("additive", "dot"),
    "tanh, normalised": ("additive norm", "dot norm"),
}
CONTEST_WORDS = {
    "separate": Text("separate projections over a shared one", "分开投影优于共享投影"),
    "tanh": Text("tanh over dot, no LayerNorm", "tanh 优于点积（无 LayerNorm）"),
    "tanh, normalised": Text("tanh over dot, with LayerNorm", "tanh 优于点积（有 LayerNorm）"),
}
STYLES = {
    "shared": (Text("scaled dot, one shared projection", "缩放点积，共享投影"), RED, "v", "-"),
    "dot": (WORDS["scaled dot"], *LOOKS["scaled dot"], "-"),
    "additive": (WORDS["additive"], *LOOKS["additive"], "-"),
    "dot norm": (
        Text("scaled dot + LayerNorm", "缩放点积 + LayerNorm"),
        *LOOKS["scaled dot"],
        "--",
    ),
    "additive norm": (Text("additive + LayerNorm", "加性 + LayerNorm"), *LOOKS["additive"], "--"),
}


class Shared(nn.Module):
    """One projection for both modalities, with the narrower one padded by zeros.

    The projection is wider, so that it has as many parameters as two separate ones.
    """

    def __init__(self) -> None:
        super().__init__()
        project = nn.Linear(KEY, round(WIDTH * (QUERY + KEY) / KEY), bias=False)
        pad = nn.ZeroPad1d((0, KEY - QUERY))
        self.match = Matcher(regard.ScaledDot(), nn.Sequential(pad, project), project)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Query (B, 8), keys (B, n, 12) to logits (B, n)."""
        return self.match(query, key)


def competitors() -> dict[str, Callable[[], nn.Module]]:
    """By the names of `STYLES`."""
    dot = lambda: regard.Projected(regard.ScaledDot(), QUERY, KEY, width=WIDTH)  # noqa: E731
    additive = lambda: regard.Projected(regard.Additive(WIDTH, bias=True), QUERY, KEY)  # noqa: E731
    return {
        "shared": Shared,
        "dot": lambda: Matcher(dot()),
        "additive": lambda: Matcher(additive()),
        "dot norm": lambda: Matcher(Normalized(dot(), (QUERY, KEY), "layer")),
        "additive norm": lambda: Matcher(Normalized(additive(), (QUERY, KEY), "layer")),
    }


@dataclass(frozen=True)
class UnlikeModalities(Claim):
    """The same latent seen in 8 and in 12 dims; keys of equal or 10 times the scale, steady or varying."""

    id = "G3"
    statement = Text(
        "Between unlike modalities, separate projections and tanh (additive attention) serve best.",
        "在不同模态之间，分开的投影加 tanh（加性注意力）最合适。",
    )
    criterion = Text(
        "In every case (keys as large as queries at a steady volume; the same, swinging with a log "
        "spread of 1; 10 times as large, swinging): separate projections are ahead of one shared projection, and additive is ahead of scaled dot, without and with "
        "LayerNorm; ahead: the 95% interval of the paired difference of accuracy is above 0.02. With "
        "conditions: some of these; it does not hold where no case has both the separation and "
        "tanh ahead.",
        "在每种情形（键与查询同尺度、音量稳定；同尺度、以对数离散度 1 波动；大 10 倍、波动）下：分开投影领先于共享投影；且无论有无 LayerNorm，加性都领先于"
        "缩放点积。领先：准确率配对差的 95% 区间高于 0.02。附条件成立：仅部分成立；若没有一种情形使分开投影与 tanh "
        "同时领先，则不成立。",
    )
    meaning = Text(
        "Give every modality its own projection. Choose tanh for swinging volumes only where you "
        "cannot normalise: after LayerNorm the plain dot does as well.",
        "给每种模态各自的投影。只有在无法归一化时，才为应对音量波动而选 tanh：做了 LayerNorm 之后，普通点积同样好。",
    )
    caption = Text(
        "Accuracy of finding the key of the other modality among 8, where keys are as large as queries "
        "or 10 times, at a steady or a swinging volume. Whiskers: 95% over seeds. Dotted: chance.",
        "在 8 个另一模态的键中找到对应者的准确率：键与查询同尺度或大 10 倍，音量稳定或波动。误差线为各种子的 95% "
        "区间。点线：随机水平。",
    )
    control = Text(
        "Same data, seeds, steps and learning rates to try, the best kept in each case; the shared projection is wider, so that "
        "all have the same parameters within 15%. What both modalities show (8 dims each) does not "
        "fit side by side into the 12 dims that a shared projection sees: with room to spare it could "
        "keep them apart.",
        "数据、种子、步数和可选学习率相同，每种情形各取最好的学习率；共享投影更宽，使各模型参数量相差在 15% 以内。两种模态所含的内容（各 8 维）"
        "无法在共享投影所见的 12 维中并排放下：若空间有余，共享投影也能将二者分开。",
    )
    seconds = (10.0, 180.0)

    # (scale of the keys, standard deviation of their log volume).
    cases: tuple[tuple[float, float], ...] = ((1, 0), (1, 1), (10, 1))
    task: Volumes = TASK
    quick: Budget = QUICK
    full: Budget = FULL
    builds: dict[str, Callable[[], nn.Module]] = field(default_factory=competitors)

    def measure(self, run: Run) -> Numbers:
        """Accuracy (cases x seeds) of every competitor."""
        kinds = len(self.cases)
        # Every pair of seed and case is a separate world; all of them are trained together.
        codes = [seed * kinds + kind for seed in run.seeds(run.pick(5, 8)) for kind in range(kinds)]

        def world(code: int) -> Volumes:
            seed, kind = divmod(code, kinds)
            scale, spread = self.cases[kind]
            return replace(self.task, scale=scale, spread=spread, world=seed)

        budget = run.pick(self.quick, self.full)
        trained = compete(self.builds, world, codes, budget, run, kinds)
        return {
            "cases": [list(case) for case in self.cases],
            "keys": self.task.keys,
            "accuracy": {
                name: [one.quality[kind::kinds] for kind in range(kinds)]
                for name, one in trained.items()
            },
            "parameters": {name: one.parameters for name, one in trained.items()},
            "rates": {name: one.rates for name, one in trained.items()},
        }

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        accuracy = numbers["accuracy"]
        gaps = {
            contest: [
                difference(a, b) for a, b in zip(accuracy[first], accuracy[second], strict=True)
            ]
            for contest, (first, second) in CONTESTS.items()
        }
        ahead = {contest: [led(gap) for gap in each] for contest, each in gaps.items()}
        facts = []
        for contest, word in CONTEST_WORDS.items():
            best = max(range(len(numbers["cases"])), key=lambda n: gaps[contest][n].value)
            case = describe(numbers["cases"][best])
            label = Text(f"{word.en}, at best ({case.en})", f"{word.zh}，最好时（{case.zh}）")
            facts.append(Fact(label, *gaps[contest][best]))
        facts = tuple(facts)
        because = self.where(numbers["cases"], ahead, gaps["tanh"])
        if all(yes is True for each in ahead.values() for yes in each):
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        each = list(zip(*(ahead[contest] for contest in CONTESTS), strict=True))
        # It holds if both halves are true in the same case, for tanh with or without LayerNorm.
        if any(split and (plain or normed) for split, plain, normed in each):
            return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        if all(
            split is False or (plain is False and normed is False) for split, plain, normed in each
        ):
            return Judgement(ClaimVerdict.FAILS, because, facts)
        more = Text(
            f"{because.en} Intervals reach across {MARGIN}: more seeds are needed.",
            f"{because.zh}有区间跨过 {MARGIN}：需要更多种子。",
        )
        return Judgement(ClaimVerdict.UNDECIDED, more, facts)

    def where(
        self,
        cases: list[list[float]],
        ahead: dict[str, list[bool | None]],
        gaps: list[Estimate],
    ) -> Text:
        """The cases in which each half of the statement holds, and the gaps of tanh, in words."""
        en, zh = [], []
        for contest, word in CONTEST_WORDS.items():
            at = [describe(c) for c, yes in zip(cases, ahead[contest], strict=True) if yes is True]
            en.append(f"{word.en}: {' and '.join(x.en for x in at) or 'nowhere'}")
            zh.append(f"{word.zh}：{'、'.join(x.zh for x in at) or '无'}")
        lost = [describe(c) for c, gap in zip(cases, gaps, strict=True) if gap.below(-MARGIN)]
        behind = Text("", "")
        if lost:
            behind = Text(
                f" Without LayerNorm tanh is behind dot at {' and '.join(x.en for x in lost)}.",
                f"无 LayerNorm 时，tanh 落后于点积之处：{'、'.join(x.zh for x in lost)}。",
            )
        return Text(
            f"Ahead: {'; '.join(en)}.{behind.en}", f"领先之处——{'；'.join(zh)}。{behind.zh}"
        )

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Accuracy of every competitor in each case."""
        (axes,) = canvas.panels(1, wide=8, high=3.6)
        for number, (name, (label, ink, mark, line)) in enumerate(STYLES.items()):
            each = [mean(x) for x in numbers["accuracy"][name]]
            whisker = [[x.value - x.low for x in each], [x.high - x.value for x in each]]
            spots = [place + 0.12 * (number - 2) for place in range(len(each))]
            axes.errorbar(
                spots, [x.value for x in each], whisker, fmt=mark, color=ink, ms=6.5, capsize=3,
                mfc="white" if line == "--" else ink, label=canvas.say(label),
            )  # fmt: skip
        chance = canvas.say(Text("chance", "随机"))
        axes.axhline(1 / numbers["keys"], color="#444444", ls=":", lw=1.1, label=chance)
        axes.set_ylim(0, 1.05)
        cases = [canvas.say(describe(case)) for case in numbers["cases"]]
        axes.set_xticks(range(len(cases)), cases)
        canvas.label(axes, Text("keys", "键"), Text("accuracy", "准确率"))
        canvas.figure.legend(loc="outside right center", frameon=False, fontsize=8)


def describe(case: list[float]) -> Text:
    """Scale and spread of a case, in words."""
    scale, spread = case
    steady = Text("swinging", "波动") if spread else Text("steady", "稳定")
    return Text(f"{scale:g}× {steady.en}", f"{scale:g} 倍{steady.zh}")


def led(gap: Estimate) -> bool | None:
    """Whether the lead exceeds `MARGIN`; None if the interval leaves it open."""
    if gap.above(MARGIN):
        return True
    return False if gap.below(MARGIN) else None
