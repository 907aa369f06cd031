"""How weight and score of an anomaly answer to its amplitude: derivatives written out, beside autograd.

One query attends over the points of a series, whose keys are the patches around them. The series is a base plus `a`
times a pattern (`planted.pattern`), so that keys, and a query made from the series, are linear in `a`; a dash below is
a derivative by it. For point t

    multiplicative   s = <q, k> / sqrt(d)             s' = (<q', k> + <q, k'>) / sqrt(d)
    additive         s = sum_h v_h tanh(q_h + k_h)    s' = sum_h v_h (1 - tanh(q_h + k_h)^2) (q'_h + k'_h)
    softmax          w = exp(s) / sum_j exp(s_j)      w' = w (s' - sum_j w_j s'_j)

So the multiplicative score goes on rising, the additive one flattens, and the weight saturates for both.

Shape legend: B series, T points, P points of a patch, D dims, A amplitudes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

import regard
from regard import Additive, ScaledDot
from regard.recipes.anomaly.net import Asking
from regard.recipes.anomaly.planted import SPIKE, Anomaly, pattern

Multiplied = Literal["scaled dot", "additive"]
PATCH = 9  # points
POINTS, SPAN, PERIOD = (
    128,
    24,
    24,
)  # of the series that are made, of shifts and waves in them, and of their own wave
NOISE = 0.1
AMPLITUDES = (1.0, 4.0)  # of the anomalies of a training


class PointAttention(nn.Module):
    """Weights over the points of a series by one query.

    Args:
        kind: of the score.
        asking: "global" for a learned query, "context" for one that the mean patch of the series is added to.
        dim: D, of query and keys.
        generator: of the starting weights.
    """

    def __init__(
        self, kind: Multiplied, asking: Asking, dim: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.kind = kind
        draw = {"generator": generator, "dtype": torch.float64}
        self.key = nn.Parameter(torch.randn(dim, PATCH, **draw) / PATCH**0.5)
        self.start = nn.Parameter(torch.randn(dim, **draw))
        self.context = None
        if asking == "context":
            self.context = nn.Parameter(torch.randn(dim, PATCH, **draw) / PATCH**0.5)
        self.score = Additive(dim).double() if kind == "additive" else ScaledDot()
        if isinstance(self.score, Additive):
            with torch.no_grad():
                self.score.v.copy_(torch.randn(1, dim, **draw) / dim**0.5)

    def sides(self, series: Tensor, derivative: bool = False) -> tuple[Tensor, Tensor]:
        """The query (B, 1, D) and the keys (B, T, D) of series (B, T), or their derivatives if these are patterns."""
        patches = patches_of(series)
        query = 0 * self.start if derivative else self.start
        query = query.expand(len(series), 1, -1)
        if self.context is not None:
            query = query + patches.mean(1, keepdim=True) @ self.context.T
        return query, patches @ self.key.T

    def forward(self, series: Tensor) -> Tensor:
        """The scores (B, T) of the points."""
        query, key = self.sides(series)
        return regard.score(query, key, self.score)[:, 0]

    @torch.no_grad()
    def slopes(self, series: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """The derivatives (B, T) of scores and weights by the amplitude of a pattern, by the formulas above.

        Args:
            series: (B, T), the pattern included.
            added: (T,) the pattern at amplitude 1.
        """
        (query, key), (query_slope, key_slope) = (
            self.sides(series), self.sides(added.expand_as(series), derivative=True),
        )  # fmt: skip
        if isinstance(self.score, Additive):
            flat = 1 - torch.tanh(query + key) ** 2
            scores = (flat * (query_slope + key_slope)) @ self.score.v[0]
        else:
            scores = (query_slope * key + query * key_slope).sum(-1) / key.shape[-1] ** 0.5
        weights = self(series).softmax(-1)
        return scores, weights * (scores - (weights * scores).sum(-1, keepdim=True))


def patches_of(series: Tensor) -> Tensor:
    """The patch (B, T, P) around each point of series (B, T); the ends are repeated."""
    half = PATCH // 2
    padded = nn.functional.pad(series[:, None], (half, half), mode="replicate")[:, 0]
    return padded.unfold(1, PATCH, 1)


def waves(count: int, generator: torch.Generator) -> Tensor:
    """Series (B, T) to plant anomalies in: a wave with any phase, and noise."""
    places = torch.arange(POINTS, dtype=torch.float64)
    phase = 2 * torch.pi * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, POINTS, generator=generator, dtype=torch.float64)
    return torch.sin(2 * torch.pi * places / PERIOD + phase) + NOISE * noise


class Sensitivity(NamedTuple):
    """What an anomaly does to its own points at each amplitude, for each series.

    Attributes:
        score, weight: (A, B) the score of its most attended point, and the weight of all its points.
        score_slope, weight_slope: their derivatives by the formulas.
        score_autograd, weight_autograd: likewise by autograd.
    """

    score: Tensor
    weight: Tensor
    score_slope: Tensor
    weight_slope: Tensor
    score_autograd: Tensor
    weight_autograd: Tensor


def sensitivity(
    model: PointAttention, base: Tensor, kind: Anomaly, first: int, amplitudes: tuple[float, ...]
) -> Sensitivity:
    """Scores, weights and derivatives of an anomaly by its amplitude.

    Args:
        model: the attention.
        base: (B, T) series without an anomaly.
        kind: of the anomaly.
        first: the point where it begins.
        amplitudes: the most attended point is that at the last one.
    """
    added = torch.from_numpy(pattern(kind, base.shape[1], first, SPAN))
    own = slice(first, first + (SPIKE if kind == "spike" else SPAN))
    with torch.no_grad():
        point = model(base + amplitudes[-1] * added)[:, own].argmax(-1, keepdim=True) + first
    found = []
    for amplitude in amplitudes:
        a = torch.full((len(base), 1), amplitude, dtype=torch.float64, requires_grad=True)
        series = base + a * added
        scores = model(series)
        score = scores.gather(1, point)[:, 0]
        weight = scores.softmax(-1)[:, own].sum(-1)
        by_score, by_weight = (
            torch.autograd.grad(one.sum(), a, retain_graph=True)[0][:, 0] for one in (score, weight)
        )
        slopes, weight_slopes = model.slopes(series.detach(), added)
        found.append((
            score.detach(), weight.detach(), slopes.gather(1, point)[:, 0], weight_slopes[:, own].sum(-1),
            by_score, by_weight,
        ))  # fmt: skip
    return Sensitivity(*(torch.stack(one) for one in zip(*found, strict=True)))


def planted_waves(
    kind: Anomaly,
    count: int,
    generator: torch.Generator,
    amplitudes: tuple[float, float] = AMPLITUDES,
) -> tuple[Tensor, Tensor]:
    """Series (B, T) with an anomaly in each, of amplitudes in this range, and where it is (B, T)."""
    base = waves(count, generator)
    places = torch.randint(SPAN, POINTS - 2 * SPAN, (count,), generator=generator)
    low, high = amplitudes
    sizes = low + (high - low) * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    lasting = SPIKE if kind == "spike" else SPAN
    added = torch.stack([torch.from_numpy(pattern(kind, POINTS, int(n), SPAN)) for n in places])
    points = torch.arange(POINTS)
    inside = (points >= places[:, None]) & (points < places[:, None] + lasting)
    return base + sizes * added, inside


def taught(
    model: PointAttention, kind: Anomaly, steps: int, rate: float, generator: torch.Generator
) -> Iterator[float]:
    """Train a model to put its weight on anomalies of a kind; yields the loss of every step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        series, inside = planted_waves(kind, 32, generator)
        log_weight = model(series).log_softmax(-1).masked_fill(~inside, -torch.inf).logsumexp(-1)
        loss = -log_weight.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield float(loss.detach())
