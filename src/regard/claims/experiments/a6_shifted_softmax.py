"""A6: the softmax must be shifted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.figures.canvas import BLUE, GREEN, ORANGE, Canvas
from regard.text import Text

Softmax = Callable[[Tensor], Tensor]
# Each format with the integer type of its width. Positive floats sort like their bits read as integers,
# so a bisection over integers visits neighbouring floats.
FORMATS = {
    "fp16": (torch.float16, torch.int16),
    "bf16": (torch.bfloat16, torch.int16),
    "fp32": (torch.float32, torch.int32),
}
LOOK = {"fp16": (ORANGE, "o"), "bf16": (GREEN, "s"), "fp32": (BLUE, "x")}
WHOLE = 0.1  # allowed deviation of the sum of weights from 1
STEPS = 2  # allowed floats of the format between the measured threshold and the theory
ROUNDING = 2  # error in machine epsilons of the format that counts as exact


def naive(logits: Tensor) -> Tensor:
    """Softmax by its definition, without a shift."""
    power = logits.exp()
    return power / power.sum(-1, keepdim=True)


def shifted(logits: Tensor) -> Tensor:
    """Softmax after subtracting the largest logit, all in the format of the logits."""
    return naive(logits - logits.amax(-1, keepdim=True))


def wide(logits: Tensor) -> Tensor:
    """PyTorch's softmax: shifted, and summed in fp32 for 16-bit formats."""
    return torch.softmax(logits, -1)


