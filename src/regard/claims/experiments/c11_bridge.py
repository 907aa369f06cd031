"""C11: attention is a bridge for gradients, whatever the score."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from scipy import stats

from regard import Additive, Dot, Projected, Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, train
from regard.claims.tools.outcome import percent, plain, surely
from regard.claims.tools.recurrent import Recaller, decay, log_gradient
from regard.figures.canvas import Canvas
from regard.measuring.statistics import Estimate, bands, log_slope, mean, slope
from regard.synthetic.recall import Recall
from regard.text import Text

LENGTHS = (32, 64, 128, 256)
NEAR = 16  # nearer tokens also reach the output through the recurrence and the query
FACTOR = math.log(2)  # gradients within a factor of 2 count as flat, and as equal
SOLVED = 95.0  # percent accuracy from which recall counts as solved
DILUTED = -0.25  # the gradient is not flat if its exponent against length is below this
BRIDGES = ("dot", "additive")
LABELS = {"control": Text("recurrent only", "仅循环网络")}
DASHED = {"color": "#444444", "marker": "", "ls": (0, (4, 3)), "lw": 1.1, "zorder": 5}


def scores() -> dict[str, Callable[[int], Score]]:
    """The scores that bridge the states, as functions of the width of a state."""
    return {
        "dot": lambda dim: Projected(Dot(), dim, dim, width=dim),
        "additive": lambda dim: Projected(Additive(dim, bias=True), dim, dim),
    }


@dataclass(frozen=True)
class Bridge(Claim):
    """Each step back through the recurrence multiplies a gradient by about sqrt(E[tanh'^2] / 3)."""

    id = "C11"
    statement = Text(
        "Attention is a bridge for gradients, whichever the score: through a recurrent network they "
        "decay exponentially with distance, through attention they do not.",
        "无论用哪种分数，注意力都是梯度的桥梁：经循环网络，梯度随距离指数衰减；经注意力则不会。",
    )
    criterion = Text(
        "Recurrent: the log gradient falls along a straight line (r² ≥ 0.95) with the distance. "
        "Attention: from 16 tokens away to the first it changes by less than a factor of 2, and that of "
        "dot and additive differ by less. At the longest length recall is solved (95%) with either bridge "
        "and not without. If the gradient at the first token also stays with growing length: holds; if it "
        "thins out with the length: with conditions. (Whole 95% intervals.)",
        "循环网络：对数梯度随距离沿直线下降（r² ≥ 0.95）。注意力：从 16 个词之外到首词，梯度变化不到 2 倍，点积与加性之差也不到 2 倍。"
        "在最长序列上，两种桥都能解决回忆任务（95%），没有桥则不能。若首词梯度在序列变长时也保持不变：成立；若随长度变稀：有条件。"
        "（均指整个 95% 区间。）",
    )
    meaning = Text(
        "For long range put attention over the states; the score does not matter for that. Untrained "
        "attention shares its gradient among all n tokens, so that very long inputs start slowly.",
        "需要远距离依赖时，在状态之上加注意力即可，用哪种分数无关紧要。未训练的注意力把梯度分给全部 n 个词，因此很长的输入起步较慢。",
    )
    caption = Text(
        "Left: gradient at a token against its distance from the end, untrained, 256 tokens; dashed: "
        "the theory of wide recurrent networks. Middle: gradient at the first token against the length. "
        "Right: recall of the first token after training. Bands: 95% intervals over seeds.",
        "左：未训练时，256 个词的序列中各词的梯度与其到末尾的距离；虚线：宽循环网络的理论值。中：首词的梯度与序列长度。"
        "右：训练后对首词的回忆准确率。阴影：各种子的 95% 区间。",
    )
    control = Text(
        "The same recurrent encoder with and without the bridge; for recall the one without is wider and "
        "has more parameters. The same data, steps, learning rates to try and seeds.",
        "有桥与无桥使用同样的循环编码器；回忆任务中，无桥者更宽、参数更多。数据、步数、候选学习率与种子均相同。",
    )
    seconds = (12.0, 150.0)

    scores: dict[str, Callable[[int], Score]] = field(default_factory=scores)
    fading: bool = True
    hidden: int = 16
    wider: int = 28  # width of states without a bridge; gives them more parameters than the others
    lengths: tuple[int, ...] = (4, 64)  # sequence lengths of the recall task
    more_lengths: tuple[int, ...] = (8, 16, 32, 128)  # additional lengths in a full run

    def measure(self, run: Run) -> Numbers:
        """Gradients before training, then recall."""
        gradients = self.measure_gradients(run)
        lengths = sorted(run.pick(self.lengths, self.lengths + self.more_lengths))
        rates = run.pick((1e-2, 3e-2), (3e-3, 1e-2, 3e-2))
        budget = Budget(run.pick(180, 400), batch=32, held=1024, rates=rates)
        seeds = run.seeds(6)
        cells = [(name, length) for name in ("control", *self.scores) for length in lengths]
        found: dict[str, list[Numbers]] = {name: [] for name in ("control", *self.scores)}
        for number, (name, length) in enumerate(cells):
            width = self.wider if name == "control" else self.hidden
            part = run.within(number, len(cells))
            task = Recall(length)
            trained = train(lambda: self.build(name, width), task, seeds, budget, part)  # noqa: B023
            found[name].append(plain(trained))
        return {**gradients, "lengths": lengths, "recall": found}

    def build(self, name: str, width: int) -> Recaller:
        """The network with the bridge of this name; `control` has none."""
        score = None if name == "control" else self.scores[name](width)
        return Recaller(Recall().classes + 1, width, Recall().classes, score, self.fading)

    def measure_gradients(self, run: Run) -> Numbers:
        """Log gradients of untrained networks by distance and by length, for each seed."""
        by_distance = {name: [] for name in ("control", *self.scores)}
        by_length = {name: [] for name in ("control", *self.scores)}
        theory = []
        for seed in run.seeds(run.pick(6, 16)):
            generator = run.generator("C11", seed)
            tokens = [Recall(length).sample(16, generator)[0].double() for length in LENGTHS]
            for name, distant in by_distance.items():
                torch.manual_seed(seed)
                net = self.build(name, 2 * self.hidden).double()
                found = [log_gradient(net, own) for own in tokens]
                distant.append(found[-1].tolist())
                by_length[name].append([float(own[-1]) for own in found])
                if name == "control":
                    theory.append(decay(net, tokens[-1]))
        return {"by_distance": by_distance, "by_length": by_length, "theory": theory}

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        far, away = numbers["by_distance"], range(len(numbers["by_distance"]["control"][0]))
        falls = mean([slope(away, own).value for own in far["control"]])
        straight = min(straightness(away, own) for own in far["control"])
        theory = mean(numbers["theory"])
        flat = {name: change(far[name]) for name in BRIDGES}
        apart = mean([
            math.fsum(x - y for x, y in zip(a[NEAR:], b[NEAR:], strict=True)) / len(a[NEAR:])
            for a, b in zip(*(far[name] for name in BRIDGES), strict=True)
        ])  # fmt: skip
        # One number for each seed, because both scores of a seed have the same encoder.
        pairs = zip(*(numbers["by_length"][name] for name in BRIDGES), strict=True)
        thin = mean([
            math.fsum(log_slope(LENGTHS, [math.exp(x) for x in own]).value for own in both) / len(both)
            for both in pairs
        ])  # fmt: skip
        recall = {
            name: mean(percent(own[-1]["quality"])) for name, own in numbers["recall"].items()
        }
        facts = (
            Fact(Text(f"recurrent, change of the log gradient with a step (theory of wide networks: {theory.value:.2f})", f"循环网络每步对数梯度的变化（宽网络理论：{theory.value:.2f}）"), *falls),
            Fact(Text("log ratio of the gradients of dot and additive", "点积与加性梯度之比的对数"), *apart),
            Fact(Text("exponent of attention's gradient against length", "注意力梯度对长度的指数"), *thin),
            Fact(Text(f"recall over {numbers['lengths'][-1]} tokens without a bridge", f"无桥时 {numbers['lengths'][-1]} 个词的回忆准确率"), *recall["control"], unit="%"),
        )  # fmt: skip
        parts = {
            Text("the recurrent gradient decays", "循环网络的梯度衰减"): negate(surely(falls, 0.0)),
            Text("along a straight line", "且沿直线下降"): straight >= 0.95,
            Text("dot is flat", "点积平坦"): within(flat["dot"], FACTOR),
            Text("additive is flat", "加性平坦"): within(flat["additive"], FACTOR),
            Text("both are alike", "两者相近"): within(apart, FACTOR),
            Text("recall fails without a bridge", "无桥时回忆失败"): negate(surely(recall["control"], SOLVED)),
            Text("dot recalls", "点积能回忆"): surely(recall["dot"], SOLVED),
            Text("additive recalls", "加性能回忆"): surely(recall["additive"], SOLVED),
        }  # fmt: skip
        return Judgement(*decide(parts, thin), facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Gradient by distance, by length; recall."""
        left, middle, right = canvas.panels(3, wide=3.2)
        far = numbers["by_distance"]
        picked = [*range(0, NEAR, 4), *range(NEAR, len(far["control"][0]), 16)]
        for name in far:
            # The curves coincide; one is thicker so that both stay visible.
            style = {"label": LABELS.get(name), "lw": 3.5 if name == "dot" else 1.5, "marker": ""}
            by_distance = bands([[own[t] for own in far[name]] for t in picked])
            canvas.line(left, picked, name=name, **powers(by_distance), **style)
            if name != "control":
                by_length = bands(list(zip(*numbers["by_length"][name], strict=True)))
                canvas.line(middle, LENGTHS, name=name, **powers(by_length), **style)
            y, low, high = bands([percent(one["quality"]) for one in numbers["recall"][name]])
            canvas.line(right, numbers["lengths"], y, name, low=low, high=high, label=LABELS.get(name))  # fmt: skip
        start, step = (
            mean([own[NEAR] for own in far["control"]]).value,
            mean(numbers["theory"]).value,
        )
        said = [math.exp(start + step * (t - NEAR)) for t in picked]
        canvas.line(left, picked, said, label=Text("theory", "理论"), **DASHED)
        first = math.exp(mean([own[0] for own in numbers["by_length"]["dot"]]).value)
        share = [first * LENGTHS[0] / length for length in LENGTHS]
        canvas.line(middle, LENGTHS, share, label="1 / n", **DASHED)
        left.set_yscale("log")
        left.set_ylim(1e-40, 10)
        middle.set_yscale("log", base=2)
        for axes, lengths in ((middle, LENGTHS), (right, numbers["lengths"])):
            axes.set_xscale("log", base=2)
            axes.set_xticks(lengths, [str(length) for length in lengths])
        right.set_ylim(0, 104)
        gradient = Text("gradient (root mean square)", "梯度（均方根）")
        canvas.label(
            left, Text("distance, tokens", "距离（词）"), gradient, Text("by distance", "按距离")
        )
        canvas.label(
            middle,
            Text("length n, tokens", "长度 n（词）"),
            gradient,
            Text("at the first token", "首词处"),
        )
        canvas.label(
            right,
            Text("length, tokens", "长度（词）"),
            Text("recall, %", "回忆准确率（%）"),
            Text("trained", "训练后"),
        )
        canvas.legend(left, loc="upper right", bbox_to_anchor=(1.0, 0.88))
        canvas.legend(middle)


def change(gradients: list[list[float]]) -> Estimate:
    """Change of the line fitted to the log gradients, from NEAR to the first token."""
    away = range(NEAR, len(gradients[0]))
    return mean([slope(away, own[NEAR:]).value * (away[-1] - NEAR) for own in gradients])


def straightness(x: range, y: list[float]) -> float:
    """r^2 of a straight line."""
    return float(stats.linregress(x, y).rvalue ** 2)


def within(found: Estimate, bound: float) -> bool | None:
    """Whether the estimate lies between -bound and bound; None if its interval straddles either."""
    above, below = surely(found, -bound), negate(surely(found, bound))
    return None if None in (above, below) else bool(above and below)


def negate(answer: bool | None) -> bool | None:
    """Logical not; None stays None."""
    return None if answer is None else not answer


def decide(parts: dict[Text, bool | None], thin: Estimate) -> tuple[ClaimVerdict, Text]:
    """Verdict and reason from the parts of the criterion and the exponent of gradient against length."""
    false = [text for text, so in parts.items() if so is False]
    if false:
        return ClaimVerdict.FAILS, Text(
            f"Not true here: {'; '.join(x.en for x in false)}.",
            f"此处不成立：{'；'.join(x.zh for x in false)}。",
        )
    if None in parts.values() or surely(thin, DILUTED) is None:
        open_parts = [text for text, so in parts.items() if so is None]
        return ClaimVerdict.UNDECIDED, Text(
            f"More seeds are needed for: {'; '.join(x.en for x in open_parts) or 'the length'}.",
            f"以下需要更多种子：{'；'.join(x.zh for x in open_parts) or '长度'}。",
        )
    if surely(thin, DILUTED):
        return ClaimVerdict.HOLDS, Text(
            "Flat against distance and length, dot and additive alike.",
            "对距离和长度都平坦，点积与加性相近。",
        )
    return ClaimVerdict.CONDITIONS, Text(
        "Flat against distance at one length, dot and additive alike. With the length itself the "
        f"gradient thins out as n to the power {thin.value:.2f}, as untrained weights are shared by n "
        "tokens: a power law, not an exponential.",
        "在固定长度下对距离平坦，点积与加性相近。但梯度随长度 n 按 "
        f"{thin.value:.2f} 次幂变稀，因为未训练的权重由 n 个词分摊：是幂律，而非指数。",
    )


def powers(logs: tuple[list[float], list[float], list[float]]) -> dict[str, list[float]]:
    """Arguments for a line with its band, from means of logs and their intervals."""
    return {
        name: [math.exp(x) for x in part]
        for name, part in zip(("y", "low", "high"), logs, strict=True)
    }
