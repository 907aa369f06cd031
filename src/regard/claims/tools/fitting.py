"""The best fit of a score to a target over pairs, in closed form: no training, no luck.

N pairs, D_q and D_k dims of a query and of a key, T targets. Every score may add a constant, which
softmax does not see. The bilinear fit is the best there is. The additive one draws its hidden units
at random and solves for v alone, so that its error bounds the error of the best additive score from
above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard import Additive, Bilinear, Projected, Score
from regard.claims.tools.untrained import pair_scores

# How steep random hidden units are; which does best is seen on data of its own.
SPREADS = (0.5, 1.0, 2.0)


class Pairs(NamedTuple):
    """Queries (N, D_q), keys (N, D_k) and what their scores should be, (N, T)."""

    query: Tensor
    key: Tensor
    target: Tensor


@dataclass(frozen=True)
class Fit:
    """A fitted score, with the constant beside it."""

    score: Score
    constant: float

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """The score of each pair, (N,)."""
        return pair_scores(query, key, self.score).detach() + self.constant

    def unexplained(self, pairs: Pairs, number: int) -> float:
        """The share of the variance of one target that the fit leaves: 1 - R^2."""
        target = pairs.target[:, number]
        left = (self(pairs.query, pairs.key) - target).square().mean()
        return float(left / target.var(correction=0))


def fit_bilinear(pairs: Pairs) -> list[Fit]:
    """The best `q' W k + c` for each target, by least squares over W and c."""
    outer = (pairs.query.unsqueeze(-1) * pairs.key.unsqueeze(-2)).flatten(1)
    fits = []
    for solution in solve(outer, pairs.target).mT:
        score = Bilinear(pairs.query.shape[-1], pairs.key.shape[-1]).double()
        with torch.no_grad():
            score.weight.copy_(solution[:-1].view_as(score.weight))
        fits.append(Fit(score, float(solution[-1])))
    return fits


def fit_additive(
    pairs: Pairs, held: Pairs, width: int, bias: bool, generator: torch.Generator
) -> list[Fit]:
    """An additive score of `width` random hidden units for each target, v and c by least squares.

    For each target the spread of the units is kept that leaves least on `held`.
    """
    tries = [additive_at(spread, pairs, width, bias, generator) for spread in SPREADS]
    return [
        min((fits[number] for fits in tries), key=lambda fit: fit.unexplained(held, number))
        for number in range(pairs.target.shape[-1])
    ]


def additive_at(
    spread: float, pairs: Pairs, width: int, bias: bool, generator: torch.Generator
) -> list[Fit]:
    """A fit for each target, with hidden units of one spread."""
    query_weight, key_weight, shift = (
        spread * torch.randn(width, dim, generator=generator, dtype=torch.float64)
        for dim in (pairs.query.shape[-1], pairs.key.shape[-1], 1)
    )
    shift = shift.mT if bias else torch.zeros(1, width, dtype=torch.float64)
    hidden = torch.tanh(pairs.query @ query_weight.mT + pairs.key @ key_weight.mT + shift)
    found = []
    for solution in solve(hidden, pairs.target).mT:
        inner = Additive(width, bias=bias)
        score = Projected(inner, pairs.query.shape[-1], pairs.key.shape[-1]).double()
        with torch.no_grad():
            score.query_weight.copy_(query_weight)
            score.key_weight.copy_(key_weight)
            inner.v.copy_(solution[:-1].unsqueeze(0))
            if inner.bias is not None:
                inner.bias.copy_(shift)
        found.append(Fit(score, float(solution[-1])))
    return found


def solve(features: Tensor, target: Tensor) -> Tensor:
    """Weights of the features and, last, the constant: (features + 1, T)."""
    ones = torch.ones(len(features), 1, dtype=features.dtype)
    # "gelsy" takes features that repeat one another: units may be alike.
    return torch.linalg.lstsq(torch.cat([features, ones], 1), target, driver="gelsy").solution
