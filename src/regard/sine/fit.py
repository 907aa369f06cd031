"""Fits the sine series of tanh that `tables.json` holds: `python -m regard.sine.fit`.

`tanh(x) ~ linear * x + sum_r coefficient_r sin(frequency_r x)` for |x| <= reach

Frequencies are fitted rather than harmonics, which makes the error several times smaller at the same
rank. The linear term costs no feature: it splits into a term of the query and one of the key.

A fit is a minimax problem, solved as a sequence of least squares problems. Lawson's weights grow where
the error is large, and between updates Levenberg-Marquardt moves frequencies and coefficients together.

**The taper.** The reach of a hidden unit is max|a| + max|b| over a sequence. Hardly any pair comes near
it: for normal a and b and sequences of 4096 it is five standard deviations of a + b. The error may
therefore be larger near the reach than in the bulk. A tapered fit minimises the largest
`|error(x)| / tolerance(x)`, where the tolerance is 1 up to `BULK` of the reach and grows exponentially to
`taper` at the reach. The largest error over the whole range remains a proven bound. It is looser than
that of a fit without taper (ten times at a taper of 30), while typical errors are half as large or less.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor


class FitGoal(NamedTuple):
    """What a fit minimises.

    slope_weight: weight of an error of the derivative relative to one of the value.
    taper: ratio of the error allowed at the reach to the one allowed in the bulk.
    density: minimise the mean square error for standard normal a and b instead; gives no useful bound.
    """

    slope_weight: float
    taper: float
    density: bool = False


# With normal a and b, length 4096 and |v|_1 = 5 (benchmarks/sine_errors.py): with a taper of 30 the output
# at rank 4 has 1.5 times the error of an exact bf16 kernel, without a taper 3 times. With a taper of 100
# the gradients at rank 7 have 1.3 times its error (rank 6: 2.1, without a taper 5). A larger taper would
# harm inputs that do come near their reach, such as uniform ones.
FIT_GOALS = {
    "fast": FitGoal(slope_weight=0.0, taper=30.0),
    "matched": FitGoal(slope_weight=0.25, taper=100.0),
    # A slope weight of 0.1 makes the largest error of the value 5% larger, and that of the slope 1/3 as large.
    "uniform": FitGoal(slope_weight=0.1, taper=1.0),
    "normal": FitGoal(slope_weight=0.0, taper=1.0, density=True),
}
# Rank 3 is for the one unit that lends the columns of its last sine to beta, see
# engines/sine_features/widths.py.
RANKS = (3, 4, 5, 6, 7, 8, 9, 10, 12)
# Errors grow with about the fourth power of the reach, and a hidden unit takes the next longer row. Steps
# are therefore short where the error matters: below 5 it is small, beyond 10 it is too large anyway.
FITTED_REACHES = (
    *(1.0, 1.5, 2.0, 3.0, 4.0, 4.5, 5.0, 5.5),
    *(6.0 + 0.25 * step for step in range(17)),
    *(10.5, 11.0, 11.5, 12.0, 13.0, 14.0, 15.0, 16.0),
)
DENSITY_REACH = 8.0
BULK = 0.2
# Typical errors are those for normal a + b whose reach is this many standard deviations.
TYPICAL_REACH = 5.0
NODES = 500
FIT_STEPS = 200
# Starting frequencies: sine number r = 0, 1, ... starts at (r + offset) pi / (stretch reach). Pairs of
# (offset, stretch) for long reaches, where good series are near harmonics of a shorter period; for short
# reaches; and for the first row, which has no fitted row to start from.
LONG_STARTS, SHORT_STARTS, SHORT_REACH = ((1.0, 0.62),), ((0.75, 0.8), (0.75, 1.35)), 5.5
# At the shortest reach nine sines are nearly dependent. From the usual starts a fit ends with frequencies
# beyond 20, or with coefficients of 13 that cancel.
ONLY_STARTS = {(9, 1.0): ((0.75, 2.0),)}
FIRST_STARTS = (*LONG_STARTS, (1.0, 0.55), (1.0, 0.58), (0.75, 0.55), (0.75, 0.8))
TABLES_FILE = Path(__file__).with_name("tables.json")


class SeriesRow(NamedTuple):
    """`linear * x + sum_r coefficients_r sin(frequencies_r x)`, close to tanh for |x| <= reach.

    `error` and `slope_error` are the largest errors of value and derivative within the reach,
    `typical` and `typical_slope` their root mean squares for normal x of deviation reach / 5.
    """

    reach: float
    linear: float
    frequencies: list[float]
    coefficients: list[float]
    error: float
    slope_error: float
    typical: float
    typical_slope: float


def tolerance(x: Tensor, reach: float, taper: float) -> Tensor:
    """The error allowed at x relative to that in the bulk: 1 there, `taper` at the reach."""
    return taper ** ((x.abs() / reach - BULK) / (1 - BULK)).clamp(min=0)


def columns(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Values and derivatives of the basis (x and the sines) at the nodes, (nodes, 1 + rank) each."""
    wx = x.unsqueeze(-1) * w
    values = torch.cat([x.unsqueeze(-1), wx.sin()], -1)
    slopes = torch.cat([torch.ones_like(x).unsqueeze(-1), wx.cos() * w], -1)
    return values, slopes


