"""C6: LayerNorm before the score helps both dot and additive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import regard
from regard import Additive, Projected, ScaledDot, Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, train
from regard.claims.tools.models import Matcher
from regard.figures.canvas import LOOKS, WORDS, Canvas
from regard.measuring.statistics import Estimate, difference
from regard.stabilize import Normalized
from regard.synthetic.largest_product import LargestProduct
from regard.synthetic.loud import Loud
from regard.synthetic.task import SyntheticTask
from regard.synthetic.views import Views
from regard.text import Text

SCALES = tuple(10 ** (power / 2) for power in range(-6, 7))  # 0.001 to 1000
FLAT = 0.1  # allowed change of a statistic over the scales, relative to its largest value
GAIN = 0.02  # change in accuracy that counts as help or harm
WIDTH = 16
QUICK = Budget(steps=200, batch=32, rates=(0.03, 0.1), held=512)
FULL = Budget(steps=300, batch=64, rates=(0.01, 0.03, 0.1))
LENGTH = "length tells"
SETTINGS = {
    "0.01": Text("inputs\n× 0.01", "输入\n× 0.01"),
    "1": Text("inputs\nas they are", "输入\n不变"),
    "100": Text("inputs\n× 100", "输入\n× 100"),
    LENGTH: Text("length\ntells", "长度\n含信息"),
}
SCORES: dict[str, Callable[[], Score]] = {
    "scaled dot": ScaledDot,
    "additive": partial(Additive, WIDTH, bias=True),
}
Norm = Callable[[Score], Score]


def layer_norm(score: Score) -> Score:
    """The score behind LayerNorm on projected queries and keys, with PyTorch's default settings."""
    return Normalized(score, WIDTH, "layer")


def world(setting: str, seed: int) -> SyntheticTask:
    """The task of one setting, for one seed."""
    if setting == LENGTH:
        return LargestProduct(WIDTH)
    return Loud(Views(query_dim=WIDTH, key_dim=WIDTH, noise=0.5, seed=seed), float(setting))


