"""Fits the sine series of tanh that `tables.json` holds: `python -m regard.sine.fit`.

`tanh(x) ~ linear * x + sum_r coefficient_r sin(frequency_r x)` for |x| <= reach

Frequencies are free, not harmonics, which errs several times less at the same rank. The linear term
is free too: it splits into a term of the query and one of the key without any feature.

A fit is a minimax problem, solved as a row of least squares: Lawson's weights grow where the error
is large, and Levenberg-Marquardt moves frequencies and coefficients together between updates.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

RANKS = (4, 5, 6, 7, 8, 10, 12)
REACHES = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0)
# How much an error of the derivative counts beside one of the value.
SLOPE_WEIGHT = {"fast": 0.0, "matched": 0.25}
NODES = 600
STEPS = 300
# Where the frequencies start: close to odd harmonics of periods a little longer than the reach.
STRETCHES = (0.8, 0.9, 1.0, 1.15, 1.35)
TABLES = Path(__file__).with_name("tables.json")


class Row(NamedTuple):
    """`linear * x + sum_r coefficients_r sin(frequencies_r x)`, close to tanh for |x| <= reach.

    `error` and `slope_error` are the largest errors of value and derivative within the reach.
    """

    reach: float
    linear: float
    frequencies: list[float]
    coefficients: list[float]
    error: float
    slope_error: float


def columns(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Values and derivatives of x and the sines at the nodes, (nodes, 1 + rank) each."""
    wx = x.unsqueeze(-1) * w
    values = torch.cat([x.unsqueeze(-1), wx.sin()], -1)
    slopes = torch.cat([torch.ones_like(x).unsqueeze(-1), wx.cos() * w], -1)
    return values, slopes


def errors(x: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Value and derivative of the series less those of tanh."""
    values, slopes = columns(x, w)
    y = x.tanh()
    return values @ c - y, slopes @ c - (1 - y * y)


class Fit:
    """One fit in progress: nodes, Lawson's weights, and the best series seen."""

    def __init__(self, reach: float, start: Tensor, slope_weight: float, density: bool) -> None:
        self.reach, self.slope_weight, self.density = reach, slope_weight, density
        # Denser towards the end of the range, where the error of a minimax fit turns fastest.
        angle = torch.linspace(0, math.pi / 2, NODES + 1, dtype=torch.float64)[1:]
        self.x = reach * angle.sin()
        self.w = start
        self.weight = self.first_weights()
        values, slopes = columns(self.x, self.w)
        y = self.x.tanh()
        target = torch.cat([y, slope_weight * (1 - y * y)])
        matrix = torch.cat([values, slope_weight * slopes])
        self.c = least_squares(matrix * self.weight[:, None], target * self.weight)
        self.damping = 1e-3
        self.best = (math.inf, self.w, self.c)

    def first_weights(self) -> Tensor:
        """Uniform; or the density of a + b for standard normal a and b, by spacing of the nodes."""
        weight = torch.ones_like(self.x)
        if self.density:
            gaps = torch.diff(self.x, prepend=self.x.new_zeros(1))
            weight = (torch.exp(-self.x.square() / 4) * gaps).sqrt() + 1e-4
        weight = torch.cat([weight, weight])
        return weight / weight.norm()

    def residual(self, w: Tensor, c: Tensor) -> Tensor:
        """Errors of value and weighed derivative at the nodes."""
        value, slope = errors(self.x, w, c)
        return torch.cat([value, self.slope_weight * slope])

    def step(self) -> None:
        """One Levenberg-Marquardt step of frequencies and coefficients together."""
        r = self.residual(self.w, self.c) * self.weight
        values, slopes = columns(self.x, self.w)
        wx, c = self.x.unsqueeze(-1) * self.w, self.c[1:]
        by_w = wx.cos() * self.x.unsqueeze(-1) * c
        by_w_slope = (wx.cos() - wx * wx.sin()) * c
        jacobian = torch.cat(
            [torch.cat([values, by_w], -1), self.slope_weight * torch.cat([slopes, by_w_slope], -1)]
        )
        jacobian = jacobian * self.weight[:, None]
        hessian, gradient = jacobian.mT @ jacobian, jacobian.mT @ r
        diagonal = hessian.diagonal().clamp(min=1e-18).diag()
        count = self.c.shape[0]
        for _ in range(12):
            move = least_squares(hessian + self.damping * diagonal, -gradient)
            w, c = self.w + move[count:], self.c + move[:count]
            if (w > 0).all() and (self.residual(w, c) * self.weight).norm() < r.norm():
                self.w, self.c, self.damping = w, c, max(self.damping / 3, 1e-15)
                return
            self.damping *= 4
        self.damping = 1e-3

    def run(self) -> tuple[float, Tensor, Tensor]:
        """The best series found: its largest (weighted) error, frequencies, coefficients."""
        for step in range(STEPS):
            self.step()
            r = self.residual(self.w, self.c).abs()
            largest = float((r * self.weight).norm() if self.density else r.max())
            if largest < self.best[0]:
                self.best = (largest, self.w, self.c)
            if step % 3 == 2 and not self.density:
                self.weight = self.weight * (r / r.max()).clamp(min=1e-3) ** 0.3
                self.weight = self.weight / self.weight.norm()
        return self.best


def least_squares(matrix: Tensor, target: Tensor) -> Tensor:
    """The least squares solution; the matrix may be singular."""
    return torch.linalg.lstsq(matrix, target.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)


def fit(rank: int, reach: float, slope_weight: float, *, density: bool = False) -> Row:
    """The best series of `rank` sines for |x| <= `reach`, over several starts."""
    place = torch.arange(rank, dtype=torch.float64) + 0.75
    starts = [place * math.pi / (reach * stretch) for stretch in STRETCHES]
    if density:
        # The density ends well before the reach: good series for it are those of shorter reaches.
        shorter = [fit(rank, x, slope_weight) for x in (3.0, 4.0, 5.0, 6.0)]
        starts = [torch.tensor(row.frequencies, dtype=torch.float64) for row in shorter]
    tries = [Fit(reach, start, slope_weight, density).run() for start in starts]
    _, w, c = min(tries, key=lambda found: found[0])
    # Measured anew on a grid of its own, after rounding to the digits that are written.
    order = w.argsort()
    w, c = w[order], torch.cat([c[:1], c[1:][order]])
    w, c = (torch.tensor(digits(y), dtype=torch.float64) for y in (w, c))
    value, slope = errors(torch.linspace(0, reach, 20_001, dtype=torch.float64), w, c)
    linear, *coefficients = c.tolist()
    largest = [float(x.abs().max()) for x in (value, slope)]
    return Row(reach, linear, w.tolist(), coefficients, *largest)


def digits(x: Tensor) -> list[float]:
    """To the ten digits that the file holds."""
    return [float(f"{y:.10g}") for y in x.tolist()]


def main() -> None:
    """Fit every table and write them."""
    tables: dict[str, dict[str, list[dict]]] = {}
    for kind, slope_weight in SLOPE_WEIGHT.items():
        tables[kind] = {}
        for rank in RANKS:
            rows = [fit(rank, reach, slope_weight) for reach in REACHES]
            tables[kind][str(rank)] = [row._asdict() for row in rows]
            print(f"{kind:<8} rank {rank:>2}: " + " ".join(f"{row.error:.0e}" for row in rows))
            sys.stdout.flush()
    tables["normal"] = {str(rank): [fit(rank, 8.0, 0.0, density=True)._asdict()] for rank in RANKS}
    TABLES.write_text(json.dumps(tables, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