def errors(x: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Errors of value and derivative: those of the series minus those of tanh."""
    values, slopes = columns(x, w)
    y = x.tanh()
    return values @ c - y, slopes @ c - (1 - y * y)


class SeriesFit:
    """One fit in progress: nodes, Lawson's weights, frequencies and coefficients.

    Rows of the least squares problem are the values at the nodes, then the derivatives if they have a
    weight. `scale` turns their errors into the quantity to minimise.
    """

    def __init__(self, goal: FitGoal, reach: float, start: Tensor) -> None:
        self.goal = goal
        # Denser towards the end of the range, where the error of a minimax fit oscillates fastest.
        angle = torch.linspace(0, math.pi / 2, NODES + 1, dtype=torch.float64)[1:]
        self.x = reach * angle.sin()
        self.w = start
        scale = 1 / tolerance(self.x, reach, goal.taper)
        if goal.density:
            # The root of the density of a + b (variance 2) times the spacing of the nodes.
            gaps = torch.diff(self.x, prepend=self.x.new_zeros(1))
            scale = (torch.exp(-self.x.square() / 4) * gaps).sqrt() + 1e-4
        self.scale = torch.cat([scale, goal.slope_weight * scale]) if goal.slope_weight else scale
        self.weight = torch.ones_like(self.scale)
        target = torch.cat([y := self.x.tanh(), 1 - y * y])[: len(self.scale)]
        matrix = torch.cat(columns(self.x, self.w))[: len(self.scale)]
        self.c = least_squares(matrix * self.scale[:, None], target * self.scale)
        self.damping = 1e-3

    def residual(self, w: Tensor, c: Tensor) -> Tensor:
        """The scaled errors."""
        return torch.cat(errors(self.x, w, c))[: len(self.scale)] * self.scale

    def jacobian(self) -> Tensor:
        """Derivatives of the scaled errors by the coefficients, then by the frequencies."""
        values, slopes = columns(self.x, self.w)
        wx, c = self.x.unsqueeze(-1) * self.w, self.c[1:]
        by_w = wx.cos() * self.x.unsqueeze(-1) * c
        by_w_slope = (wx.cos() - wx * wx.sin()) * c
        rows = torch.cat([torch.cat([values, by_w], -1), torch.cat([slopes, by_w_slope], -1)])
        return rows[: len(self.scale)] * self.scale[:, None]

    def step(self) -> None:
        """One Levenberg-Marquardt step of frequencies and coefficients together."""
        r = self.residual(self.w, self.c) * self.weight
        jacobian = self.jacobian() * self.weight[:, None]
        hessian, gradient = jacobian.mT @ jacobian, jacobian.mT @ r
        diagonal = hessian.diagonal().clamp(min=1e-18).diag()
        count = self.c.shape[0]
        # A step that does not reduce the error is retried with more damping, a shorter step.
        for _ in range(12):
            move = least_squares(hessian + self.damping * diagonal, -gradient)
            w, c = self.w + move[count:], self.c + move[:count]
            if (w > 0).all() and (self.residual(w, c) * self.weight).norm() < r.norm():
                self.w, self.c, self.damping = w, c, max(self.damping / 3, 1e-15)
                return
            self.damping *= 4
        self.damping = 1e-3

    def run(self) -> tuple[float, Tensor, Tensor]:
        """The best series found: its scaled error, frequencies, coefficients."""
        best = (math.inf, self.w, self.c)
        for step in range(FIT_STEPS):
            self.step()
            r = self.residual(self.w, self.c).abs()
            found = float(r.norm() if self.goal.density else r.max())
            if found < best[0]:
                best = (found, self.w, self.c)
            # Lawson's update: larger weights where the error is large equalise it towards minimax.
            if step % 3 == 2 and not self.goal.density:
                self.weight = self.weight * (r / r.max()).clamp(min=1e-3) ** 0.3
                self.weight = self.weight / self.weight.norm()
        return best


def least_squares(matrix: Tensor, target: Tensor) -> Tensor:
    """The least squares solution; the matrix may be singular."""
    return torch.linalg.lstsq(matrix, target.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)


def fit(goal: FitGoal, rank: int, reach: float, near: SeriesRow | None = None) -> SeriesRow:
    """The best series of `rank` sines for |x| <= `reach`, over several starts.

    `near` is a row of the same reach or a longer one, whose frequencies are one more start.
    """
    number = torch.arange(rank, dtype=torch.float64)
    places = FIRST_STARTS if near is None else SHORT_STARTS if reach <= SHORT_REACH else LONG_STARTS
    places = ONLY_STARTS.get((rank, reach), places)
    starts = [(number + offset) * math.pi / (stretch * reach) for offset, stretch in places]
    if near is not None and (rank, reach) not in ONLY_STARTS:
        starts.append(torch.tensor(near.frequencies, dtype=torch.float64))
    tries = [SeriesFit(goal, reach, start).run() for start in starts]
    _, w, c = min(tries, key=lambda found: found[0])
    order = w.argsort()
    return measured(reach, w[order], torch.cat([c[:1], c[1:][order]]))


def measured(reach: float, w: Tensor, c: Tensor) -> SeriesRow:
    """The row with its errors, measured on a finer grid after rounding to the digits of the file."""
    w, c = (torch.tensor(digits(y), dtype=torch.float64) for y in (w, c))
    x = torch.linspace(0, reach, 20_001, dtype=torch.float64)
    found = errors(x, w, c)
    density = torch.exp(-(x * (TYPICAL_REACH / reach)).square() / 2)
    density = density / density.sum()
    stated = [e.abs().max() for e in found] + [(density * e.square()).sum().sqrt() for e in found]
    linear, *coefficients = c.tolist()
    # Rounded up by 0.1%, which also covers maxima between the points of the grid.
    return SeriesRow(
        reach,
        linear,
        w.tolist(),
        coefficients,
        *(float(f"{float(e) * 1.001:.4g}") for e in stated),
    )


def digits(x: Tensor) -> list[float]:
    """The numbers rounded to the ten digits that the file holds."""
    return [float(f"{y:.10g}") for y in x.tolist()]


def table(goal: FitGoal, rank: int) -> list[SeriesRow]:
    """The rows of a table, one for each reach."""
    rows: list[SeriesRow] = []
    # From long to short: the row of a longer reach is a good start for the next shorter one.
    for reach in FITTED_REACHES[::-1]:
        rows.insert(0, fit(goal, rank, reach, rows[0] if rows else None))
    return rows


def main() -> None:
    """Fit every table and write `tables.json`."""
    tables: dict[str, dict[int, list[SeriesRow]]] = {}
    for name, goal in FIT_GOALS.items():
        tables[name] = {}
        for rank in RANKS[1:] if goal.density else RANKS:
            if goal.density:
                near = next(row for row in tables["matched"][rank] if row.reach == DENSITY_REACH)
                rows = [fit(goal, rank, DENSITY_REACH, near)]
            else:
                rows = table(goal, rank)
            tables[name][rank] = rows
            print(f"{name:<8} rank {rank:>2}: " + " ".join(f"{row.error:.0e}" for row in rows))
            sys.stdout.flush()
    written = {
        name: {rank: [row._asdict() for row in rows] for rank, rows in ranks.items()}
        for name, ranks in tables.items()
    }
    TABLES_FILE.write_text(json.dumps(written, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
