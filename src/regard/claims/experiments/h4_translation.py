"""H4: translation with and without attention, and where it looks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from regard.claims.claim import ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.outcome import points, share, surely
from regard.claims.tools.recipes import RecipeClaim, fitted
from regard.figures.canvas import BLUE, GREY, ORANGE, Canvas
from regard.measuring.statistics import Estimate, difference, mean
from regard.text import Text

# Percent of digits whose largest weight is on the right piece, above which an alignment points there.
MOST = 50.0
NAMES = {
    "bahdanau": Text("Bahdanau (additive)", "Bahdanau（加性）"),
    "luong": Text("Luong (bilinear)", "Luong（双线性）"),
}
CONTROL = "none"
INKS = {"bahdanau": ORANGE, "luong": BLUE, CONTROL: GREY}
LABELS = {"bahdanau": "Bahdanau", "luong": "Luong", CONTROL: Text("no attention", "无注意力")}
SIDES = {"short": Text("shorter half", "较短一半"), "long": Text("longer half", "较长一半")}
EXAMPLE = "Dienstag, 4. Juli 2028"  # the date whose alignment is drawn
# A quick run learns one language from few rows, in small batches: fewer words need fewer steps.
QUICK = {"epochs": 6, "encoder_width": 64, "batch_tokens": 128, "rate": 5e-3, "vocabulary": 100}


class Traced(NamedTuple):
    """Where the digits of some right translations look, a number for each digit.

    Attributes:
        mass: percent of the weight that is on the right piece of the source.
        uniform: percent that it would be if all pieces had the same.
        hit: 100 if the right piece has the largest weight, else 0.
    """

    mass: list[float]
    uniform: list[float]
    hit: list[float]


@dataclass(frozen=True)
class AlignedTranslation(RecipeClaim):
    """Dates of many languages to ISO dates, by recurrent networks with and without attention."""

    id = "H4"
    recipe = "translate"
    statement = Text(
        "Attention over the source lets a recurrent network translate better than one summary of it does, with "
        "Bahdanau's additive and with Luong's multiplicative score, the more so the longer the input; and its "
        "weights point at the piece of the source that is being translated.",
        "对源句做注意力，比把源句压成一个摘要更能让循环网络译得好，Bahdanau 的加性与 Luong 的乘性分数都如此，"
        "输入越长越明显；而且其权重指向正在翻译的源片段。",
    )
    criterion = Text(
        "Share of test inputs that are translated without any error. Holds if Bahdanau and Luong are each ahead of "
        "the same network without attention (whole 95% interval, paired by seed), by more on the longer half of "
        "the inputs than on the shorter (whole 95% interval; asked of those that are ahead), and if, in inputs that "
        "are translated without error, the piece that a digit of year or day comes from has the largest weight for "
        "more than half (whole 95% interval over seeds). Neither is ahead, or the right piece gets no more weight than uniform weights would give it: "
        "does not hold. Some parts are false: with conditions.",
        "以译得完全无误的测试输入所占比例衡量。成立的条件：Bahdanau 与 Luong 都领先于无注意力的同一网络（按种子配对，"
        "整个 95% 区间），在较长一半输入上领先得比较短一半更多（整个 95% 区间；只问领先者）；并且在译得无误的输入中，"
        "年、日数字所来自的片段在过半情形下权重最大（按种子，整个 95% 区间）。两者都不领先，或正确片段所得权重不高于均匀分配：不成立。"
        "部分不成立：有条件。",
    )
    meaning = Text(
        "Where inputs are short, a decoder that reads one summary can learn to copy too, and attention is worth a "
        "few points. Bahdanau's network attends before each step and Luong's after it: they differ in more than the "
        "score, and should be compared on your data. An alignment is a picture of where the decoder reads; encoder "
        "states know their neighbours, so the largest weight may sit beside the piece.",
        "输入较短时，只读一个摘要的解码器也能学会照抄，注意力只值几个百分点。Bahdanau 的网络在每一步之前注意，Luong 的在之后："
        "两者的差别不只是分数，应在你的数据上比较。对齐图显示解码器从哪里读取；编码器的状态也了解其邻居，"
        "所以最大权重可能落在该片段旁边。",
    )
    caption = Text(
        "First: inputs translated without error, by length. Second: how often the largest weight is on the right "
        "piece of the source, for digits of the year and of the day in those inputs; dashed: the bar. Whiskers: 95% "
        "intervals over seeds. Then the alignments that both networks learned from the first seed; darker is more "
        "weight.",
        "第一图：按长度划分，译得无误的输入比例。第二图：这些输入中，年与日的数字的最大权重落在正确源片段上的比例；"
        "虚线为界限。误差线：按种子的 95% 区间。其后：两种网络由第一个种子学到的对齐；越深权重越大。",
    )
    control = Text(
        "The same encoder, decoder, data (dates of Babel in 40 languages, generated; a quick run has German ones "
        "only), learning rate and seeds, and the recipe's 6 epochs for all. The control's decoder sees the encoder's last state at every step, "
        "and nothing else of the source. Greedy search for all.",
        "编码器、解码器、数据（Babel 生成的 40 种语言的日期；快速运行只用德语）、学习率与种子均相同，轮数都是配方的 6 轮。"
        "对照的解码器每一步只看到编码器的最后状态。全部用贪心搜索。",
    )
    seconds = (50.0, 970.0)

    quick: Mapping[str, Any] = field(default_factory=QUICK.copy)  # arguments of the translator
    rows: tuple[int | None, int | None] = (450, None)  # training rows, quick and full; None for all
    tested: int | None = None  # test rows; None for all
    seed_counts: tuple[int, int] = (2, 4)
    traced: tuple[int, int] = (40, 200)  # right translations whose alignment is measured

    def measure(self, run: Run) -> Numbers:
        """Right translations by length, and the weights of digits on the pieces that they come from."""
        from regard.recipes.translate.dates import LOCALES, dates

        data = dates(run.pick(*self.rows), run.pick(["de"], LOCALES))
        x, y = data.test.x[: self.tested], data.test.y[: self.tested]
        seeds = run.seeds(run.pick(*self.seed_counts))
        jobs = [(name, seed) for name in (*NAMES, CONTROL) for seed in seeds]
        shares: dict[str, dict[str, list[float]]] = {}
        traces: dict[str, dict[str, list[Numbers]]] = {name: {} for name in NAMES}
        lengths, pictures = np.zeros(0), dict[str, Numbers]()
        for number, (name, seed) in enumerate(jobs):
            model = self.translator(name, seed, run)
            fitted(model, data, run.within(number, len(jobs)).tell)
            good = np.array(
                [said == right for said, right in zip(model.predict(x), y, strict=True)]
            )
            lengths = np.array([len(row) for row in model.encoded(x)])
            for side, right in by_length(good, lengths).items():
                shares.setdefault(name, {}).setdefault(side, []).append(right)
            if name in NAMES:
                for part, own in trace(model, x, y, good, run.pick(*self.traced)).items():
                    traces[name].setdefault(part, []).append(summary(own))
                pictures.setdefault(name, drawn_example(model))
        return {
            "train": len(data.train), "test": len(y), "middle": float(np.median(lengths)),
            "longest": int(lengths.max()), "right": shares, "digits": traces, "pictures": pictures,
        }  # fmt: skip

    def translator(self, name: str, seed: int, run: Run) -> Any:
        """A network with that attention, or without any."""
        from regard.recipes.translate.sizes import arguments
        from regard.recipes.translate.translator import Translator

        own: dict[str, Any] = dict(run.pick(self.quick, {})) | {"beam": 1, "validate_every": 99}
        return Translator(**arguments("dates", name) | own, seed=seed, device=str(run.device))

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        right, digits = numbers["right"], numbers["digits"]
        leads = {name: difference(right[name]["all"], right[CONTROL]["all"]) for name in NAMES}
        more = {name: more_when_long(right, name) for name in NAMES}
        hits = {name: over_parts(digits[name], "hit") for name in NAMES}
        above = {name: over_parts(digits[name], "mass", "uniform") for name in NAMES}
        ahead = {name: surely(one, 0.0) for name, one in leads.items()}
        parts = {
            "ahead": ahead,
            # Of a network that is behind everywhere, a smaller lag on long inputs is no lead.
            "long": {
                name: surely(one, 0.0) for name, one in more.items() if ahead[name] is not False
            },
            "weight": {name: surely(one, 0.0) for name, one in above.items()},
            "points": {name: surely(one, MOST) for name, one in hits.items()},
        }
        facts = (
            *(Fact(told(name, "right", "全对"), *share(mean(right[name]["all"])), unit="%") for name in NAMES),
            Fact(Text("no attention: right", "无注意力：全对"), *share(mean(right[CONTROL]["all"])), unit="%"),
            *(points(told(name, "over no attention", "比无注意力高"), one) for name, one in leads.items()),
            *(points(told(name, "lead on long over lead on short", "长输入的领先比短输入多"), one)
              for name, one in more.items()),
            *(points(told(name, "weight on the right piece over uniform", "正确片段权重超出均匀"), one)
              for name, one in above.items()),
            *(Fact(told(name, "largest weight on the right piece", "最大权重在正确片段"), *share(one), unit="%")
              for name, one in hits.items()),
        )  # fmt: skip
        return Judgement(*decide(parts), facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Right translations by length, where digits look, and an alignment of each network."""
        left, middle, *aligned = canvas.panels(2 + len(NAMES), wide=3.4, high=3.4)
        shares = numbers["right"]
        grouped(canvas, left, {name: {s: shares[name][s] for s in SIDES} for name in shares}, SIDES)
        kinds = {"year": Text("year", "年"), "day": Text("day", "日")}
        hits = {
            name: {part: [one["hit"] for one in own[part]] for part in kinds}
            for name, own in numbers["digits"].items()
        }
        grouped(canvas, middle, hits, kinds)
        canvas.bar_line(middle, MOST, "")
        for axes in (left, middle):
            axes.set_ylim(0, 104)
        left.set_ylim(0, 150)  # room for the legend above the bars
        left.set_yticks(range(0, 101, 20))
        canvas.label(left, Text("inputs, by length", "输入（按长度）"), Text("right, %", "全对（%）"),
                     Text("translated without error", "译得无误"))  # fmt: skip
        canvas.label(middle, Text("digits of", "数字属于"), Text("largest weight there, %", "最大权重在此（%）"),
                     Text("on the right piece", "指向正确片段"))  # fmt: skip
        canvas.legend(left, loc="upper left")
        for axes, name in zip(aligned, NAMES, strict=True):
            shown = numbers["pictures"][name]
            axes.imshow(shown["weights"], cmap="Greys", vmin=0, vmax=1, aspect="auto")
            axes.set_xticks(range(len(shown["source"])), shown["source"], rotation=60, fontsize=7)
            axes.set_yticks(range(len(shown["target"])), shown["target"], fontsize=7)
            axes.grid(False)
            title = Text(f"alignment, {LABELS[name]}", f"对齐，{LABELS[name]}")
            canvas.label(
                axes, Text("the date as written", "写出的日期"), Text("translation", "译文"), title
            )


