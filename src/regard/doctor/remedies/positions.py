"""Positions: made as large as what they are added to.

With the share s of the values' variance that places explain, a factor f on the positions makes it
f² s / (f² s + 1 - s) where both are added and go the same way. Each round measures the share and
takes the factor that this foretells, at most sevenfold, until the share is where it should be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.doctor.findings.evidence import position_tables
from regard.doctor.remedies.base import Applied, NotApplicable, Remedy, RemedyCase
from regard.doctor.remedies.undoing import undone_by_error
from regard.doctor.vitals.outputs import value_vitals
from regard.nn.position import Sinusoidal

# Of the values' variance; positions and embeddings of one size have it, and healthy models 0.15 to
# 0.5 (`findings/washed_out_positions.py`).
SHARE = 0.3
# A share this near to the one wanted will do.
NEAR = 0.05
ROUNDS = 12
# Shares nearer to 0 and 1 than this are mostly noise of the estimate.
LEAST = 0.02


class RescalePositions(Remedy):
    """Multiply the positions that are added to the input."""

    name = "positions"
    does = (
        "Multiplies the table of positions (or the amplitude of regard's Sinusoidal) by one factor, "
        "found by measuring, so that places make 0.3 of the values' variance in the first layer. In "
        "the code: sinusoids have amplitude 1, so embeddings should have about unit variance, or be "
        "scaled by sqrt(d) if they were initialised with variance 1/d."
    )
    source = "Vaswani et al. 2017, 3.4 and 3.5 (arXiv 1706.03762); 0.3 is ours"
    moves = frozenset({"place_share", "value_place"})

    def cannot(self, case: RemedyCase) -> str | None:
        """There must be positions to multiply, and sequences to compare."""
        if not list(tables(case.model)):
            return (
                f"no table of positions is found in the model by its name: they are made in its "
                f"code. Multiply them there, by hand, until value_place of {case.site} is near "
                f"{SHARE:g}"
            )
        if math.isnan(place_share(case)):
            return (
                f"the values of {case.site} cannot be compared over sequences: give a batch of two "
                "or more"
            )
        return None

    def apply(self, case: RemedyCase, *, share: float = SHARE, **_: Any) -> Applied:
        """The first table that brings the share where it should be."""
        if not (isinstance(share, int | float) and LEAST < share < 1 - LEAST):
            raise ValueError(
                f"share must be between {LEAST:g} and {1 - LEAST:g}, the part of the values' "
                f"variance that places make, got {share!r}"
            )
        before = place_share(case)
        if abs(before - share) <= NEAR:
            raise NotApplicable(f"places make {before:.2g} of the variance already")
        tried = []
        for table in tables(case.model):
            factor = fitting_factor(table, lambda: place_share(case), share)
            if factor is not None:
                what = f"positions in {table.name} times {factor:.3g}, {table.kept}"
                keeps = "changed on purpose: places count for more, or less, than before"
                return Applied(what, keeps, table.undo)
            tried.append(table.name)
        raise NotApplicable(
            f"no factor on {', '.join(tried)} makes places {share:g} of the variance at {case.site}"
        )


def place_share(case: RemedyCase) -> float:
    """`value_place` of the call as the model is now, mean over the heads."""
    value = case.again().seen.value
    found = {} if value is None else value_vitals(value, case.place.heads)
    return float(found["value_place"].mean()) if "value_place" in found else math.nan


class Table(Protocol):
    """Positions that can be multiplied.

    Attributes:
        name: where they are.
        kept: what becomes of the factor when the model is saved.
    """

    name: str
    kept: str

    def multiply(self, factor: float) -> None:
        """By this in place of any factor before."""

    def undo(self) -> None:
        """By nothing."""


def fitting_factor(table: Table, measure: Callable[[], float], share: float) -> float | None:
    """The factor at which the share is as wanted, applied; None, and nothing done, without one."""
    factor, before = 1.0, measure()
    for _ in range(ROUNDS):
        seen = min(max(before, LEAST), 1 - LEAST)
        factor *= math.sqrt(share / (1 - share) * (1 - seen) / seen)
        with undone_by_error(table.undo):
            table.multiply(factor)
            now = measure()
        if abs(now - share) <= NEAR:
            return factor
        if now == before or math.isnan(now):  # not what the values are made of
            break
        before = now
    table.undo()
    return None


def tables(model: nn.Module) -> Iterator[Table]:
    """All that looks like positions."""
    for name, module in model.named_modules():
        if isinstance(module, Sinusoidal) and isinstance(module.amplitude, float):
            yield Amplitude(f"{name or type(module).__name__}.amplitude", module)
    saved = set(model.state_dict())
    for name, x in position_tables(model):
        yield PositionTable(name, x, name in saved)


class Amplitude:
    """The amplitude of regard's sinusoids, which is part of the code."""

    def __init__(self, name: str, module: Sinusoidal) -> None:
        self.name, self.module = name, module
        self.start = float(module.amplitude)
        self.kept = "which is not saved with the weights: write it into the code"

    def multiply(self, factor: float) -> None:
        """By this in place of any factor before."""
        self.module.amplitude = self.start * factor

    def undo(self) -> None:
        """By nothing."""
        self.module.amplitude = self.start


class PositionTable:
    """A parameter or buffer that holds them."""

    def __init__(self, name: str, table: Tensor, saved: bool) -> None:
        self.name, self.table = name, table
        self.start = self.last = table.detach().clone()
        self.factor = 1.0
        self.kept = (
            "which is saved with the weights"
            if saved
            else "a buffer that is not saved: multiply it in the code"
        )

    @torch.no_grad()
    def multiply(self, factor: float) -> None:
        """By this in place of any factor before."""
        self.table.copy_(self.start * factor)
        self.factor, self.last = factor, self.table.detach().clone()

    @torch.no_grad()
    def undo(self) -> None:
        """By nothing; what was learned since stays."""
        if torch.equal(self.table, self.last):
            self.table.copy_(self.start)
        else:
            self.table.div_(self.factor)
