"""C7: scores near zero mean uniform attention; positions wash out or collapse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.observe import observed
from regard.figures.canvas import Canvas
from regard.measuring.statistics import Estimate, bands, mean
from regard.text import Text

Codes = Callable[[int, int, torch.Generator], Tensor]
SPREADS = (0.01, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
AMPLITUDES = tuple(10 ** (power / 16) for power in range(-16, 25))  # 0.1 to 32
SMALL = 0.5  # largest standard deviation of scores at which the entropy is compared with the theory
NEAR = 0.01  # allowed deviation from the theory, relative to ln n
FOUND = 0.9  # positions work if this fraction of queries finds its position
COLLAPSED = 0.1  # collapsed: an entropy below this fraction of ln n
CHANCE = 2.0  # washed out: an accuracy below this many times chance
WORDS = {
    "sinusoidal": Text("sinusoidal", "正弦编码"),
    "random": Text("random directions", "随机方向编码"),
}


def words(name: str) -> Text:
    """The label of an encoding; an encoding that a test adds is labelled by its name."""
    return WORDS.get(name, Text(name, name))


def sinusoids(count: int, dim: int, generator: torch.Generator) -> Tensor:
    """The Transformer's encoding: sines and cosines of wavelengths 2 pi to 20,000 pi, (count, dim)."""
    place = torch.arange(count).unsqueeze(-1)
    angle = place * 10000 ** (-torch.arange(0, dim, 2) / dim)
    return torch.cat([angle.sin(), angle.cos()], -1)


def directions(count: int, dim: int, generator: torch.Generator) -> Tensor:
    """A random direction for each position, with the norm of a sinusoidal code, (count, dim)."""
    code = torch.randn(count, dim, generator=generator)
    return code * math.sqrt(dim / 2) / code.norm(dim=-1, keepdim=True)


