"""The third attack: all positions are shifted by some places.

Models that take `position_ids` get positions that count from a later start; this changes nothing in
a model with relative positions. For all other models the sequence is rolled round and the output is
rolled back; this changes nothing in a model that ignores positions. Neither result is a fault.

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
# The weights of longer sequences are not compared.
LONGEST = 1024
SAME = 1e-4  # an output that moves by less counts as unchanged


class PositionAttack(NamedTuple):
    """What one attention call did at each shift.

    Attributes:
        site: the call.
        changed: the share of a query's weight that went to other keys; NaN where its queries and
            keys do not correspond to places of the input.
    """

    site: str
    changed: tuple[float, ...]


class Shifted(NamedTuple):
    """The results of all shifts.

    Attributes:
        how: "position_ids", "rolled", or "" where nothing could be shifted.
        shifts: by how many places positions were shifted.
        sites: one result for each call.
        moved: how far the model's output moved at each shift, |change| over |output|.
    """

    how: str
    shifts: tuple[int, ...]
    sites: list[PositionAttack]
    moved: tuple[float, ...]


def attack_positions(model: nn.Module, batch: Any) -> Shifted:
    """The results of all shifts on the whole model."""
    before = look(model, batch, compared)
    length, picture = length_of(model, batch)
    how, shifts = "position_ids", shifts_of(length, positions_in(model))
    if not shifts or not takes_positions(model, batch, before.output):
        # Images are rolled by whole patches, so that patches keep their content.
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
    """The shifts after which the model still knows the last position."""
    return tuple(s for s in SHIFTS if most is None or length + s <= most)


def compared(seen: Seen) -> Tensor | None:
    """The weights (B, H, T, T) of a call, None where there are more than `LONGEST` queries."""
    read = weights_of(seen, LONGEST + 1)
    return None if read.rows.shape[0] > LONGEST else read.weights


def difference(before: Tensor | None, after: Tensor | None, length: int, back: int) -> float:
    """The share of weight that moved to other keys, mean over queries, after rolling back."""
    if before is None or after is None or before.shape != after.shape:
        return math.nan
    if back:
        if before.shape[-2:] != (length, length):
            return math.nan
        after = after.roll((-back, -back), (-2, -1))
    return float((before - after).abs().sum(-1).mean() / 2)


def unrolled(output: Tensor, length: int, back: int) -> Tensor:
    """The output rolled back along its second dim, if that has the input's length."""
    fits = back and output.ndim >= 2 and output.shape[1] == length
    return output.roll(-back, 1) if fits else output


def length_of(model: nn.Module, batch: Any) -> tuple[int, bool]:
    """The length of the sequence and False, or the width of an image and True."""
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
    """The width of an image patch in pixels, 1 if the config names none."""
    patch = getattr(getattr(model, "config", None), "patch_size", 1)
    return patch if type(patch) is int and patch > 0 else 1


def rolled(batch: Any, length: int, shift: int, dim: int) -> Any:
    """The batch with all tensors of this length rolled round, masks included."""

    def one(x: Any) -> Any:
        fits = isinstance(x, Tensor) and x.ndim >= 2 and x.shape[dim] == length
        return x.roll(shift, dim) if fits else x

    return mapped(batch, one)
