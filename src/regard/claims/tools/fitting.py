"""Least-squares fits of a score to a target over pairs, in closed form and without training.

N pairs, D_q and D_k dims of a query and of a key, T targets. Every fit includes a constant, which softmax
ignores. The bilinear fit is the optimum. The additive fit draws its hidden units at random and solves for
v alone, so its error is an upper bound on the error of the best additive score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard import Additive, Bilinear, Projected, Score
from regard.claims.tools.untrained import pair_scores

# Standard deviations of the random weights of hidden units; the best one is chosen on held-out data.
SPREADS = (0.5, 1.0, 2.0)


class Pairs(NamedTuple):
    """Queries (N, D_q), keys (N, D_k) and the target scores (N, T)."""

    query: Tensor
    key: Tensor
    target: Tensor


@dataclass(frozen=True)
class Fit:
    """A fitted score and the constant added to it."""

    score: Score
    constant: float

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """The score of each pair, (N,)."""
        return pair_scores(query, key, self.score).detach() + self.constant

    def unexplained(self, pairs: Pairs, number: int) -> float:
        """The fraction of one target's variance that the fit leaves unexplained: 1 - R^2."""
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
    """For each target an additive score with `width` random hidden units; v and c by least squares.

    Of the spreads in `SPREADS`, each target keeps the one with the smallest error on `held`.
    """
    tries = [additive_at(spread, pairs, width, bias, generator) for spread in SPREADS]
    return [
        min((fits[number] for fits in tries), key=lambda fit: fit.unexplained(held, number))
        for number in range(pairs.target.shape[-1])
    ]


def additive_at(
    spread: float, pairs: Pairs, width: int, bias: bool, generator: torch.Generator
) -> list[Fit]:
    """One fit for each target, with hidden units of the given spread."""
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
    """Least-squares weights of the features with the constant in the last row: (features + 1, T)."""
    ones = torch.ones(len(features), 1, dtype=features.dtype)
    # Random hidden units can be nearly identical, and "gelsy" accepts rank-deficient features.
    return torch.linalg.lstsq(torch.cat([features, ones], 1), target, driver="gelsy").solution