@dataclass(frozen=True)
class LayerNormHelps(Claim):
    """LayerNorm divides by `sqrt(variance + eps)`: its output has variance 1 unless eps dominates.

    At input scale s the variance of scaled dot is `(s^2 / (s^2 + eps))^2` with LayerNorm, `s^4` without.
    """

    id = "C6"
    statement = Text(
        "LayerNorm before the score helps dot and additive alike: the scale of the inputs no longer counts.",
        "在分数之前加 LayerNorm 对点积和加性都有帮助：输入的尺度不再有影响。",
    )
    criterion = Text(
        "With LayerNorm the variance of scaled dot and the mean slope of tanh of additive change by less than 10% "
        "over input scales of 0.001 to 1000. Trained, it adds more than 0.02 of accuracy (95% interval) to "
        "each score at scales 0.01, 1 and 100, and costs neither more than 0.02 where the lengths of keys "
        "tell something (a quick run trains at scale 100 only: too briefly to tell the rest). Conditions: a part of this; fails: it helps one of the scores at no scale.",
        "加 LayerNorm 后，缩放点积的方差与加性中 tanh 的平均斜率在输入尺度 0.001 到 1000 上变化不到 10%。训练后，在尺度 0.01、1 "
        "和 100 下两种分数的准确率各提高 0.02 以上（95% 区间）；在键的长度含有信息时，两者的损失都不超过 0.02（快速运行训练太短，只在尺度 100 下训练）。"
        "只满足一部分：有条件成立；若对某种分数在任何尺度都无帮助：不成立。",
    )
    meaning = Text(
        "Put LayerNorm before the score where inputs come in unlike or unknown scales, and lower its eps "
        "where they may be small. Leave it out where the length of a key means something.",
        "输入尺度不一或未知时，请在分数之前加 LayerNorm；输入可能很小时，请调低其 eps。若键的长度有意义，则不要加。",
    )
    caption = Text(
        "Left: variance of scaled dot against the scale of the inputs. Middle: mean slope of tanh in additive. "
        "Dashed: with LayerNorm. Right: accuracy gained by LayerNorm, trained, with 95% intervals over seeds.",
        "左：缩放点积的方差随输入尺度的变化。中：加性中 tanh 的平均斜率。虚线：加 LayerNorm。"
        "右：训练后 LayerNorm 带来的准确率增益及各种子的 95% 区间。",
    )
    control = Text(
        "Equal seeds, data, steps and rates to try; additive has a bias inside tanh with the "
        "norm and without. Parameters differ only by the norm's gains and biases, 64 more.",
        "种子、数据、步数、候选学习率均相同；加性在 tanh 内都带偏置。参数仅多出 LayerNorm 的增益和偏置（64 个）。",
    )
    seconds = (7.0, 80.0)

    norm: Norm = layer_norm
    settings: tuple[str, ...] = ("100",)
    # Settings with longer training: after a short one, a score that only learns slower would look worse.
    more: tuple[str, ...] = ("0.01", "1", LENGTH)
    quick: Budget = QUICK
    full: Budget = FULL

    def measure(self, run: Run) -> Numbers:
        """Statistics over input scales, then trainings with and without the norm."""
        generator = run.generator("C6")
        inputs = torch.randn(2, run.pick(2000, 20000), WIDTH, generator=generator)
        still = {
            kind: flatness(inputs, norm) for kind, norm in (("plain", None), ("normed", self.norm))
        }
        settings = run.pick(self.settings, in_order(self.more + self.settings))
        seeds, budget = run.seeds(run.pick(4, 8)), run.pick(self.quick, self.full)
        trained: dict[str, dict[str, Numbers]] = {}
        for number, setting in enumerate(settings):
            task, part = partial(world, setting), run.within(number, len(settings))
            trained[setting] = {}
            for place, (name, build) in enumerate(SCORES.items()):
                plain = train(partial(model, build), task, seeds, budget, part.within(2 * place, 4))
                normed = train(
                    partial(model, build, self.norm),
                    task,
                    seeds,
                    budget,
                    part.within(2 * place + 1, 4),
                )
                trained[setting][name] = {
                    "plain": plain.quality, "normed": normed.quality,
                    "rates": [plain.rate, normed.rate],
                    "parameters": [plain.parameters, normed.parameters],
                }  # fmt: skip
        untried = [setting for setting in self.more if setting not in settings]
        return {"scales": list(SCALES), "still": still, "trained": trained, "untried": untried}

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        still = numbers["still"]["normed"]
        flat = {kind: changes(still[kind]) < FLAT for kind in ("variance", "slope")}
        gains = all_gains(numbers)
        helped = {
            name: [s for s in own if s != LENGTH and own[s].above(GAIN)]
            for name, own in gains.items()
        }
        scales = [setting for setting in numbers["trained"] if setting != LENGTH]
        lengths = {name: own[LENGTH] for name, own in gains.items() if LENGTH in own}
        harmed = [name for name, gain in lengths.items() if gain.below(-GAIN)]
        harmless = all(gain.above(-GAIN) for gain in lengths.values())
        facts = facts_of(numbers, gains)
        helpless = [name for name in gains if not helped[name]]
        if helpless:
            unsure = any(gains[name][s].high > GAIN for name in helpless for s in scales)
            words = Text(*(", ".join(WORDS[name][i] for name in helpless) for i in range(2)))
            because = Text(
                f"At no scale does it surely help {words.en}"
                + ("; more seeds are needed to tell." if unsure else "."),
                f"在任何尺度下都没有确定的帮助：{words.zh}"
                + ("；需要更多种子才能判断。" if unsure else "。"),
            )
            return Judgement(
                ClaimVerdict.UNDECIDED if unsure else ClaimVerdict.FAILS, because, facts
            )
        everywhere = all(len(own) == len(scales) for own in helped.values())
        if all(flat.values()) and everywhere and harmless and numbers.get("untried"):
            return Judgement(ClaimVerdict.UNDECIDED, conditions(numbers, helped, harmed), facts)
        if all(flat.values()) and everywhere and harmless:
            because = Text(
                "Flat over six orders, and a gain at every scale.",
                "在六个数量级上平坦，且在每个尺度都有增益。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        return Judgement(ClaimVerdict.CONDITIONS, conditions(numbers, helped, harmed), facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Statistics over scales, and the gain in accuracy from LayerNorm."""
        left, middle, right = canvas.panels(3, wide=3.4)
        scales, still = numbers["scales"], numbers["still"]
        for axes, kind, name in ((left, "variance", "scaled dot"), (middle, "slope", "additive")):
            canvas.line(axes, scales, still["plain"][kind], name, label=Text("plain", "不加"))
            canvas.line(
                axes, scales, still["normed"][kind], name, label="LayerNorm", ls="--", mfc="white"
            )
            axes.set_xscale("log")
            axes.set_yscale("log")
        scale = Text("scale of the inputs", "输入的尺度")
        canvas.label(
            left, scale, Text("variance of the score", "分数的方差"), Text("Scaled dot", "缩放点积")
        )
        canvas.label(
            middle, scale, Text("mean slope of tanh", "tanh 的平均斜率"), Text("Additive", "加性")
        )
        canvas.legend(left, loc="upper left")
        canvas.legend(middle, loc="lower left")
        for shift, (name, own) in zip((-0.18, 0.18), all_gains(numbers).items(), strict=True):
            ink, mark = LOOKS[name]
            middles = [gain.value for gain in own.values()]
            ends = [
                [g.value - g.low for g in own.values()],
                [g.high - g.value for g in own.values()],
            ]
            places = [number + shift for number in range(len(own))]
            right.errorbar(places, middles, ends, color=ink, marker=mark, ls="", capsize=3, label=canvas.say(WORDS[name]))  # fmt: skip
        canvas.bar_line(right, GAIN, Text("bar: 0.02", "界限：0.02"))
        right.axhline(0, color="#777777", lw=0.8)
        right.set_xticks(
            range(len(numbers["trained"])),
            [canvas.say(SETTINGS[s]) for s in numbers["trained"]],
            fontsize=7,
        )
        canvas.label(right, "", Text("accuracy gained", "准确率增益"), Text("Trained", "训练后"))
        canvas.legend(right, loc="upper center", ncols=2)
        right.set_xlim(-0.6, len(numbers["trained"]) - 0.4)
        # Leaves room for the legend above the grid lines.
        right.set_yticks([-0.5, -0.25, 0, 0.25, 0.5, 0.75, 1])
        right.set_ylim(-0.5, 1.5)


def in_order(settings: tuple[str, ...]) -> tuple[str, ...]:
    """The settings in the order of `SETTINGS`."""
    return tuple(setting for setting in SETTINGS if setting in settings)


def model(build: Callable[[], Score], norm: Norm | None = None) -> Matcher:
    """A model with the score behind projections and, if given, behind the norm."""
    score = build() if norm is None else norm(build())
    return Matcher(Projected(score, WIDTH, WIDTH, width=WIDTH))


def flatness(inputs: Tensor, norm: Norm | None) -> dict[str, list[float]]:
    """Variance of scaled dot, and mean tanh' of additive, at every scale of inputs (2, B, WIDTH)."""
    found: dict[str, list[float]] = {"variance": [], "slope": []}
    score = ScaledDot() if norm is None else norm(ScaledDot())
    with torch.no_grad():
        for scale in SCALES:
            q, k = (scale * inputs).unsqueeze(-2)
            found["variance"].append(float(regard.score(q, k, score).double().var()))
            if isinstance(score, Normalized):
                q, k = score.change_query(q), score.change_key(k)
            found["slope"].append(float((1 - torch.tanh((q + k).double()).square()).mean()))
    return found


def changes(values: list[float]) -> float:
    """Range of the values relative to the largest."""
    return 1 - min(values) / max(values)


def all_gains(numbers: Numbers) -> dict[str, dict[str, Estimate]]:
    """Gain in accuracy from the norm, by score, then by setting."""
    return {
        name: {
            setting: difference(own[name]["normed"], own[name]["plain"])
            for setting, own in numbers["trained"].items()
        }
        for name in SCORES
    }


def facts_of(numbers: Numbers, gains: dict[str, dict[str, Estimate]]) -> tuple[Fact, ...]:
    """Changes over scales, and gains on unscaled inputs (on loud inputs if only those were measured)."""
    still = numbers["still"]["normed"]
    worst = max(changes(still["variance"]), changes(still["slope"]))
    facts = [
        Fact(
            Text("largest change over six orders", "六个数量级上的最大变化"), 100 * worst, unit="%"
        )
    ]
    for name, own in gains.items():
        at = "1" if "1" in own else "100"
        label = Text(
            f"accuracy gained at scale {at}, {WORDS[name].en}",
            f"尺度 {at} 下的准确率增益（{WORDS[name].zh}）",
        )
        facts += [Fact(label, *own[setting]) for setting in own if setting == at]
    lengths = [own[LENGTH] for own in gains.values() if LENGTH in own]
    if lengths:
        label = Text(
            "accuracy gained where length tells, at worst", "长度含信息时的准确率增益（最差）"
        )
        facts.append(Fact(label, *min(lengths)))
    return tuple(facts)


def flat_from(numbers: Numbers) -> float:
    """The smallest scale from which on both statistics stay within `FLAT` of their largest value."""
    scales, still = numbers["scales"], numbers["still"]["normed"]
    for number, scale in enumerate(scales):
        if all(changes(values[number:]) < FLAT for values in still.values()):
            return scale
    return scales[-1]


def conditions(numbers: Numbers, helped: dict[str, list[str]], harmed: list[str]) -> Text:
    """The conditions in words: the scales with flat statistics, those where it helps, and scores it harms."""
    start = flat_from(numbers)
    english, chinese = (
        [f"Flat from an input scale of {start:.2g} on"],
        [f"输入尺度自 {start:.2g} 起平坦"],
    )
    for name, settings in helped.items():
        english.append(f"helps {WORDS[name].en} at input scale {' and '.join(settings)}")
        chinese.append(f"在输入尺度 {'、'.join(settings)} 下对{WORDS[name].zh}有帮助")
    for name in harmed:
        english.append(f"harms {WORDS[name].en} where lengths tell")
        chinese.append(f"长度含信息时损害{WORDS[name].zh}")
    if untried := numbers.get("untried"):
        words = [SETTINGS[setting] for setting in untried]
        named = [Text(x.en.replace("\n", " "), x.zh.replace("\n", "")) for x in words]
        english.append(
            f"not decided at this size ({', '.join(x.en for x in named)}): a full run trains longer"
        )
        chinese.append(f"在此规模下未定（{'、'.join(x.zh for x in named)}）：完整运行训练更久")
    return Text("; ".join(english) + ".", "；".join(chinese) + "。")
