"""E4: time is quadratic in the length, memory need not be."""

from __future__ import annotations

from dataclasses import dataclass

from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools import timing
from regard.figures.canvas import Canvas
from regard.measuring.statistics import Estimate, log_slope, mean
from regard.text import Text

TAUGHT = ("textbook dot", "textbook additive")
OURS = ("dot", "additive", "sine additive")
# Ranges of exponents that count as quadratic time, quadratic memory and about linear memory. They are
# wide because tiles and tables make the curves step.
TIME = (1.6, 2.4)
SQUARE, LINEAR = 1.9, 1.25
# Floats that the textbook holds at once for each pair of query and key: a score, a weight and the
# gradient of one of them. Additive holds as many for each hidden unit.
HELD = 3


@dataclass(frozen=True)
class QuadraticTime(Claim):
    """Exponents p of time and of peak memory, c L^p, for the textbook forms and for ours."""

    id = "E4"
    statement = Text(
        "The time of attention is quadratic in the length; its memory need not be.",
        "注意力的时间是长度的平方级，内存却不必如此。",
    )
    criterion = Text(
        "For every form the 95% interval (over rounds) of the exponent of time lies within 1.6 to "
        "2.4; the exponent of peak memory is at least 1.9 for both textbook forms and at most 1.25 "
        "for all of ours. With conditions: the memory does so, the time of some forms does not.",
        "每种写法的时间指数（各轮）的 95% 区间落在 1.6 至 2.4 之内；两种教科书写法的峰值内存指数至少为 1.9，"
        "本库各写法均不超过 1.25。附条件成立：内存如此，但部分写法的时间并非如此。",
    )
    meaning = Text(
        "Twice the length costs four times the time with any score, but memory is no reason to "
        "shorten a sequence: use a fused or tiled form.",
        "不论哪种打分，长度加倍，时间变为四倍；但内存不是截短序列的理由：请使用融合或分块的实现。",
    )
    caption = Text(
        "Time and peak memory of one forward and backward pass against the length, both "
        "logarithmic. Bands: range over rounds. Dashed grey: 3 floats for each pair (and hidden "
        "unit), what the textbook must hold.",
        "一次前向加反向的时间与峰值内存随长度的变化，双对数坐标。色带为各轮的范围。灰色虚线："
        "教科书写法对每一对（每个隐单元）必须保存的 3 个浮点数。",
    )
    control = Text(
        "Same tensors and width for all forms, the textbook's at lengths a quarter as long; all take turns "
        "in every round. "
        "Theory for the textbook's memory: 12 bytes for each pair, times the hidden units if additive.",
        "所有写法使用相同的张量和宽度（教科书写法的长度为四分之一），每轮轮流测量。教科书内存的理论值：每对 12 字节，"
        "加性再乘以隐单元数。",
    )
    seconds = (8.0, 60.0)
    alone = True

    forms: timing.Forms = timing.passes
    width: int = 8
    # The longest sequence.
    quick: int = 4096
    full: int = 8192

    def measure(self, run: Run) -> Numbers:
        """Seconds (rounds x lengths) and peak bytes (lengths) of each form."""
        # The textbook stops at shorter lengths, where it is slow enough to time and still fits in memory.
        longest = run.pick(self.quick, self.full)
        lengths = {name: [longest // 16, longest // 8, longest // 4] for name in TAUGHT}
        lengths |= {name: [longest // 4, longest // 2, longest] for name in OURS}
        calls, peaks = {}, {name: [] for name in lengths}
        for length in sorted(set().union(*lengths.values())):
            made = self.forms(length, self.width, run.generator("E4", length))
            made = {name: call for name, call in made.items() if length in lengths[name]}
            for name, peak in timing.peaks(made, run.device).items():
                peaks[name].append(peak)
            calls |= {f"{name}/{length}": call for name, call in made.items()}
        found = timing.interleaved(calls, run.pick(4, 6), 0.01, run)
        seconds = {
            name: [list(row) for row in zip(*(found[f"{name}/{n}"] for n in own), strict=True)]
            for name, own in lengths.items()
        }
        return {"lengths": lengths, "width": self.width, "seconds": seconds, "peak_bytes": peaks}

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        lengths = numbers["lengths"]
        time = {
            name: mean([log_slope(lengths[name], row).value for row in rounds])
            for name, rounds in numbers["seconds"].items()
        }
        memory = {
            name: log_slope(lengths[name], row) for name, row in numbers["peak_bytes"].items()
        }
        least_taught = min(memory[name].value for name in TAUGHT)
        most_ours = max(memory[name].value for name in OURS)
        facts = (
            Fact(Text("exponent of time, our dot", "时间指数，本库点积"), *time["dot"]),
            Fact(Text("exponent of time, our additive", "时间指数，本库加性"), *time["additive"]),
            Fact(
                Text("exponent of memory, textbook (least)", "内存指数，教科书（最小）"),
                least_taught,
            ),
            Fact(Text("exponent of memory, ours (most)", "内存指数，本库（最大）"), most_ours),
        )
        if least_taught < SQUARE or most_ours > LINEAR:
            because = Text(
                f"Memory grows with exponent {most_ours:.2f} in our forms and {least_taught:.2f} in "
                "the textbook's.",
                f"内存指数：本库 {most_ours:.2f}，教科书 {least_taught:.2f}。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        return self.judge_time(time, facts)

    def judge_time(self, time: dict[str, Estimate], facts: tuple[Fact, ...]) -> Judgement:
        """The verdict by time, when the memory is as stated."""
        low, high = TIME
        outside = {name: x for name, x in time.items() if x.below(low) or x.above(high)}
        unsure = {
            name: x
            for name, x in time.items()
            if name not in outside and (x.low < low or x.high > high)
        }
        if unsure:
            between = lambda x: f"{x.low:.2f} … {x.high:.2f}"  # noqa: E731
            en = ", ".join(f"{timing.WORDS[n].en} ({between(x)})" for n, x in unsure.items())
            zh = "、".join(f"{timing.WORDS[n].zh}（{between(x)}）" for n, x in unsure.items())
            because = Text(
                f"The interval of an exponent of time reaches across {low} or {high}: {en}. A quiet "
                "machine and more rounds are needed.",
                f"时间指数的区间跨过 {low} 或 {high}：{zh}。需要空闲的机器和更多轮次。",
            )
            return Judgement(ClaimVerdict.UNDECIDED, because, facts)
        if len(outside) == len(time):
            because = Text("No form is quadratic in time.", "没有一种写法的时间是平方级。")
            return Judgement(ClaimVerdict.FAILS, because, facts)
        if outside:
            listed = Text(
                ", ".join(f"{timing.WORDS[n].en} ({x.value:.2f})" for n, x in outside.items()),
                "、".join(f"{timing.WORDS[n].zh}（{x.value:.2f}）" for n, x in outside.items()),
            )
            because = Text(
                f"Memory is as stated; at these lengths the time is not quadratic for {listed.en}.",
                f"内存如所述；在这些长度下，时间不是平方级的有：{listed.zh}。",
            )
            return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        because = Text(
            "All five forms are quadratic in time; only the textbook's are in memory.",
            "五种写法的时间都是平方级；只有教科书写法的内存也是。",
        )
        return Judgement(ClaimVerdict.HOLDS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Time and memory against length."""
        left, right = canvas.panels(2, high=3.4)
        for name, style in timing.STYLES.items():
            lengths = numbers["lengths"][name]
            columns = list(zip(*numbers["seconds"][name], strict=True))
            middle = [1e3 * sorted(x)[len(x) // 2] for x in columns]
            low, high = [1e3 * min(x) for x in columns], [1e3 * max(x) for x in columns]
            label = timing.WORDS[name]
            canvas.line(left, lengths, middle, label=label, low=low, high=high, **style)
            mib = [x / 2**20 for x in numbers["peak_bytes"][name]]
            canvas.line(right, lengths, mib, label=label, **style)
        lengths = numbers["lengths"][TAUGHT[0]]
        for units in (1, numbers["width"]):
            theory = [4 * HELD * units * n * n / 2**20 for n in lengths]
            right.plot(lengths, theory, color="#444444", ls=(0, (4, 3)), lw=1.1)
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            ticks = sorted(set().union(*numbers["lengths"].values()))
            axes.set_xticks(ticks, [str(n) for n in ticks])
        length = Text("length (tokens)", "长度（词元）")
        canvas.label(left, length, Text("time (ms)", "时间（毫秒）"), Text("time", "时间"))
        title = Text("peak memory", "峰值内存")
        canvas.label(right, length, Text("memory (MiB)", "内存（MiB）"), title)
        handles, labels = left.get_legend_handles_labels()
        canvas.figure.legend(
            handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8
        )