@dataclass(frozen=True)
class Positions(Claim):
    """Positions work in a window of amplitudes: below it the content drowns them, above it one key gets all.

    Scores with a small standard deviation s give weights of entropy `ln n - s^2 / 2`, which is nearly
    uniform whatever the scores are.
    """

    id = "C7"
    statement = Text(
        "Scores near zero mean uniform attention, so that a positional encoding that is too weak washes "
        "out; one that is too strong collapses attention onto one key; in between it works.",
        "分数接近零意味着均匀的注意力，因此位置编码太弱会被淹没，太强会使注意力塌缩到一个键上，介于两者之间才有效。",
    )
    criterion = Text(
        "Entropy within 1% of ln n − s²/2 for scores of spread s up to 0.5. For sinusoidal and for random "
        "codes: at the smallest amplitude fewer queries than twice chance find their position; at the "
        "largest the entropy is below 10% of ln n; and at some amplitude between, 90% find it while the "
        "entropy is above 10%.",
        "分数的离散程度 s 不超过 0.5 时，熵与 ln n − s²/2 相差不超过 ln n 的 1%。对正弦编码和随机编码：幅度最小时，"
        "找到自身位置的查询不到随机水平的两倍；幅度最大时，熵低于 ln n 的 10%；中间某个幅度下，90% 的查询能找到位置，"
        "且熵高于 10%。",
    )
    meaning = Text(
        "Check the entropy of a head before you blame the data: near ln n the positions have no effect, "
        "near 0 nothing else has. Random codes have a narrow window. Sinusoidal codes, whose neighbours "
        "are similar, give the exact position only when they outweigh everything else.",
        "在怀疑数据之前，先看注意力头的熵：接近 ln n 说明位置不起作用，接近 0 说明只有位置起作用。"
        "随机编码的窗口很窄；正弦编码的相邻位置相似，只有压过其他信息时才能分辨确切位置。",
    )
    caption = Text(
        "Left: entropy against the spread of the scores. Then, for two encodings: share of queries whose "
        "best key is their own position, and entropy as a share of ln n, against the amplitude of the "
        "encoding beside contents of variance 1. Shaded: the window that works.",
        "左：熵随分数离散程度的变化。中、右：两种编码下，最佳键恰为自身位置的查询比例，以及熵占 ln n 的比例，"
        "随编码幅度的变化（内容方差为 1）。阴影：有效的窗口。",
    )
    control = Text(
        "The same contents, standard normal and unrelated between queries and keys, for both encodings, "
        "whose codes are equally long. Theory: ln n − s²/2 for a small spread s.",
        "两种编码使用相同的内容（标准正态，查询与键无关），编码长度相同。理论：离散程度 s 很小时熵为 ln n − s²/2。",
    )
    seconds = (0.7, 13.0)

    codes: tuple[tuple[str, Codes], ...] = (("sinusoidal", sinusoids), ("random", directions))
    score: Score | str = "scaled_dot"
    amplitudes: tuple[float, ...] = AMPLITUDES
    positions: int = 64
    dim: int = 64

    def measure(self, run: Run) -> Numbers:
        """Entropy against the spread; entropy and accuracy against the amplitude. Repeats are the last dim."""
        repeats, count = run.pick(6, 16), run.pick(8, 64)
        contents, places = [], []
        for repeat in range(repeats):
            generator = run.generator("C7", repeat)
            shape = (2, count, self.positions, self.dim)
            contents.append(torch.randn(shape, generator=generator))
            places.append([
                code(self.positions, self.dim, generator) for _, code in self.codes
            ])  # fmt: skip
        spread = [
            [entropy_of(q, k, self.score, factor) for q, k in contents]
            for factor in run.within(0, 2).steps(SPREADS)
        ]
        found = {name: {"accuracy": [], "entropy": []} for name, _ in self.codes}
        for amplitude in run.within(1, 2).steps(self.amplitudes):
            for number, (name, _) in enumerate(self.codes):
                seen = [
                    look(q + amplitude * own[number], k + amplitude * own[number], self.score)
                    for (q, k), own in zip(contents, places, strict=True)
                ]
                found[name]["accuracy"].append([accuracy for accuracy, _ in seen])
                found[name]["entropy"].append([entropy for _, entropy in seen])
        return {"positions": self.positions, "spreads": list(SPREADS), "entropy": spread,
                "amplitudes": list(self.amplitudes), "codes": found}  # fmt: skip

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        most = math.log(numbers["positions"])
        off = max(
            abs(mean(own).value - most + spread**2 / 2) / most
            for spread, own in zip(numbers["spreads"], numbers["entropy"], strict=True)
            if spread <= SMALL
        )
        regimes = {name: Regimes.of(own, numbers) for name, own in numbers["codes"].items()}
        facts = (
            Fact(Text("entropy off ln n − s²/2", "熵与 ln n − s²/2 之差"), 100 * off, unit="%"),
            *(
                Fact(Text(f"positions found before collapse, {words(name).en}", f"塌缩前找到的位置（{words(name).zh}）"), *regime.best)
                for name, regime in regimes.items()
            ),
        )  # fmt: skip
        works = {name: regime.window for name, regime in regimes.items() if regime.all}
        if off >= NEAR:
            because = Text(
                "Small scores do not give the entropy of the theory.", "小分数的熵与理论不符。"
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        listed = Text(
            ", ".join(f"{words(name).en} at amplitudes of {x[0]:.2g} to {x[-1]:.2g}" for name, x in works.items()),
            "，".join(f"{words(name).zh}幅度 {x[0]:.2g} 到 {x[-1]:.2g}" for name, x in works.items()),
        )  # fmt: skip
        if len(works) == len(regimes):
            because = Text(f"There is a window: {listed.en}.", f"存在窗口：{listed.zh}。")
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        if any(regime.unsure for regime in regimes.values()):
            because = Text(
                "An interval straddles its bar where the window would be: more repeats are needed.",
                "窗口所在处的区间跨过界限：需要更多重复。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        if works:
            because = Text(
                f"There is a window only for {listed.en}; the others collapse before 90% of positions are found.",
                f"仅{listed.zh} 时存在窗口；其余编码在找到 90% 的位置之前就已塌缩。",
            )
            return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        because = Text(
            "There is no window between washed out and collapsed.", "在淹没与塌缩之间没有窗口。"
        )
        return Judgement(ClaimVerdict.FAILS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Entropy against spread; accuracy and entropy against amplitude, for each encoding."""
        most, spreads = math.log(numbers["positions"]), numbers["spreads"]
        first, *rest = canvas.panels(1 + len(numbers["codes"]), wide=3.3)
        small = [s for s in spreads if s <= 1]
        theory = [most - s**2 / 2 for s in small]
        middle, low, high = bands(numbers["entropy"])
        canvas.line(first, spreads, middle, "scaled dot", low=low, high=high)
        canvas.line(first, small, theory, label=Text("ln n − s²/2", "ln n − s²/2"), color="#444444", marker="", ls="--", lw=1.2, zorder=5)  # fmt: skip
        title = Text("Near zero: uniform", "接近零：均匀")
        canvas.label(first, Text("spread s of the scores", "分数的离散程度 s"), Text("entropy (nats)", "熵（nat）"), title)  # fmt: skip
        canvas.legend(first, loc="lower left")
        curves = (
            ("accuracy", 1.0, "scaled dot", Text("position found", "找到位置")),
            ("entropy", most, "control", Text("entropy / ln n", "熵 / ln n")),
        )
        for axes, (name, own) in zip(rest, numbers["codes"].items(), strict=True):
            for kind, unit, look, label in curves:
                middle, low, high = bands([[x / unit for x in one] for one in own[kind]])
                canvas.line(axes, numbers["amplitudes"], middle, look, label=label, low=low, high=high, ms=3.5)  # fmt: skip
            if window := Regimes.of(own, numbers).window:
                axes.axvspan(window[0], window[-1], color="#999999", alpha=0.4, lw=0)
            amplitude = Text("amplitude of the encoding", "编码的幅度")
            canvas.label(axes, amplitude, Text("share", "比例"), words(name))
        canvas.legend(rest[-1], loc="center right")
        for axes in (first, *rest):
            axes.set_xscale("log")


@dataclass(frozen=True)
class Regimes:
    """The behaviour of one encoding over its amplitudes.

    Attributes:
        all: whether it is washed out at the smallest amplitude, collapsed at the largest, and works at
            some amplitude between.
        window: the amplitudes at which it works, judged by the whole interval.
        best: the largest accuracy before the collapse.
        unsure: whether the intervals leave open that it works somewhere, without showing that it does.
    """

    all: bool
    window: list[float]
    best: Estimate
    unsure: bool

    @staticmethod
    def of(own: Numbers, numbers: Numbers) -> Regimes:
        """The regimes, from accuracy and entropy at each amplitude."""
        count = numbers["positions"]
        bar = COLLAPSED * math.log(count)
        pairs: list[tuple[float, Estimate, Estimate]] = [
            (amplitude, mean(accuracy), mean(entropy))
            for amplitude, accuracy, entropy in zip(
                numbers["amplitudes"], own["accuracy"], own["entropy"], strict=True
            )
        ]
        window = [
            a for a, accuracy, entropy in pairs if accuracy.low >= FOUND and entropy.low > bar
        ]
        maybe = any(accuracy.high >= FOUND and entropy.high > bar for _, accuracy, entropy in pairs)
        washed = pairs[0][1].below(CHANCE / count)
        collapsed = pairs[-1][2].below(bar)
        ends = washed and collapsed
        best = max(accuracy for _, accuracy, entropy in pairs if entropy.low > bar)
        return Regimes(ends and bool(window), window, best, ends and maybe and not window)


def entropy_of(q: Tensor, k: Tensor, score: Score | str, factor: float) -> float:
    """Mean entropy of the weights when the scores are multiplied by `factor`."""
    seen = observed(q, k, k, score, "entropy", temperature=1 / factor)
    return float(seen["entropy"].mean())


def look(q: Tensor, k: Tensor, score: Score | str) -> tuple[float, float]:
    """Fraction of queries whose best key is at their own position, and the mean entropy."""
    seen = observed(q, k, k, score, "entropy", "weights")
    right = seen["weights"].argmax(-1) == torch.arange(k.shape[-2])
    return float(right.double().mean()), float(seen["entropy"].mean())
