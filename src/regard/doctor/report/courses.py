"""The course of every vital over time, thinned to what a report can hold.

A course has at most `MOST_POINTS` points. All sites together have at most `MOST_NUMBERS` numbers for the
ranges over their heads, and as many for single heads. If single heads would need more, only heads with
a finding keep a line of their own.

Shape legend: S steps, H heads, C vitals measured in the same steps, P points.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.doctor.chart import History
from regard.doctor.findings.finding import Finding
from regard.doctor.report.numbers import Number, plain
from regard.doctor.report.reading import extreme, last_measured
from regard.doctor.vitals.table import VITALS, Merge

if TYPE_CHECKING:
    from regard.doctor.watch import Doctor

MOST_POINTS, FEWEST_POINTS = 128, 16
# At about 6 bytes a number in JSON, twice this many make a page of some 5 MB.
MOST_NUMBERS = 400_000
MOST_HEADS = 8  # heads of one finding that keep a line, if not all heads can
# Vitals whose bins keep the largest value: a mean over steps would hide a single bad step.
EXTREMES = frozenset(vital.name for vital in VITALS if vital.merge is not Merge.MEAN)


class Course(NamedTuple):
    """One vital of a site over time.

    Attributes:
        axis: index into `Record.axes`, the steps of its points.
        low: the smallest value over the heads, at each point.
        mean: the mean over the heads, at each point.
        high: the largest value over the heads, at each point.
        heads: the points of single heads, by head.
    """

    axis: int
    low: list[Number]
    mean: list[Number]
    high: list[Number]
    heads: dict[int, list[Number]]


class CourseBudget:
    """The number of points of a course, and the heads that keep a course of their own."""

    def __init__(self, doctor: Doctor, findings: list[Finding]) -> None:
        sites, vitals = doctor.chart.order, len(doctor.vitals)
        ranges = 3 * len(sites) * vitals
        lines = sum(site.heads for site in sites) * vitals
        self.points = min(MOST_POINTS, max(1, MOST_NUMBERS // max(ranges, 1)))
        self.all_heads = lines * FEWEST_POINTS <= MOST_NUMBERS
        self.named: dict[str, set[int]] = defaultdict(set)
        self.left_out = ""
        if self.all_heads:
            self.points = min(self.points, MOST_NUMBERS // max(lines, 1))
            return
        room = MOST_NUMBERS // (vitals * self.points)
        for finding in findings:
            for head in finding.heads[:MOST_HEADS]:
                if room > 0 and head not in self.named[finding.site]:
                    self.named[finding.site].add(head)
                    room -= 1
        self.left_out = (
            "There are too many heads to keep the course of each: only heads with a finding have one, "
            "the others are shown as the range over all heads."
        )

    def heads_of(self, site: str, heads: int) -> list[int]:
        """The heads of a site that keep a course of their own."""
        if self.all_heads:
            return list(range(heads))
        return sorted(head for head in self.named[site] if head < heads)


def last_values(values: Tensor, vitals: tuple[str, ...]) -> dict[str, list[Number]]:
    """The last value of each head, for every vital that was measured; `values` is (S, H, vitals)."""
    last = last_measured(values)
    rows = last.T.tolist()
    there = (~last.isnan()).any(0).tolist()
    return {
        vital: [plain(x) for x in row]
        for vital, row, some in zip(vitals, rows, there, strict=True)
        if some
    }


def courses_of(
    history: History,
    vitals: tuple[str, ...],
    axes: dict[tuple[int, ...], int],
    points: int,
    heads: list[int],
) -> dict[str, Course]:
    """The course of every vital that was measured.

    Vitals measured in the same steps share an axis and are binned together.
    """
    steps, values = history
    there = (~values.isnan()).any(1)  # (S, vitals)
    together: dict[tuple[bool, ...], list[int]] = defaultdict(list)
    for place, column in enumerate(there.T.tolist()):
        if any(column):
            together[tuple(column)].append(place)
    found: dict[str, Course] = {}
    for rows, places in together.items():
        chosen = [i for i, measured in enumerate(rows) if measured]
        bins, x = binned(values[chosen][:, :, places], points, [vitals[i] for i in places])
        axis = axes.setdefault(
            tuple(steps[chosen[min(end, len(chosen) - 1)]] for end in bins), len(axes)
        )
        low, high = extreme(x, 1, low=True), extreme(x, 1, low=False)
        lines = (low, x.nanmean(1), high, *(x[:, head] for head in heads))
        texts = [[[plain(n) for n in row] for row in line.T.tolist()] for line in lines]
        for i, place in enumerate(places):
            low, mean, high, *single = (text[i] for text in texts)
            found[vitals[place]] = Course(
                axis, low, mean, high, dict(zip(heads, single, strict=True))
            )
    return {vital: found[vital] for vital in vitals if vital in found}


def binned(x: Tensor, points: int, vitals: list[str]) -> tuple[list[int], Tensor]:
    """The index of the last row of each bin, and x (S, H, C) binned to (P, H, C) with P <= points.

    Vitals that are averaged over steps get the mean of a bin, others its largest value.
    """
    size = -(-x.shape[0] // points)
    if size == 1:
        return list(range(x.shape[0])), x
    count = -(-x.shape[0] // size)
    missing = x.new_full((count * size - x.shape[0], *x.shape[1:]), torch.nan)
    parts = torch.cat([x, missing]).unflatten(0, (count, size))
    mean = torch.tensor([vital not in EXTREMES for vital in vitals])
    found = torch.where(mean, parts.nanmean(1), extreme(parts, 1, low=False))
    return [(i + 1) * size - 1 for i in range(count)], found
