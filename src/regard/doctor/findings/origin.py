"""Finds the step and the attention call at which the first NaN or Inf of a model appears."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from regard.doctor.findings.evidence import Evidence
from regard.doctor.vitals.table import BROKEN

SOURCE = "ours: no number may be NaN or infinite"
LARGEST = torch.finfo(torch.float32).max


class Origin(NamedTuple):
    """The first broken number: index of its site, and index of its step in that site."""

    site: int
    place: int


def first_broken(sites: Sequence[Evidence]) -> Origin | None:
    """The first site, in the forward pass, of the earliest step with a broken number."""
    found = []
    for index, e in enumerate(sites):
        broken = torch.stack([e.of(name) > 0 for name in BROKEN]).any(0).any(1)
        if broken.any():
            place = int(broken.nonzero()[0])
            found.append((e.steps[place], index, place))
    if not found:
        return None
    _, index, place = min(found)
    return Origin(index, place)


def emptied_before(sites: Sequence[Evidence], origin: Origin) -> int | None:
    """The last site before the origin at which queries saw no key in that step, or None."""
    step = sites[origin.site].steps[origin.place]
    for index in range(origin.site - 1, -1, -1):
        e = sites[index]
        if step in e.steps and (e.of("masked_rows")[e.steps.index(step)] > 0).any():
            return index
    return None
