"""The network: steps of a series as features, and what a score makes of two steps: the cost of matching them.

A score says how alike two steps are. The cost of a match is how much less they score with each other than with
themselves,

    d(x, y) = max(0, (s(x, x) + s(y, y)) / 2 - (s(x, y) + s(y, x)) / 2),

which makes a cost of any score. For scaled dot and Gaussian it is the squared distance of DTW, for cosine 1 - cos, for
GATv2, which compares steps by their difference, a weighted sum of absolute differences, and for the additive score that
of a bump: it grows with the difference and levels off, so that one loud step cannot decide a match.

Shape legend: B series or pairs, C channels, T and U steps, I inputs of a step, E features of a step.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard import GAT, Additive, Bilinear, GATv2, Score
from regard.recipes.align.series import slopes
from regard.recipes.estimator import RecipeError, building, own_score
from regard.scores.base import PairwiseScore
from regard.scores.cosine import unit
from regard.scores.lookup import make_score

TAPS = 5  # neighbouring steps that features see
NOISE = 0.02  # deviation of the first change of weights, beside starting weights of about 1
# Scores whose cost is a factor times the squared distance of features, or of features of length 1.
SQUARED = ("dot", "scaled_dot", "gaussian", "cosine")


def inputs_of(x: np.ndarray, scale: tuple[float, float]) -> np.ndarray:
    """The inputs (I, T) of a series: values and slopes, each in its own unit, and 1."""
    value, slope = scale
    return np.concatenate([x / value, slopes(x) / slope, np.ones((1, x.shape[1]))]).astype(
        np.float32
    )


def scale_of(x: list[np.ndarray]) -> tuple[float, float]:
    """The deviation of all values, and that of all slopes; 1 where it is 0."""
    found = [
        float(np.std(np.concatenate([one.ravel() for one in own])))
        for own in (x, [slopes(one) for one in x])
    ]
    value, slope = (one if np.isfinite(one) and one > 1e-150 else 1.0 for one in found)
    return value, slope


class StepScore(nn.Module):
    """Features of steps by a convolution, and a score between them.

    The weights are the sum of `start`, which is fixed, and `change`, which is learned: weight decay pulls towards the
    start. It starts as DTW on values and slopes, the share of slopes being `slope`.

    Args:
        channels: of the series.
        score: a name, a `Score`, or None for scaled dot.
        slope: share of slopes in the cost that training starts from, 0 to 1.
        unit: the cost of a typical step, by which costs are divided.
    """

    start: Tensor
    unit: Tensor
    series: Tensor
    score: Score

    def __init__(
        self,
        channels: int,
        score: str | Score | None,
        slope: float = 0.0,
        unit: float = 1.0,
    ) -> None:
        super().__init__()
        start = selection(channels, slope)
        own = own_score(score)
        if own == "additive":  # two hidden units for a feature make a bump, with their biases
            start = start.repeat(2, 1, 1)
            own = Additive(len(start), bias=True)
        with building():
            self.score = make_score(own, len(start), 1)
        if isinstance(self.score, GAT):
            raise RecipeError(
                "score='gat' gives no cost: it ranks all steps alike for every step that asks. Use 'gatv2'"
            )
        start_from(self.score)
        self.register_buffer("start", start)
        self.register_buffer("unit", torch.tensor(float(unit)))
        self.change = nn.Parameter(torch.zeros_like(start))
        self.sharpness = nn.Parameter(torch.zeros(()))

    def shake(self) -> None:
        """Draw the first change: of weights that are exactly 0 the squared cost has no gradient."""
        nn.init.normal_(self.change, std=NOISE)

    def remember(self, x: Tensor) -> None:
        """Keep the training series (N, C, T), short ones padded, which predictions ask for the nearest."""
        self.register_buffer("series", x)

    def forward(self, x: Tensor) -> Tensor:
        """Features (B, T, E) of inputs (B, I, T); the ends are repeated for the taps beyond them."""
        side = TAPS // 2
        padded = functional.pad(x, (side, side), mode="replicate")
        return functional.conv1d(padded, self.start + self.change).mT

    def cost(self, x: Tensor, y: Tensor) -> Tensor:
        """Costs (B, T, U) of matching features (B, T, E) and (B, U, E), in units of a typical step."""
        sign = -1.0 if isinstance(self.score, PairwiseScore) else 1.0
        between = self.raw(x, sign * y)
        if self.score.name not in SQUARED:
            between = (between + self.raw(y, sign * x).mT) / 2
        own = [self.alone(one, sign * one) for one in (x, y)]
        apart = (own[0].unsqueeze(2) + own[1].unsqueeze(1)) / 2 - between
        return apart.clamp(min=0) / self.unit

    def raw(self, x: Tensor, y: Tensor) -> Tensor:
        """Scores (B, T, U)."""
        return regard.score(x.contiguous(), y.contiguous(), self.score)

    def alone(self, x: Tensor, y: Tensor) -> Tensor:
        """Scores (B, T) of each step of x with the same step of y."""
        flat = self.raw(x.reshape(-1, 1, x.shape[-1]), y.reshape(-1, 1, y.shape[-1]))
        return flat.view(x.shape[:2])

    def points(self, x: Tensor) -> Tensor:
        """Points (B, T, E) whose squared distances are the costs, for scores of `SQUARED`."""
        features = unit(x) if self.score.name == "cosine" else x
        # A pair of probes tells the factor, whatever the score has learned: their squared distance is 2.
        probes = torch.eye(2, x.shape[-1], device=x.device, dtype=x.dtype).unsqueeze(1)
        factor = self.cost(probes[:1], probes[1:]).flatten() / 2
        return features * factor.sqrt()


def selection(channels: int, slope: float) -> Tensor:
    """Weights (E, I, taps) that take values, slopes and 1 as they are, values and slopes by their shares."""
    found = torch.zeros(2 * channels + 1, 2 * channels + 1, TAPS)
    each = [(1 - slope) ** 0.5] * channels + [slope**0.5] * channels + [1.0]
    found[range(len(each)), range(len(each)), TAPS // 2] = torch.tensor(each)
    return found


@torch.no_grad()
def start_from(score: Score) -> None:
    """Set the weights of a score so that its cost starts as a distance of steps; others stay as they are.

    Additive: tanh(d + 1) - tanh(d - 1) for each feature, a bump at d = 0. GATv2: -|d|. Bilinear: the identity.
    """
    if type(score) is Additive and score.bias is not None:
        half = score.hidden // 2
        signs = torch.ones(score.hidden)
        signs[half:] = -1
        score.v.copy_(signs.expand_as(score.v))
        score.bias.copy_(signs.expand_as(score.v))
    elif type(score) is GATv2:
        score.v.fill_(-1.0)
    elif type(score) is Bilinear:
        score.weight.copy_(torch.eye(score.query_dim).expand_as(score.weight))
