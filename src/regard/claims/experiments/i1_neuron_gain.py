"""I1: a pyramidal neuron multiplies, since context changes its gain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.neuron import Neuron
from regard.figures.canvas import BLUE, GREY, ORANGE, SKY, Canvas
from regard.measuring.statistics import bands, difference, mean
from regard.text import Text

# Fraction of the effect of context that a change of slope (or a shift) must explain alone.
EXPLAINED = 0.9
HALF = 0.5  # if a change of slope explains less of the effect than this, it is not a gain
NEURON = Neuron()
PLACES = {
    "dendrite": Text("context at the dendrite", "上下文作用于树突"),
    "soma": Text("context at the soma", "上下文作用于胞体"),
}


@dataclass(frozen=True)
class NeuronGain(Claim):
    """Firing rate against somatic current, at several strengths of context.

    f_c is the curve with context c. Two models derive it from f_0. A change of slope,
    f_c(I) = gain f_0(I), is what a product with the context would do. A shift,
    f_c(I) = f_0(I + shift), is what adding the context before the non-linearity would do. Each model
    explains the fraction 1 - |f_c - fit|^2 / |f_c - f_0|^2 of the effect of context.
    """

    id = "I1"
    statement = Text(
        "A pyramidal neuron multiplies: context at its apical dendrite changes the gain of its response.",
        "锥体神经元做乘法：顶树突上的上下文改变其响应的增益。",
    )
    criterion = Text(
        "In a spiking two-compartment model a change of slope explains at least 0.9 of the effect of "
        "apical context on the curve of rate against current, and more than a shift does (95% "
        "intervals over populations). With conditions: more than a shift, but not 0.9 alone. It does "
        "not hold where a shift explains more, or a change of slope less than half.",
        "在双室脉冲模型中，斜率变化能解释顶树突上下文对“发放率—电流”曲线影响的至少 0.9，且多于平移所能解释的"
        "（各群体的 95% 区间）。附条件成立：多于平移，但单独不足 0.9。若平移解释得更多，或斜率变化解释不到一半，则不成立。",
    )
    meaning = Text(
        "In this model, whose constants are not fitted to recordings, the picture behind multiplicative "
        "scores is sound for context that meets the spikes in the dendrite; context that merely adds "
        "current shifts the curve, as inside an additive score.",
        "在此模型中（其常数并非由实测拟合），对于在树突中与脉冲相遇的上下文，乘性打分背后的图景成立；仅仅增加电流的上下文则平移曲线，如同加性打分内部。",
    )
    caption = Text(
        "Rate against current at four strengths of context, at the dendrite (left) and at the soma "
        "(middle): from grey to full colour. Right: share of the effect explained by a change of "
        "slope and by a shift. Bands and whiskers: 95% over populations.",
        "四种上下文强度下发放率随电流的变化：作用于树突（左）、作用于胞体（中），颜色由灰变浓。右：斜率变化与平移各自"
        "解释的影响比例。色带和误差线为各群体的 95% 区间。",
    )
    control = Text(
        "The same neurons, currents and noise with the same context as a current into the soma, where "
        "theory says a pure shift.",
        "相同的神经元、电流和噪声，将同样的上下文作为电流注入胞体；理论上应为纯平移。",
    )
    seconds = (3.0, 25.0)

    neuron: Neuron = NEURON
    # In pA. Curves are compared within `fitted`; the wider range lets a shifted curve cover all of it.
    currents: tuple[float, ...] = tuple(range(-800, 2401, 100))
    fitted: tuple[float, float] = (0.0, 1500.0)
    contexts: tuple[float, ...] = (0.0, 150.0, 300.0, 450.0)
    place: str = "dendrite"
    # (populations, neurons in each).
    quick: tuple[int, int] = (6, 15)
    full: tuple[int, int] = (12, 60)

    def measure(self, run: Run) -> Numbers:
        """Rates (populations x contexts x currents), and the fractions that each model explains."""
        populations, size = run.pick(self.quick, self.full)
        rates, explained, inside = {}, {}, self.inside
        places = {"dendrite": self.place, "soma": "soma"}
        for number, (name, place) in enumerate(places.items()):
            part = run.within(number, len(places))
            found = self.neuron.rates(
                torch.tensor(self.currents), torch.tensor(self.contexts), place,
                populations, size, run.generator("I1"), part,
            )  # fmt: skip
            rates[name] = found.tolist()
            explained[name] = {
                kind: [self.explained(one, kind) for one in found] for kind in ("slope", "shift")
            }
            explained[name]["gain"] = [gain(one[0, inside], one[-1, inside]) for one in found]
        return {
            "currents": list(self.currents), "contexts": list(self.contexts),
            "fitted": list(self.fitted), "rates": rates, "explained": explained,
        }  # fmt: skip

    @property
    def inside(self) -> Tensor:
        """Mask of the currents at which curves are compared."""
        currents = torch.tensor(self.currents)
        return (currents >= self.fitted[0]) & (currents <= self.fitted[1])

    def explained(self, rates: Tensor, kind: str) -> float:
        """Fraction of the effect of context, over all contexts, that a slope or a shift explains."""
        plain, changed = rates[0], rates[1:]
        fit = self.by_slope if kind == "slope" else self.by_shift
        left = sum(float((one[self.inside] - fit(plain, one)).square().sum()) for one in changed)
        return 1 - left / float((changed - plain)[:, self.inside].square().sum())

    def by_slope(self, plain: Tensor, changed: Tensor) -> Tensor:
        """The curve without context, multiplied by the factor that fits best."""
        plain = plain[self.inside]
        return plain * gain(plain, changed[self.inside])

    def by_shift(self, plain: Tensor, changed: Tensor) -> Tensor:
        """The curve without context, shifted by the current that fits best."""
        currents, inside = torch.tensor(self.currents).double(), self.inside

        def moved(shift: float) -> Tensor:
            at = (currents[inside] + shift).numpy()
            return torch.from_numpy(np.interp(at, currents.numpy(), plain.numpy()))

        def left(shift: float) -> float:
            return float((changed[inside] - moved(shift)).square().sum())

        room = (self.currents[0] - self.fitted[0], self.currents[-1] - self.fitted[1])
        return moved(float(minimize_scalar(left, bounds=room, method="bounded").x))

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        found = numbers["explained"]["dendrite"]
        slope, shift = mean(found["slope"]), mean(found["shift"])
        ahead = difference(found["slope"], found["shift"])
        control = difference(
            numbers["explained"]["soma"]["shift"], numbers["explained"]["soma"]["slope"]
        )
        facts = (
            Fact(Text("explained by a change of slope", "斜率变化解释的比例"), *slope),
            Fact(Text("explained by a shift", "平移解释的比例"), *shift),
            Fact(
                Text("gain at the strongest context", "最强上下文下的增益"),
                *mean(found["gain"]),
                "×",
            ),
            Fact(Text("control (soma): shift minus slope", "对照（胞体）：平移减斜率"), *control),
        )
        words = Text(
            f"A change of slope explains {slope.value:.2f} of the effect, a shift {shift.value:.2f}.",
            f"斜率变化解释 {slope.value:.2f} 的影响，平移解释 {shift.value:.2f}。",
        )
        if ahead.below(0) or slope.below(HALF):
            return Judgement(ClaimVerdict.FAILS, words, facts)
        if not ahead.above(0) or slope.low < EXPLAINED < slope.high:
            because = Text(
                f"{words.en} The interval does not decide: more neurons are needed.",
                f"{words.zh}区间不足以判定：需要更多神经元。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        if slope.above(EXPLAINED):
            return Judgement(ClaimVerdict.HOLDS, words, facts)
        because = Text(
            f"{words.en} It is mostly gain, with a shift besides.",
            f"{words.zh}以增益为主，兼有平移。",
        )
        return Judgement(ClaimVerdict.CONDITIONS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Two families of curves, and the fractions that slopes and shifts explain."""
        *curves, right = canvas.panels(3, wide=3.4)
        currents, contexts = numbers["currents"], numbers["contexts"]
        first, last = (currents.index(end) for end in numbers["fitted"])
        shown = slice(first, last + 1)
        for axes, (name, word) in zip(curves, PLACES.items(), strict=True):
            ink = BLUE if name == "dendrite" else ORANGE
            for place, context in enumerate(contexts):
                rows = [one[place][shown] for one in numbers["rates"][name]]
                middle, low, high = bands(list(zip(*rows, strict=True)))
                canvas.line(
                    axes, currents[shown], middle, label=f"{context:g} pA", low=low, high=high,
                    marker="",
                    color=ink if place else GREY, alpha=0.4 + 0.2 * place,
                )  # fmt: skip
            canvas.label(
                axes, Text("current (pA)", "电流（pA）"), Text("rate (Hz)", "发放率（Hz）"), word
            )
            canvas.legend(axes, title=canvas.say(Text("context", "上下文")), title_fontsize=8)
        kinds = {"slope": Text("slope", "斜率"), "shift": Text("shift", "平移")}
        labels, values = [], []
        for name, where in (("dendrite", Text("dendrite", "树突")), ("soma", Text("soma", "胞体"))):
            for kind, word in kinds.items():
                labels.append(Text(f"{word.en}\n{where.en}", f"{word.zh}\n{where.zh}"))
                values.append(mean(numbers["explained"][name][kind]))
        whiskers = ([x.low for x in values], [x.high for x in values])
        colors = [BLUE, SKY, ORANGE, "#F3CE80"]
        canvas.bars(right, labels, [x.value for x in values], errors=whiskers, colors=colors)
        canvas.bar_line(right, EXPLAINED, Text("bar", "界线"))
        right.set_ylim(top=1.05)
        right.tick_params(axis="x", labelsize=8)
        share = Text("share of the effect", "影响的比例")
        canvas.label(right, "", share, Text("what explains it", "由什么解释"))


def gain(plain: Tensor, changed: Tensor) -> float:
    """The factor of the plain curve that fits the changed one best."""
    return float((plain @ changed) / plain.square().sum())