@dataclass(frozen=True)
class ShiftedSoftmax(Claim):
    """Finds where exp leaves the range of a format, and whether subtracting the largest logit cures it.

    For n equal logits s the sum n exp(s) overflows above s = log(largest / n). For logits -s, exp rounds
    to 0 below the logarithm of half the smallest positive number, subnormal ones included.
    """

    id = "A6"
    statement = Text(
        "The softmax must be shifted: subtract the largest logit before exp.",
        "softmax 必须平移：取指数之前先减去最大的 logit。",
    )
    criterion = Text(
        "In fp16, bf16 and fp32 the unshifted softmax of n equal logits breaks within 2 steps of the "
        "format of log(largest/n), and of very negative ones where exp becomes 0. The shifted one is "
        "within 2 units of precision of fp64 at every offset, and the same bit for bit. With conditions "
        "if the shift alone is not enough for some number of keys.",
        "在 fp16、bf16、fp32 中，n 个相等 logit 的未平移 softmax 在 log(最大数/n) 附近（该格式 2 个步长内）失效，"
        "很负的 logit 则在 exp 变为 0 处失效。平移后在任何偏移下与 fp64 相差不超过 2 个精度单位，且逐位相同。"
        "若对某些键数仅平移还不够，则为有条件成立。",
    )
    meaning = Text(
        "Always shift; it costs one pass. In fp16, add up in fp32 as well. Library functions do both; "
        "a softmax written by hand often does not.",
        "务必平移，代价只是多一次遍历。fp16 还应在 fp32 中求和。库函数两者都做；手写的 softmax 往往没有。",
    )
    caption = Text(
        "Left: the largest common logit, and the smallest, that the unshifted softmax survives, with "
        "the theory dashed. Right: error of eight weights when a constant is added to their logits "
        "(1: not a number, or no weight left).",
        "左：未平移的 softmax 能承受的最大与最小公共 logit，虚线为理论值。右：给八个 logit 加上常数后权重的误差"
        "（1 表示非数或权重全失）。",
    )
    control = Text(
        "Theory: the logarithm of the format's largest and smallest numbers; fp64 as the truth.",
        "理论：各格式最大数与最小数的对数；以 fp64 为真值。",
    )
    seconds = (0.5, 0.5)

    naive: Softmax = naive
    shifted: Softmax = shifted
    sizes: tuple[int, ...] = (1, 16, 256, 4096, 16384)
    many: int = 65536  # keys for the shifted sum: more than 65504, the largest fp16 number
    offsets: tuple[int, ...] = tuple(range(-240, 241, 8))  # exact in bf16

    def measure(self, run: Run) -> Numbers:
        """Thresholds, errors and large sums in each format."""
        found: Numbers = {
            "sizes": list(self.sizes),
            "offsets": list(self.offsets),
            "many": self.many,
        }
        for name in run.steps(FORMATS):
            dtype, _ = FORMATS[name]
            info = torch.finfo(dtype)
            smallest = info.smallest_normal * info.eps
            found[name] = {
                "over": [self.break_at(name, size, 1) for size in self.sizes],
                "over theory": [math.log(info.max) - math.log(size) for size in self.sizes],
                "under": [self.break_at(name, size, -1) for size in self.sizes],
                # On hardware that flushes subnormal numbers to 0 it breaks at the smallest normal one.
                "under theory": [-math.log(smallest / 2), -math.log(info.smallest_normal)],
                "unit": info.eps,
                "errors": {
                    kind: self.errors(function, dtype)
                    for kind, function in (("naive", self.naive), ("shifted", self.shifted))
                },
                "same": self.same(dtype),
                "many": {
                    "shifted": works(self.shifted, torch.zeros(self.many, dtype=dtype)),
                    "wide": works(wide, torch.zeros(self.many, dtype=dtype)),
                },
            }
        return found

    def break_at(self, name: str, size: int, sign: int) -> Numbers:
        """The magnitude of `size` equal logits of this sign at which the naive softmax breaks, by bisection.

        `last` works and `first` breaks, and they are neighbouring floats; both are 0 if nothing breaks.
        """
        dtype, bits = FORMATS[name]
        number = lambda code: torch.tensor([code], dtype=bits).view(dtype)  # noqa: E731
        whole = lambda code: works(self.naive, sign * number(code).expand(size))  # noqa: E731
        low = 0
        high = int(torch.tensor([torch.finfo(dtype).max], dtype=dtype).view(bits))
        if whole(high):
            return {"last": 0.0, "first": 0.0}
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if whole(middle) else (low, middle)
        return {"last": float(number(low)), "first": float(number(high))}

    def errors(self, function: Softmax, dtype: torch.dtype) -> list[float]:
        """Largest error of the weights of logits 0, 1, ... 7 plus each offset; 1 if they are not finite."""
        logits = torch.arange(8, dtype=torch.float64)
        truth = torch.softmax(logits, -1)
        found = []
        for offset in self.offsets:
            weights = function((logits + offset).to(dtype))
            error = float((weights.double() - truth).abs().max())
            found.append(error if works(function, (logits + offset).to(dtype)) else 1.0)
        return found

    def same(self, dtype: torch.dtype) -> bool:
        """Whether the shifted softmax gives the same bits at every offset."""
        logits = torch.arange(8, dtype=torch.float64)
        first = self.shifted(logits.to(dtype))
        return all(
            torch.equal(first, self.shifted((logits + offset).to(dtype))) for offset in self.offsets
        )

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        own = {name: numbers[name] for name in FORMATS}
        breaks = all(as_theory(found) for found in own.values())
        error = max(max(found["errors"]["shifted"]) / found["unit"] for found in own.values())
        cured = error <= ROUNDING and all(found["same"] for found in own.values())
        ends = {name: found["over"][0]["last"] for name, found in own.items()}
        facts = (
            *(
                Fact(Text(f"largest safe logit in {name}", f"{name} 的最大安全 logit"), ends[name])
                for name in FORMATS
            ),
            Fact(Text("largest error when shifted (units)", "平移后的最大误差（精度单位）"), error),
        )
        if not breaks:
            because = Text(
                "Without the shift it does not break where the formats end.",
                "不平移时，并未在各格式的尽头失效。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        if not cured:
            because = Text("The shift does not cure it.", "平移并不能解决问题。")
            return Judgement(ClaimVerdict.FAILS, because, facts)
        broken = [name for name, found in own.items() if not found["many"]["shifted"]]
        said = ", ".join(f"{ends[name]:.4g} ({name})" for name in FORMATS)
        because = Text(
            f"Unshifted it breaks above {said} for one key, {own['fp16']['over'][-1]['last']:.2g} for "
            f"{numbers['sizes'][-1]} keys in fp16; shifted it is exact.",
            f"不平移时，单个键的 logit 超过 {said} 即失效；fp16 中 {numbers['sizes'][-1]} 个键时为 "
            f"{own['fp16']['over'][-1]['last']:.2g}；平移后是精确的。",
        )
        if not broken:
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        joined = ", ".join(broken)
        because = Text(
            f"{because.en} But the shift alone is not enough for {numbers['many']} keys in {joined}, where "
            "the sum of ones overflows: it has to be taken in fp32.",
            f"{because.zh}但在 {joined} 中有 {numbers['many']} 个键时，仅平移还不够：一的和也会溢出，须在 fp32 中求和。",
        )
        return Judgement(ClaimVerdict.CONDITIONS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Thresholds against the number of keys; errors against the offset."""
        left, right = canvas.panels(2, 4.4, 3.4)
        sizes = numbers["sizes"]
        for name, (ink, mark) in LOOK.items():
            found = numbers[name]
            canvas.line(
                left,
                sizes,
                [x["last"] for x in found["over"]],
                label=name,
                color=ink,
                marker=mark,
                lw=0,
            )
            left.plot(sizes, found["over theory"], color=ink, ls="--", lw=1)
            lowest = [-x["last"] for x in found["under"]]
            canvas.line(left, sizes, lowest, label="_", color=ink, marker=mark, lw=0)
            left.axhline(-found["under theory"][0], color=ink, ls="--", lw=1)
            for kind, dashes in (("naive", "-"), ("shifted", ":")):
                shown = [max(x, 1e-9) for x in found["errors"][kind]]
                right.plot(
                    numbers["offsets"], shown, color=ink, ls=dashes, lw=1.8,
                    label=f"{name}, {canvas.say(KINDS[kind])}",
                )  # fmt: skip
        left.set_xscale("log", base=2)
        canvas.label(
            left, Text("number of keys n", "键数 n"), Text("logit (no unit)", "logit（无单位）"),
            Text("unshifted: the safe range", "不平移：安全范围"),
        )  # fmt: skip
        canvas.legend(left, loc="center", bbox_to_anchor=(0.4, 0.62), ncols=3)
        right.set_yscale("log")
        canvas.label(
            right, Text("constant added to the logits", "给 logit 加上的常数"), Text("largest error of a weight", "权重的最大误差"),
            Text("a constant is added", "加上常数"),
        )  # fmt: skip
        canvas.legend(right, loc="center left", bbox_to_anchor=(1.0, 0.5))


KINDS = {"naive": Text("unshifted", "不平移"), "shifted": Text("shifted", "平移")}


def works(function: Softmax, logits: Tensor) -> bool:
    """Whether the weights are finite and add up to about 1."""
    weights = function(logits)
    return bool(weights.isfinite().all()) and abs(float(weights.double().sum()) - 1) <= WHOLE


def as_theory(found: Numbers) -> bool:
    """Whether both thresholds of a format are within `STEPS` floats of the theory."""

    def near(threshold: Numbers, theory: float) -> bool:
        step = threshold["first"] - threshold["last"]
        return step > 0 and abs(threshold["first"] - theory) <= STEPS * step

    over = zip(found["over"], found["over theory"], strict=True)
    return all(near(*pair) for pair in over) and any(
        all(near(threshold, theory) for threshold in found["under"])
        for theory in found["under theory"]
    )
