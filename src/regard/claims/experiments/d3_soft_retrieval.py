"""D3: a soft look-up can be trained on its answers alone and then used as an exact search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call

import regard
from regard import Additive, Bilinear, Cosine, Gaussian, Projected, ScaledDot, Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.tools.learning import Budget, Trained, compete
from regard.figures.canvas import LOOKS, WORDS, Canvas
from regard.measuring.statistics import mean
from regard.synthetic.task import DATA_SEEDS, ClassificationTask
from regard.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECALL = 0.95
# Soft weights equal the hard look-up if their mean largest difference at the lowest temperature is below
# this.
EQUAL = 1e-3
TEMPERATURES = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-4)
TESTED = 400
QUERY_DIM, KEY_DIM = 12, 10


@dataclass(frozen=True)
class Neighbours(ClassificationTask):
    """Give the label of the item nearest to the query in a latent space that the model does not see.

    Items are points on a sphere in `latent` dims, and the query is a noisy copy of one of them. Queries and
    keys show their points through two random linear maps, fixed by the seed, into spaces of different dims.
    Inputs: query (B, 12), keys (B, items, 10), values (B, items, labels) one-hot. Target (B,): the label of
    the nearest item. The index of that item is never given.
    """

    seed: int
    items: int = 8
    labels: int = 8
    latent: int = 4
    noise: float = 0.2
    # Makes the answers independent of the nearest item, so that there is nothing to learn.
    shuffled: bool = False

    def items_and_nearest(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Queries (B, 12), keys (B, items, 10) and, by exact search, the nearest item (B,)."""
        maps = torch.Generator().manual_seed(DATA_SEEDS + 16 * self.seed + 13)
        for_query, for_key = (
            torch.randn(self.latent, dim, generator=maps) for dim in (QUERY_DIM, KEY_DIM)
        )
        item = unit(torch.randn(count, self.items, self.latent, generator=generator))
        noise = self.noise * torch.randn(count, self.latent, generator=generator)
        point = unit(item[:, 0] + noise)  # always the first: attention does not see the order
        nearest = (item - point.unsqueeze(-2)).square().sum(-1).argmin(-1)
        return point @ for_query, item @ for_key, nearest

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw examples as the class describes."""
        query, key, nearest = self.items_and_nearest(count, generator)
        label = torch.randint(self.labels, (count, self.items), generator=generator)
        if self.shuffled:
            nearest = torch.randint(self.items, (count,), generator=generator)
        value = nn.functional.one_hot(label, self.labels).to(key.dtype)
        return query, key, value, label[torch.arange(count), nearest]


class Retriever(nn.Module):
    """Log of the attention-weighted mean of the values: log probabilities of labels, or of items."""

    def __init__(self, make: Callable[[], Score]) -> None:
        super().__init__()
        self.score = make()

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, temperature: float = 1.0
    ) -> Tensor:
        """Query (B, D_q), keys (B, n, D_k), values (B, n, labels) to (B, labels)."""
        read = regard.attention(
            query.unsqueeze(-2), key, value, self.score, temperature=temperature, engine="reference"
        )
        # Clamped far below any probability that matters, because log 0 has no gradient.
        return read.squeeze(-2).clamp(min=1e-9).log()


def projected(make: Callable[[], Score], width: int | None = None) -> Score:
    """A score on projections into one space."""
    return Projected(make(), QUERY_DIM, KEY_DIM, width=width)


def scores() -> dict[str, Callable[[], Score]]:
    """Every score that can learn, on projections into 16 dims (additive: 64 hidden units)."""
    return {
        "scaled dot": partial(projected, ScaledDot, 16),
        "cosine": partial(projected, partial(Cosine, 1), 16),
        "gaussian": partial(projected, partial(Gaussian, heads=1), 16),
        "bilinear": partial(Bilinear, QUERY_DIM, KEY_DIM),
        "additive": partial(projected, partial(Additive, 64, bias=True)),
    }


@dataclass(frozen=True)
class SoftRetrieval(Claim):
    """Attention is a search with a differentiable ranking; at temperature 0 it is the exact search."""

    id = "D3"
    statement = Text(
        "Soft retrieval can be trained end to end: told only the answer, attention learns which item is "
        "nearest, and at a low temperature it equals exact search.",
        "软检索可以端到端训练：只告知答案，注意力也能学会哪一项最近；温度很低时等同于精确检索。",
    )
    criterion = Text(
        "Trained on labels alone, with 8 items on a sphere of 4 hidden dims, each score ranks the true nearest neighbour first for at least 95% of "
        "queries (95% interval over seeds), and at temperature 1e-4 its weights are those of the exact "
        "search by its own score within 0.001 on average. With conditions if only some scores reach "
        "it.",
        "仅用标签训练，8 个条目位于 4 维隐空间的球面上，每种得分都在至少 95% 的查询上把真正的最近邻排在第一（多种子 95% 区间），"
        "且温度为 1e-4 时其权重与按自身得分的精确检索平均相差不超过 0.001。若只有部分得分达到，则为有条件成立。",
    )
    meaning = Text(
        "Train soft, serve hard: the trained score can be handed to an exact or approximate index. Where "
        "queries and items live in unlike spaces, any score with projections will do.",
        "软训练，硬检索：训练好的得分可以交给精确或近似索引使用。查询与条目处于不同空间时，带投影的得分均可。",
    )
    caption = Text(
        "Left: recall@1 against exact search in the hidden space, before training (pale) and after, with "
        "95% intervals over seeds. Right: how far soft weights are from the hard look-up as the "
        "temperature falls.",
        "左：相对于隐空间精确检索的 recall@1，训练前（浅色）与训练后，及多种子的 95% 区间。"
        "右：温度降低时软权重与硬检索的距离。",
    )
    control = Text(
        "The same data, steps, batch and rates to try for every score; not the same parameters: bilinear "
        "has 120, projections into 16 dims 352, additive with 64 hidden units 1536. The size of the task "
        "was chosen after a pilot run, so that few steps suffice. Exact search in the hidden space is the "
        "truth; before training every score is at its start.",
        "每种得分的数据、步数、批量与候选学习率相同；参数量不同：双线性 120 个，投影到 16 维的 352 个，64 个隐单元的加性 "
        "1536 个。任务规模是在试运行之后选定的，以便少量步数即可学会。隐空间的精确检索为真值；训练前为各得分的初始状态。",
    )
    seconds = (9.0, 120.0)

    scores: dict[str, Callable[[], Score]] = field(default_factory=scores)
    task: Callable[[int], Neighbours] = Neighbours
    budget: Budget = field(
        default_factory=lambda: Budget(
            steps=200, batch=32, rates=(3e-2, 1e-1), examples=4096, held=512
        )
    )
    budget_full: Budget = field(
        default_factory=lambda: Budget(
            steps=1200, batch=64, rates=(1e-2, 3e-2, 1e-1), examples=16384
        )
    )

    def measure(self, run: Run) -> Numbers:
        """Train each score on labels; then measure its recall and its distance from the hard look-up."""
        seeds = run.seeds(run.pick(4, 8))
        budget = run.pick(self.budget, self.budget_full)
        builds: dict[str, Callable[[], nn.Module]] = {
            name: partial(Retriever, make) for name, make in self.scores.items()
        }
        trained = compete(builds, self.task, seeds, budget, run)
        return {
            "recall": {name: self.each(one, seeds, recall) for name, one in trained.items()},
            "before": {name: self.untrained(make, seeds) for name, make in builds.items()},
            "distance": {name: self.each(one, seeds, distances) for name, one in trained.items()},
            "label accuracy": {name: one.quality for name, one in trained.items()},
            "parameters": {name: one.parameters for name, one in trained.items()},
            "rate": {name: one.rate for name, one in trained.items()},
            "temperatures": list(TEMPERATURES), "steps": budget.steps,
            "chance": 1 / self.task(seeds[0]).items,
        }  # fmt: skip

    def untrained(self, make: Callable[[], nn.Module], seeds: list[int]) -> list[float]:
        """Recall before training, for each seed."""
        found = []
        for seed in seeds:
            torch.manual_seed(seed)
            model = make()
            found.append(recall(self.task(seed), model, dict(model.named_parameters())))
        return found

    def each(self, trained: Trained, seeds: list[int], look: Callable) -> list:
        """`look` applied to each seed's model in its own world."""
        return [
            look(self.task(seed), trained.model, trained.member(number))
            for number, seed in enumerate(seeds)
        ]

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        found = {name: mean(values) for name, values in numbers["recall"].items()}
        gap = {
            name: mean([row[-1] for row in rows]).value
            for name, rows in numbers["distance"].items()
        }
        reached = [name for name, one in found.items() if one.low >= RECALL]
        short = [name for name, one in found.items() if one.below(RECALL)]
        worst = min(found, key=lambda name: found[name].value)
        best = max(found, key=lambda name: found[name].value)
        facts = (
            *(Fact(Text(f"recall@1 of the {words.en}, {WORDS[name].en}",
                        f"{words.zh}得分的 recall@1：{WORDS[name].zh}"),
                   *(100 * x for x in found[name]), unit="%")
              for words, name in ((Text("best", "最好"), best), (Text("worst", "最差"), worst))),
            Fact(Text("distance from exact search at temperature 1e-4, worst",
                      "温度 1e-4 时与精确检索的距离，最差"), max(gap.values())),
        )  # fmt: skip
        if max(gap.values()) > EQUAL or len(short) == len(found):
            because = Text(
                f"After {numbers['steps']} steps no score finds 95% of neighbours, or soft and hard "
                "look-up differ at temperature 1e-4.",
                f"训练 {numbers['steps']} 步后，没有得分能找到 95% 的最近邻，或温度 1e-4 时软硬检索不一致。",
            )
            return Judgement(ClaimVerdict.FAILS, because, facts)
        if len(reached) == len(found):
            because = Text(
                f"Among {round(1 / numbers['chance'])} items every score reaches 95% in {numbers['steps']} steps, and equals its hard "
                "look-up when cold.",
                f"在 {round(1 / numbers['chance'])} 个条目中，每种得分在 {numbers['steps']} 步内都达到 95%，低温时与硬检索一致。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        if reached and short:
            return Judgement(ClaimVerdict.CONDITIONS, conditions(numbers, found, reached), facts)
        because = Text(
            f"Some intervals hold the bar after {numbers['steps']} steps: more steps or seeds are "
            "needed (a full run has both).",
            f"训练 {numbers['steps']} 步后部分区间跨过界线：需要更多步数或种子（完整运行二者都有）。",
        )
        return Judgement(ClaimVerdict.UNDECIDED, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Recall before and after training, and the approach to the hard limit."""
        left, right = canvas.panels(2, wide=4.6, high=3.2)
        found = {name: mean(values) for name, values in numbers["recall"].items()}
        names = list(found)
        canvas.bars(
            left, [WORDS[name] for name in names], [100 * found[name].value for name in names],
            errors=([100 * found[name].low for name in names],
                    [100 * found[name].high for name in names]),
            colors=[LOOKS[name][0] for name in names],
        )  # fmt: skip
        before = [100 * mean(numbers["before"][name]).value for name in names]
        left.bar(range(len(names)), before, width=0.65, color="white", alpha=0.7)
        left.set_ylim(0, 128)
        left.set_yticks(range(0, 101, 20))
        canvas.bar_line(left, 100 * RECALL, Text("bar: 95%", "界线：95%"))
        left.axhline(100 * numbers["chance"], color="#444444", ls=":", lw=1.1,
                     label=canvas.say(Text("chance", "随机水平")))  # fmt: skip
        canvas.label(
            left,
            "",
            Text("recall@1 (%)", "recall@1 (%)"),
            Text("nearest item found", "找到最近的条目"),
        )
        canvas.legend(left, loc="upper left", ncols=2)
        draw_distances(numbers, canvas, right)


def unit(x: Tensor) -> Tensor:
    """The vectors scaled to norm 1."""
    return x / x.norm(dim=-1, keepdim=True)


def tested(task: Neighbours) -> tuple[Tensor, ...]:
    """Test data: queries and keys in fp64, one-hot items as values, and the nearest item of each query."""
    generator = torch.Generator().manual_seed(DATA_SEEDS + 16 * task.seed + 14)
    query, key, nearest = task.items_and_nearest(TESTED, generator)
    items = torch.eye(task.items, dtype=torch.float64).expand(TESTED, -1, -1)
    return query.double(), key.double(), items, nearest


def weights(
    model: nn.Module, own: dict[str, Tensor], inputs: tuple[Tensor, ...], temperature: float
) -> Tensor:
    """The attention weights over items, (B, items)."""
    exact = {name: x.double() for name, x in own.items()}
    with torch.no_grad():
        return functional_call(model, exact, inputs, {"temperature": temperature}).exp()


def recall(task: Neighbours, model: nn.Module, own: dict[str, Tensor]) -> float:
    """The fraction of queries whose best-scored item is the nearest one."""
    *inputs, nearest = tested(task)
    return float((weights(model, own, tuple(inputs), 1.0).argmax(-1) == nearest).double().mean())


def distances(task: Neighbours, model: nn.Module, own: dict[str, Tensor]) -> list[float]:
    """Mean largest difference between soft weights and the hard look-up's, at each temperature."""
    *inputs, _ = tested(task)
    hard = weights(model, own, tuple(inputs), 0.0)
    return [
        float((weights(model, own, tuple(inputs), t) - hard).abs().amax(-1).mean())
        for t in TEMPERATURES
    ]


def conditions(numbers: Numbers, found: dict, reached: list[str]) -> Text:
    """The scores that reach the bar within the training steps and those that do not, in words."""
    behind = [name for name in found if name not in reached]
    listed = lambda names, text: ", ".join(  # noqa: E731
        f"{text(WORDS[name])} {100 * found[name].value:.0f}%" for name in names
    )
    steps = numbers["steps"]
    return Text(
        f"In {steps} steps these are surely above 95%: {listed(reached, lambda t: t.en)}; the others "
        f"are not: {listed(behind, lambda t: t.en)}. All equal their hard look-up when cold.",
        f"{steps} 步内确定高于 95% 的有：{listed(reached, lambda t: t.zh)}；其余则否："
        f"{listed(behind, lambda t: t.zh)}。低温时都与硬检索一致。",
    )


def draw_distances(numbers: Numbers, canvas: Canvas, axes: Axes) -> None:
    """Soft weights against hard ones, as the temperature falls."""
    for name, rows in numbers["distance"].items():
        found = [mean(list(column)) for column in zip(*rows, strict=True)]
        canvas.line(
            axes, numbers["temperatures"], [one.value for one in found], name,
            low=[max(one.low, 0.0) for one in found], high=[one.high for one in found],
        )  # fmt: skip
    axes.set_xscale("log")
    axes.invert_xaxis()
    canvas.label(
        axes,
        Text("temperature (falling)", "温度（递减）"),
        Text("largest difference of a weight", "权重的最大差（平均）"),
        Text("soft against hard look-up", "软检索与硬检索"),
    )
    canvas.legend(axes)
