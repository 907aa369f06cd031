"""Positions: scales position embeddings to the size of what they are added to.

Let s be the share of the values' variance that positions explain. A factor f on the positions changes it
to f² s / (f² s + 1 - s), if both are added and pass through the same maps. Each round measures the share
and applies the factor that this predicts, at most sevenfold, until the share is as wanted.
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

# The share of the values' variance to aim at: about that of positions and embeddings of equal size.
# Healthy models have 0.15 to 0.5 (`findings/washed_out_positions.py`).
SHARE = 0.3
# Stop when the share is this close to the one wanted.
NEAR = 0.05
ROUNDS = 12
# Closer to 0 or 1 than this the estimate of a share is mostly noise.
LEAST = 0.02


class RescalePositions(Remedy):
    """Positions: multiplies the positions that are added to the input."""

    name = "positions"
    does = (
        "Multiplies the table of positions (or the amplitude of regard's Sinusoidal) by one factor, "
        "found by measuring, so that positions explain 0.3 of the values' variance in the first "
        "layer. In the code: sinusoids have amplitude 1, so embeddings should have about unit "
        "variance, or be scaled by sqrt(d) if they were initialised with variance 1/d."
    )
    source = "Vaswani et al. 2017, 3.4 and 3.5 (arXiv 1706.03762); 0.3 is ours"
    moves = frozenset({"place_share", "value_place"})

    def cannot(self, case: RemedyCase) -> str | None:
        """Needs positions to multiply, and several sequences to compare."""
        if not list(tables(case.model)):
            return (
                f"no table of positions was found in the model by its name: they may be computed in "
                f"its code. Multiply them there until value_place of {case.site} is near {SHARE:g}"
            )
        if math.isnan(place_share(case)):
            return (
                f"the values of {case.site} cannot be compared over sequences: give a batch of two "
                "or more"
            )
        return None

    def apply(self, case: RemedyCase, *, share: float = SHARE, **_: Any) -> Applied:
        """Multiply the first table that brings the share to the one wanted."""
        if not (isinstance(share, int | float) and LEAST < share < 1 - LEAST):
            raise ValueError(
                f"share must be between {LEAST:g} and {1 - LEAST:g}, the part of the values' "
                f"variance that positions explain, got {share!r}"
            )
        before = place_share(case)
        if abs(before - share) <= NEAR:
            raise NotApplicable(f"positions explain {before:.2g} of the variance already")
        tried = []
        for table in tables(case.model):
            factor = fitting_factor(table, lambda: place_share(case), share)
            if factor is not None:
                what = f"positions in {table.name} times {factor:.3g}, {table.kept}"
                keeps = "changed on purpose: positions count for more, or less, than before"
                return Applied(what, keeps, table.undo)
            tried.append(table.name)
        raise NotApplicable(
            f"no factor on {', '.join(tried)} makes positions explain {share:g} of the variance at "
            f"{case.site}"
        )


def place_share(case: RemedyCase) -> float:
    """`value_place` of the call in the model as it is now, mean over the heads."""
    value = case.again().seen.value
    found = {} if value is None else value_vitals(value, case.place.heads)
    return float(found["value_place"].mean()) if "value_place" in found else math.nan


class Table(Protocol):
    """Positions that can be multiplied.

    Attributes:
        name: name of the table in the model.
        kept: what happens to the factor when the model is saved.
    """

    name: str
    kept: str

    def multiply(self, factor: float) -> None:
        """Multiply the original positions by this; an earlier factor is replaced."""

    def undo(self) -> None:
        """Restore the original positions."""


def fitting_factor(table: Table, measure: Callable[[], float], share: float) -> float | None:
    """Apply and return the factor that gives the wanted share; None, with nothing changed, without one."""
    factor, before = 1.0, measure()
    for _ in range(ROUNDS):
        seen = min(max(before, LEAST), 1 - LEAST)
        factor *= math.sqrt(share / (1 - share) * (1 - seen) / seen)
        with undone_by_error(table.undo):
            table.multiply(factor)
            now = measure()
        if abs(now - share) <= NEAR:
            return factor
        if now == before or math.isnan(now):  # the values do not depend on this table
            break
        before = now
    table.undo()
    return None


def tables(model: nn.Module) -> Iterator[Table]:
    """Everything in the model that looks like positions."""
    for name, module in model.named_modules():
        if isinstance(module, Sinusoidal) and isinstance(module.amplitude, float):
            yield Amplitude(f"{name or type(module).__name__}.amplitude", module)
    saved = set(model.state_dict())
    for name, x in position_tables(model):
        yield PositionTable(name, x, name in saved)


class Amplitude:
    """The amplitude of regard's `Sinusoidal`, an attribute that no state dict holds."""

    def __init__(self, name: str, module: Sinusoidal) -> None:
        self.name, self.module = name, module
        self.start = float(module.amplitude)
        self.kept = "which is not saved with the weights: write it into the code"

    def multiply(self, factor: float) -> None:
        """Multiply the original amplitude by this; an earlier factor is replaced."""
        self.module.amplitude = self.start * factor

    def undo(self) -> None:
        """Restore the original amplitude."""
        self.module.amplitude = self.start


class PositionTable:
    """A parameter or buffer that holds positions."""

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
        """Multiply the original table by this; an earlier factor is replaced."""
        self.table.copy_(self.start * factor)
        self.factor, self.last = factor, self.table.detach().clone()

    @torch.no_grad()
    def undo(self) -> None:
        """Restore the original table; if it was trained since, only divide by the factor."""
        if torch.equal(self.table, self.last):
            self.table.copy_(self.start)
        else:
            self.table.div_(self.factor)
