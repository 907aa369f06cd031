"""E1: in textbook form dot is fast and additive slow; as this library runs it, additive need not be."""

from __future__ import annotations

from dataclasses import dataclass

from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools import timing
from regard.figures.canvas import Canvas
from regard.measuring.statistics import Estimate, ratio
from regard.text import Text

# Textbook additive takes at least this many times the time and the memory of textbook dot.
SLOW = 5.0
# For HOLDS our additive takes at most this many times the time and the memory of our dot ...
NEAR = 2.0
# ... and for CONDITIONS at most these fractions of the time and the memory of textbook additive.
FASTER, LEANER = 1 / 2, 1 / 5


@dataclass(frozen=True)
class SpeedOfAdditive(Claim):
    """Runs five forms on the same tensors: dot and additive, textbook and ours, and the sine series."""

    id = "E1"
    statement = Text(
        "Dot attention is fast, additive attention as taught is slow and hungry for memory; as this "
        "library runs it, it is neither.",
        "点积注意力快；教科书写法的加性注意力又慢又费内存；而本库的实现两者都不是。",
    )
    criterion = Text(
        "Textbook additive takes at least 5 times the time and the peak memory of textbook dot "
        "(95% interval over interleaved rounds), and our exact additive at most 2 times those of our "
        "dot. With conditions: ours takes at most 1/2 of the time and 1/5 of the memory of the "
        "textbook, but more than 2 times those of dot. It does not hold where textbook additive is not that "
        "slow, or ours is not that much better.",
        "教科书加性的时间和峰值内存都至少是教科书点积的 5 倍（交错各轮的 95% 区间），且本库的精确加性不超过"
        "本库点积的 2 倍。附条件成立：本库的时间不超过教科书的 1/2、内存不超过 1/5，但仍超过点积的 2 倍。若教科书加性没有那么慢，或本库没有改进那么多，则不成立。",
    )
    meaning = Text(
        "Additive attention no longer has to be avoided for its memory. On a CPU it still costs "
        "several times the time of dot: choose it for what it can express, and measure your own "
        "shape with `regard choose`.",
        "不必再因为内存而回避加性注意力。但在 CPU 上它的时间仍是点积的数倍：请为其表达能力而选它，"
        "并用 `regard choose` 测量自己的形状。",
    )
    caption = Text(
        "Time and peak memory of one forward and backward pass on this machine, as multiples of the "
        "textbook dot. Whiskers: 95% intervals over rounds. Logarithmic.",
        "本机上一次前向加反向的时间与峰值内存，以教科书点积为 1。误差线为各轮的 95% 区间。对数坐标。",
    )
    control = Text(
        "Same tensors, width and threads for all; the forms take turns in every round. Ours computes "
        "tanh exactly; the sine series may err by 1e-2 of the largest value.",
        "所有写法使用相同的张量、宽度和线程数，每轮轮流计时。本库的精确实现不近似 tanh；"
        "正弦级数允许的误差为最大值的 1e-2。",
    )
    seconds = (4.0, 40.0)
    alone = True

    forms: timing.Forms = timing.passes
    width: int = 64

    def measure(self, run: Run) -> Numbers:
        """Seconds in each round, and peak bytes, of each form."""
        length = run.pick(512, 1024)
        calls = self.forms(length, self.width, run.generator("E1"))
        peaks = timing.peaks(calls, run.device)
        seconds = timing.interleaved(calls, run.pick(5, 12), 0.02, run)
        return {
            "length": length, "width": self.width, "seconds": seconds, "peak_bytes": peaks,
            "device": run.device.type,
        }  # fmt: skip

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        times, peak = numbers["seconds"], numbers["peak_bytes"]

        def compared(first: str, second: str) -> tuple[Estimate, float]:
            return ratio(times[first], times[second]), peak[first] / peak[second]

        taught, taught_memory = compared("textbook additive", "textbook dot")
        run, run_memory = compared("additive", "dot")
        gained, gained_memory = compared("additive", "textbook additive")
        sine, _ = compared("sine additive", "dot")
        facts = (
            Fact(Text("time, textbook additive over dot", "时间：教科书加性比点积"), *taught, "×"),
            Fact(Text("time, our additive over our dot", "时间：本库加性比本库点积"), *run, "×"),
            Fact(
                Text("time, our sine series over our dot", "时间：正弦级数比本库点积"), *sine, "×"
            ),
            Fact(
                Text("memory, textbook additive over ours", "内存：教科书加性比本库加性"),
                1 / gained_memory,
                unit="×",
            ),
        )
        if taught.below(SLOW) or taught_memory < SLOW:
            because = Text(
                f"As taught, additive takes only {taught.value:.1f} times the time and "
                f"{taught_memory:.1f} times the memory of dot.",
                f"教科书加性只需点积 {taught.value:.1f} 倍的时间和 {taught_memory:.1f} 倍的内存。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        device = numbers.get("device", "cpu").upper()
        words = Text(
            f"As taught, additive takes {taught.value:.0f} times the time of dot; as run here "
            f"{1 / gained.value:.1f} times less than as taught and 1/{1 / gained_memory:.0f} of its "
            f"memory, which is {run.value:.1f} times the time and {run_memory:.1f} times the memory "
            f"of our dot (length {numbers['length']}, width {numbers['width']}, this {device}).",
            f"教科书加性的时间是点积的 {taught.value:.0f} 倍；本库的时间减为教科书的 "
            f"1/{1 / gained.value:.1f}，内存减为 1/{1 / gained_memory:.0f}，即本库点积的 "
            f"{run.value:.1f} 倍时间和 {run_memory:.1f} 倍内存"
            f"（长度 {numbers['length']}，宽度 {numbers['width']}，本机 {device}）。",
        )
        if taught.above(SLOW) and run.below(NEAR) and run_memory <= NEAR:
            return Judgement(ClaimVerdict.HOLDS, words, facts)
        if taught.above(SLOW) and gained.below(FASTER) and gained_memory <= LEANER:
            because = Text(
                f"Against the textbook, not against dot. {words.en}",
                f"仅与教科书相比成立，与点积相比则否。{words.zh}",
            )
            return Judgement(ClaimVerdict.CONDITIONS, because, facts)
        if gained.above(FASTER) or gained_memory > LEANER:
            return Judgement(ClaimVerdict.FAILS, words, facts)
        because = Text(
            "The times scatter across the bar: a quiet machine and more rounds are needed.",
            "时间的散布跨过了界线：需要空闲的机器和更多轮次。",
        )
        return Judgement(ClaimVerdict.UNDECIDED, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Two panels of bars: time, memory."""
        left, right = canvas.panels(2)
        names = list(timing.WORDS)
        colors = [timing.STYLES[name]["color"] for name in names]
        times, peak = numbers["seconds"], numbers["peak_bytes"]
        found = [ratio(times[name], times["textbook dot"]) for name in names]
        whiskers = ([x.low for x in found], [x.high for x in found])
        labels = [
            Text(t.en.replace(", ", "\n"), t.zh.replace("，", "\n")) for t in timing.WORDS.values()
        ]
        canvas.bars(left, labels, [x.value for x in found], errors=whiskers, colors=colors)
        canvas.bars(right, labels, [peak[n] / peak["textbook dot"] for n in names], colors=colors)
        titles = (Text("time", "时间"), Text("peak memory", "峰值内存"))
        for axes, title in zip((left, right), titles, strict=True):
            axes.set_yscale("log")
            axes.tick_params(axis="x", labelsize=7)
            for patch, name in zip(axes.patches, names, strict=True):
                patch.set_hatch("//" if name.startswith("textbook") else "")
                patch.set_edgecolor("white")
            canvas.label(axes, "", Text("multiple of textbook dot", "教科书点积的倍数"), title)
