"""The third attack: everything moves by some places.

Models that take `position_ids` get them counted from a later start: one with relative positions
does not notice. Of all others the sequence is rolled round, and what comes out is rolled back: one
that cannot tell places does not notice. Both are facts about a model rather than faults.

Shape legend: B batch, H heads, T length, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.doctor.probing.inputs import names_of, readable
from regard.doctor.probing.looking import look, moved_by, weights_of
from regard.doctor.running import mapped
from regard.doctor.seen import Seen
from regard.doctor.signature import parameters_of, positions_in

SHIFTS = (1, 4, 16)
# Of longer sequences the weights are not compared.
LONGEST = 1024
SAME = 1e-4


class PositionAttack(NamedTuple):
    """What became of one attention call.

    Attributes:
        site: the call.
        changed: the share of a query's weight that went to other keys, at each shift; NaN where the
            places of its queries and keys are not those of the input.
    """

    site: str
    changed: tuple[float, ...]


class Shifted(NamedTuple):
    """All calls.

    Attributes:
        how: "position_ids", "rolled", or "" where nothing could be shifted.
        shifts: by how many places.
        sites: one for each call.
        moved: how far the model's output moved at each shift, |change| over |output|.
    """

    how: str
    shifts: tuple[int, ...]
    sites: list[PositionAttack]
    moved: tuple[float, ...]


def attack_positions(model: nn.Module, batch: Any) -> Shifted:
    """Try all shifts on the whole model."""
    before = look(model, batch, compared)
    length, picture = length_of(model, batch)
    how, shifts = "position_ids", shifts_of(length, positions_in(model))
    if not shifts or not takes_positions(model, batch, before.output):
        step = patch_of(model) if picture else 1
        how, shifts = "rolled", tuple(s * step for s in SHIFTS if s * step < length)
    if not shifts:
        return Shifted("", (), [PositionAttack(site, ()) for site in before.sites], ())
    changed: dict[str, list[float]] = {site: [] for site in before.sites}
    moved = []
    for shift in shifts:
        if how == "position_ids":
            given, back = with_positions(batch, length, shift), 0
        else:
            given, back = rolled(batch, length, shift, -1 if picture else 1), shift
        after = look(model, given, compared)
        for site, weights in before.sites.items():
            # After an image is rolled, a query no longer corresponds to one known patch.
            other = None if picture else after.sites.get(site)
            changed[site].append(difference(weights, other, length, back))
        output = after.output if picture else unrolled(after.output, length, back)
        moved.append(moved_by(before.output, output))
    sites = [PositionAttack(site, tuple(x)) for site, x in changed.items()]
    return Shifted(how, shifts, sites, tuple(moved))


def shifts_of(length: int, most: int | None) -> tuple[int, ...]:
    """Those after which the last place is still one that the model knows."""
    return tuple(s for s in SHIFTS if most is None or length + s <= most)


def compared(seen: Seen) -> Tensor | None:
    """The weights (B, H, T, T), None where they are too many."""
    read = weights_of(seen, LONGEST + 1)
    return None if read.rows.shape[0] > LONGEST else read.weights


def difference(before: Tensor | None, after: Tensor | None, length: int, back: int) -> float:
    """Half of the summed change of a query's weights, mean over all; rolled back first."""
    if before is None or after is None or before.shape != after.shape:
        return math.nan
    if back:
        if before.shape[-2:] != (length, length):
            return math.nan
        after = after.roll((-back, -back), (-2, -1))
    return float((before - after).abs().sum(-1).mean() / 2)


def unrolled(output: Tensor, length: int, back: int) -> Tensor:
    """An output with a dim of the input's length rolled back along it."""
    fits = back and output.ndim >= 2 and output.shape[1] == length
    return output.roll(-back, 1) if fits else output


def length_of(model: nn.Module, batch: Any) -> tuple[int, bool]:
    """The length of the sequence, and whether it is a picture (then the width)."""
    for name, x in names_of(model, batch).items():
        if readable(name, x) and x.ndim >= 2:
            picture = x.ndim == 4 and x.is_floating_point()
            return x.shape[-1 if picture else 1], picture
    return 0, False


def takes_positions(model: nn.Module, batch: Any, output: Tensor) -> bool:
    """Whether the model takes `position_ids`, and counts them from 0 by itself."""
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        return False
    if "position_ids" not in parameters_of(model)[0]:
        return False
    if "position_ids" in batch:
        return True
    given = with_positions(batch, batch["input_ids"].shape[1], 0)
    return moved_by(output, look(model, given, lambda seen: None).output) < SAME


def with_positions(batch: Mapping[str, Any], length: int, shift: int) -> dict[str, Any]:
    """The batch with positions that count from a later start."""
    ids = batch["input_ids"]
    own = batch.get("position_ids")
    if own is None:
        own = torch.arange(length, device=ids.device).expand(ids.shape[0], -1)
    return {**batch, "position_ids": own + shift}


def patch_of(model: nn.Module) -> int:
    """The width of a patch of a picture in pixels."""
    patch = getattr(getattr(model, "config", None), "patch_size", 1)
    return patch if type(patch) is int and patch > 0 else 1


def rolled(batch: Any, length: int, shift: int, dim: int) -> Any:
    """The batch with everything of this length rolled round, masks too."""

    def one(x: Any) -> Any:
        fits = isinstance(x, Tensor) and x.ndim >= 2 and x.shape[dim] == length
        return x.roll(shift, dim) if fits else x

    return mapped(batch, one)