def by_length(good: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """Percent right of all inputs, of those up to the median length in pieces, and of the longer ones."""
    short = lengths <= np.median(lengths)
    parts = {"all": np.ones_like(short), "short": short, "long": ~short}
    return {name: 100 * float(good[chosen].mean()) for name, chosen in parts.items()}


def trace(
    model: Any, x: list[str], y: list[str], good: np.ndarray, count: int
) -> dict[str, Traced]:
    """Where the digits of year and day look, in the first `count` right translations that can be traced."""
    found = {"year": Traced([], [], []), "day": Traced([], [], [])}
    done = 0
    for row in np.flatnonzero(good).tolist():
        if done == count:
            break
        source, target, weights = model.attend(x[row])
        pairs = digit_pairs(source, target, y[row])
        done += bool(pairs)
        for part, step, piece in pairs:
            own = weights[step]
            found[part].mass.append(100 * float(own[piece]))
            found[part].uniform.append(100 / len(source))
            found[part].hit.append(100.0 * (int(own.argmax()) == piece))
    return found


def digit_pairs(source: list[str], target: list[str], answer: str) -> list[tuple[str, int, int]]:
    """Part, place in the translation and place in the source of every digit that has one right piece.

    These are the four digits of the year and the last digit of the day, in dates whose only other digits are none:
    a month in digits could be taken for the day.
    """
    runs = digit_runs(source)
    texts = ["".join(source[place] for place in run) for run in runs]
    year, _, day = answer.split("-")
    if sorted(texts) != sorted([year, str(int(day))]) and sorted(texts) != sorted([year, day]):
        return []
    steps = [place for run in digit_runs(target) for place in run]
    if len(steps) != 8:
        return []
    at_year, at_day = (runs[texts.index(one)] for one in sorted(texts, key=len, reverse=True))
    pairs = [("year", step, place) for step, place in zip(steps[:4], at_year, strict=True)]
    return [*pairs, ("day", steps[7], at_day[-1])]


def digit_runs(pieces: list[str]) -> list[list[int]]:
    """Places of neighbouring pieces that are single digits, run by run."""
    marks = "".join("d" if re.fullmatch(r"[0-9]", one) else "." for one in pieces)
    return [list(range(*one.span())) for one in re.finditer("d+", marks)]


def summary(own: Traced) -> Numbers:
    """The means of one seed; zeros where nothing could be traced, as of a network that learned nothing."""
    return {
        name: float(np.mean(values)) if values else 0.0 for name, values in own._asdict().items()
    } | {"digits": len(own.hit)}


def drawn_example(model: Any) -> Numbers:
    """The alignment of the example."""
    source, target, weights = model.attend(EXAMPLE)
    bare = [[piece.replace("▁", " ").strip() or "␣" for piece in side] for side in (source, target)]
    return {"source": bare[0], "target": bare[1], "weights": np.round(weights.numpy(), 3).tolist()}


def more_when_long(right: Numbers, name: str) -> Estimate:
    """By how much the lead over the control on long inputs exceeds that on short ones, paired by seed."""
    leads = {
        side: [x - y for x, y in zip(right[name][side], right[CONTROL][side], strict=True)]
        for side in SIDES
    }
    return difference(leads["long"], leads["short"])


def over_parts(own: dict[str, list[Numbers]], name: str, less: str | None = None) -> Estimate:
    """The mean over year and day of a number, or of a difference of two, with its interval over seeds."""
    return mean(
        [
            sum(one[name] - (one[less] if less else 0.0) for one in both) / len(both)
            for both in zip(own["year"], own["day"], strict=True)
        ]
    )


def told(name: str, en: str, zh: str) -> Text:
    """The label of a fact about an architecture."""
    return Text(f"{NAMES[name].en}: {en}", f"{NAMES[name].zh}：{zh}")


# Each part of the criterion: that it is true of an architecture, and that it is not.
PARTS = {
    "ahead": (
        Text("{} is ahead of no attention", "{}领先于无注意力"),
        Text("{} is not ahead of no attention", "{}不领先于无注意力"),
    ),
    "long": (
        Text("the lead of {} is larger on long inputs", "{}的领先在长输入上更大"),
        Text("the lead of {} is not larger on long inputs", "{}的领先在长输入上并不更大"),
    ),
    "weight": (
        Text("{} gives the right piece more than uniform weights", "{}给正确片段的权重高于均匀"),
        Text("{} gives the right piece no more than uniform weights", "{}给正确片段的权重不高于均匀"),
    ),
    "points": (
        Text("the largest weight of {} is mostly on the right piece", "{}的最大权重多半在正确片段"),
        Text("the largest weight of {} is mostly on another piece", "{}的最大权重多半在其他片段"),
    ),
}  # fmt: skip


def decide(parts: dict[str, dict[str, bool | None]]) -> tuple[ClaimVerdict, Text]:
    """Verdict and reason from whether each part of the criterion is true of each architecture; None is open."""

    def listed(which: bool | None) -> Text:
        found = [
            (PARTS[part][which is False], NAMES[name])
            for part, own in parts.items()
            for name, so in own.items()
            if so is which
        ]
        return Text(
            "; ".join(text.en.format(name.en) for text, name in found),
            "；".join(text.zh.format(name.zh) for text, name in found),
        )

    false, unsure = listed(False), listed(None)
    if not false.en and not unsure.en:
        return ClaimVerdict.HOLDS, Text(
            "Both are ahead of no attention, by more on long inputs, and their weights point at the digits "
            "that are copied.",
            "两者都领先于无注意力，长输入上领先更多，权重指向被照抄的数字。",
        )
    more_seeds = Text(
        f"More seeds are needed to decide whether {unsure.en}." if unsure.en else "",
        f"需要更多种子才能判定：{unsure.zh}。" if unsure.zh else "",
    )
    if not false.en:
        return ClaimVerdict.UNDECIDED, more_seeds
    fails = any(all(so is False for so in parts[part].values()) for part in ("ahead", "weight"))
    return ClaimVerdict.FAILS if fails else ClaimVerdict.CONDITIONS, Text(
        f"Not true here: {false.en}. {more_seeds.en}".strip(),
        f"此处不成立：{false.zh}。{more_seeds.zh}",
    )


def grouped(
    canvas: Canvas,
    axes: Any,
    found: dict[str, dict[str, list[float]]],
    groups: dict[str, Text],
) -> None:
    """Bars of every name side by side within each group, with intervals over seeds."""
    wide = 0.8 / len(found)
    for number, (name, own) in enumerate(found.items()):
        at = [place + (number - (len(found) - 1) / 2) * wide for place in range(len(groups))]
        known = [share(mean(own[group])) for group in groups]
        error = [[one.value - one.low for one in known], [one.high - one.value for one in known]]
        axes.bar(at, [one.value for one in known], wide * 0.92, yerr=error, capsize=2,
                 color=INKS[name], ecolor="#444444", label=canvas.say(LABELS[name]))  # fmt: skip
    axes.set_xticks(range(len(groups)), [canvas.say(one) for one in groups.values()])
    axes.grid(False, axis="x")
