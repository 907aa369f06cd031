"""B6: attention weights are the posterior of a log-linear model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import regard
from regard import Bilinear, Score
from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.figures.canvas import BLUE, ORANGE, Canvas
from regard.text import Text

# (queries (Q, D), keys (n, D), score, log prior of the keys (n,)) -> weights (Q, n).
Weigh = Callable[[Tensor, Tensor, Score | str, Tensor], Tensor]
ROUNDING = 1e-10


def attended(query: Tensor, key: Tensor, score: Score | str, log_prior: Tensor) -> Tensor:
    """Attention weights, with the log prior as a bias."""
    bias = log_prior.expand(len(query), len(key))
    found = regard.attend(query, key, key, score, bias=bias, want={"weights"}, engine="reference")
    assert found.weights is not None  # requested by `want`
    return found.weights


@dataclass(frozen=True)
class Posterior(Claim):
    """softmax(q' W k_i + log prior_i) is P(item i | q) of a factor graph with log-linear factors.

    One factor exp(q_a W_ab k_b) connects each component of the query with each component of the chosen
    key. It is an exponential family over the items, with features k and natural parameter W' q:
    d log p_i / d(W' q) = k_i - E[k], d log p_i / dq = W (k_i - E[k]), d E[k] / d(W' q) = Cov[k].
    """

    id = "B6"
    statement = Text(
        "Attention weights are the posterior of a log-linear model: which item, given the query.",
        "注意力权重是一个对数线性模型的后验：给定查询，是哪一项。",
    )
    criterion = Text(
        "The posterior of an enumerated factor graph equals the weights, and autograd equals "
        "d log p_i / d(W'q) = k_i − E[k], d log p_i / dq = W (k_i − E[k]) and "
        "d E[k] / d(W'q) = Cov[k], each to 1e-10 in fp64.",
        "枚举因子图得到的后验等于权重；自动微分等于 d log p_i / d(W'q) = k_i − E[k]、"
        "d log p_i / dq = W (k_i − E[k]) 与 d E[k] / d(W'q) = Cov[k]；fp64 下误差均不超过 1e-10。",
    )
    meaning = Text(
        "Weights may be read as probabilities under the score's own model. A prior over items is a bias "
        "on the logits; the gradient pulls the query towards a key and away from the mean key.",
        "权重可以理解为得分自身模型下的概率。各项的先验就是 logit 上的偏置；"
        "梯度把查询拉向某个键，并推离平均键。",
    )
    caption = Text(
        "Left: weights against the posterior summed over every state of the factor graph. Right: "
        "gradients by autograd against the formulas. On the dashed line they are equal.",
        "左：权重与遍历因子图所有状态求和得到的后验。右：自动微分的梯度与公式。虚线上二者相等。",
    )
    control = Text(
        "The posterior is summed from the tables of the factors; it calls neither softmax nor attention.",
        "后验由各因子的表逐项求和得到，既不调用 softmax，也不调用注意力。",
    )
    seconds = (0.5, 4.0)

    weigh: Weigh = attended
    items: int = 6
    query_dim: int = 4
    key_dim: int = 3

    def measure(self, run: Run) -> Numbers:
        """Compare weights with enumerated posteriors, and gradients with formulas, in random worlds."""
        worlds = run.pick(5, 40)
        points = {name: [] for name in ("posterior", "natural", "query", "covariance")}
        for world in run.steps(range(worlds)):
            generator = run.generator("B6", world)
            key, matrix, prior = (
                torch.randn(*shape, generator=generator, dtype=torch.float64)
                for shape in (
                    (self.items, self.key_dim), (self.query_dim, self.key_dim), (self.items,)
                )
            )  # fmt: skip
            for name, pair in self.compare(key, matrix / 2, prior.softmax(0)).items():
                points[name].append([x.flatten() for x in pair])
        both = {
            name: [torch.cat(side) for side in zip(*pairs, strict=True)]
            for name, pairs in points.items()
        }
        return {
            "error": {name: float((a - b).abs().max()) for name, (a, b) in both.items()},
            # The figure shows 200 points; more would only overlap.
            "points": {name: [x[:200].tolist() for x in pair] for name, pair in both.items()},
            "states": 2 ** (self.query_dim + self.items),
        }

    def compare(
        self, key: Tensor, matrix: Tensor, prior: Tensor
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Attention weights and gradients beside those of the model, for every possible query."""
        query, posterior = enumerated(key, matrix, prior)
        score = Bilinear(*matrix.shape).double()
        with torch.no_grad():
            score.weight.copy_(matrix)
        by_query = lambda q: self.weigh(q.unsqueeze(0), key, score, prior.log()).squeeze(0)  # noqa: E731
        by_natural = lambda eta: self.weigh(eta.unsqueeze(0), key, "dot", prior.log()).squeeze(0)  # noqa: E731
        slope = torch.autograd.functional.jacobian
        found: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for one, belief in zip(query, posterior, strict=True):
            apart = key - belief @ key  # k_i - E[k], (n, D_k)
            natural = one @ matrix
            rows = {
                "posterior": (by_query(one).detach(), belief),
                "natural": (slope(lambda x: by_natural(x).log(), natural), apart),
                "query": (slope(lambda x: by_query(x).log(), one), apart @ matrix.mT),
                "covariance": (
                    slope(lambda x: by_natural(x) @ key, natural),
                    (belief.unsqueeze(-1) * apart).mT @ apart,
                ),
            }
            for name, pair in rows.items():
                found.setdefault(name, []).append(pair)
        return {
            name: (torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs]))
            for name, pairs in found.items()
        }

    def judge(self, numbers: Numbers) -> Judgement:
        """Apply the rule of `criterion` to the numbers."""
        error = numbers["error"]
        facts = (
            Fact(Text("weights against posterior, largest difference", "权重与后验的最大差"),
                 error["posterior"]),
            Fact(Text("d log p / d(W'q), largest difference", "d log p / d(W'q) 的最大差"),
                 error["natural"]),
            Fact(Text("d log p / dq, largest difference", "d log p / dq 的最大差"), error["query"]),
            Fact(Text("d E[k] / d(W'q), largest difference", "d E[k] / d(W'q) 的最大差"),
                 error["covariance"]),
        )  # fmt: skip
        worst = max(error.values())
        if worst <= ROUNDING:
            because = Text(
                f"All {numbers['states']} states summed up: everything agrees to {worst:.0e}.",
                f"对全部 {numbers['states']} 个状态求和：所有量的差不超过 {worst:.0e}。",
            )
            return Judgement(ClaimVerdict.HOLDS, because, facts)
        because = Text(
            f"Weights or gradients differ from the model by {worst:.2g}.",
            f"权重或梯度与模型相差 {worst:.2g}。",
        )
        return Judgement(ClaimVerdict.FAILS, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Attention against the model."""
        left, right = canvas.panels(2)
        points = numbers["points"]
        panels = (
            (left, (("posterior", BLUE, "o", ""),)),
            (right, (("natural", BLUE, "o", "d log p / d(W'q)"), ("query", ORANGE, "D", "d log p / dq"))),
        )  # fmt: skip
        for axes, rows in panels:
            for name, ink, mark, label in rows:
                axes.plot(
                    *reversed(points[name]), mark, color=ink, ms=4, alpha=0.6, mew=0, label=label
                )
            axes.axline((0, 0), slope=1, color="#444444", ls=(0, (4, 3)), lw=1.1)
        canvas.label(left, Text("posterior, enumerated", "后验（枚举）"),
                     Text("attention weight", "注意力权重"))  # fmt: skip
        canvas.label(right, Text("k − E[k] or W (k − E[k])", "k − E[k] 或 W (k − E[k])"),
                     Text("gradient by autograd", "自动微分的梯度"))  # fmt: skip
        canvas.legend(right, loc="upper left")


def enumerated(key: Tensor, matrix: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    """All queries of signs (2^D_q, D_q), and the posterior of each item given each query (2^D_q, n).

    The graph has a variable with values -1 and 1 for each component of the query, and one with values 0
    and 1 for each item. Its factors: exactly one item is on; the prior of that item; exp(q_a W_ab k_b).
    The joint distribution is a table over all states, and the posterior is summed from it.
    """
    states = lambda values, count: torch.tensor(  # noqa: E731
        list(itertools.product(values, repeat=count)), dtype=torch.float64
    )
    query, on = states((-1, 1), len(matrix)), states((0, 1), len(key))
    chosen = on @ key
    table = (on.sum(-1) == 1).double().expand(len(query), -1).clone()
    for item in range(len(key)):
        table *= prior[item] ** on[:, item]
    for a, b in itertools.product(*map(range, matrix.shape)):
        table *= torch.exp(query[:, a, None] * matrix[a, b] * chosen[:, b])
    joint = table / table.sum()
    return query, (joint @ on) / joint.sum(-1, keepdim=True)
