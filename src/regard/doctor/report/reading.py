"""Read a doctor's newest numbers from the device, in one copy.

Shape legend: W steps kept, H heads, C chosen vitals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.doctor.chart import WatchedSite
from regard.doctor.vitals.table import VITALS

if TYPE_CHECKING:
    from regard.doctor.watch import Doctor

LOW_IS_WORSE = frozenset(vital.name for vital in VITALS if vital.low_is_worse)
# The vitals that a small table shows, most informative first.
KEY_VITALS = ("logit_max", "entropy", "max_weight", "key_spread", "c50", "logit_bound", "query_grad",
              "key_grad", "sink_weight", "head_similarity", "tanh_saturated", "masked_rows",
              "nan_queries", "nan_keys", "nan_logits", "inf_logits")  # fmt: skip


class Glance(NamedTuple):
    """The newest numbers of a site, on the host.

    Attributes:
        newest: (H, C), the last measured value of each head.
        course: (W, C), the worst head in each step; NaN where nothing was measured.
    """

    newest: Tensor
    course: Tensor

    def worst(self, column: int, vital: str) -> float:
        """The worst of the newest values; NaN if there is none."""
        return worst(self.newest[:, column], vital)

    def mean(self, column: int) -> float:
        """The mean of the newest values over the heads."""
        return float(self.newest[:, column].nanmean())


def glance(doctor: Doctor, vitals: Sequence[str]) -> dict[str, Glance]:
    """A `Glance` of every measured site, by name; computed on the device and copied at once."""
    places = [(name, doctor.vitals.index(name)) for name in vitals]
    sites = [site for site in doctor.chart.order if site.ring is not None and site.ring.count]
    # No torch function mode, such as the doctor's own, should see these calls. Without gradients:
    # inference tensors may be among them.
    with torch._C.DisableTorchFunction(), torch.no_grad():
        parts = [part for site in sites for part in summary(site, places)]
        parts = fetched(parts)
    return {site.name: Glance(parts[2 * i], parts[2 * i + 1]) for i, site in enumerate(sites)}


def summary(site: WatchedSite, places: Sequence[tuple[str, int]]) -> tuple[Tensor, Tensor]:
    """`newest` and `course` of a `Glance`, on the device."""
    assert site.ring is not None
    values, count = site.ring.values, site.ring.count
    window = values.shape[0]
    newest, course = [], []
    for vital, place in places:
        column = values[:count, :, place]
        # A full ring begins in its middle: roll it so that the oldest step comes first.
        column = column.roll(-(count % window), 0) if count > window else column
        newest.append(last_measured(column))
        course.append(extreme(column, 1, low=vital in LOW_IS_WORSE))
    return torch.stack(newest, -1), torch.stack(course, -1)


def last_measured(x: Tensor) -> Tensor:
    """The last value along dim 0 that is not NaN; NaN if all are."""
    order = torch.arange(x.shape[0], device=x.device).reshape(-1, *[1] * (x.ndim - 1))
    last = torch.where(x.isnan(), 0, order).amax(0, keepdim=True)
    return x.gather(0, last).squeeze(0)


def extreme(x: Tensor, dim: int, *, low: bool) -> Tensor:
    """The smallest or largest value along a dim, ignoring NaN; NaN if all are."""
    none = x.isnan()
    sign = -1 if low else 1
    found = (sign * x).masked_fill(none, -torch.inf).amax(dim)
    return (sign * found).masked_fill(none.all(dim), torch.nan)


def worst(values: Tensor, vital: str) -> float:
    """The worst of some values of a vital; NaN if there are none."""
    return float(extreme(values, 0, low=vital in LOW_IS_WORSE)) if len(values) else math.nan


def fetched(parts: list[Tensor]) -> list[Tensor]:
    """The tensors on the host, with one copy for each device."""
    found: dict[int, Tensor] = {}
    for device in {part.device for part in parts}:
        here = [i for i, part in enumerate(parts) if part.device == device]
        flat = torch.cat([parts[i].flatten() for i in here]).cpu()
        pieces = flat.split([parts[i].numel() for i in here])
        found |= {i: x.reshape(parts[i].shape) for i, x in zip(here, pieces, strict=True)}
    return [found[i] for i in range(len(parts))]


def measured(doctor: Doctor, vitals: Sequence[str] | None = None) -> list[str]:
    """The vitals asked for, or those of `KEY_VITALS` that this doctor has.

    Raises:
        ValueError: a vital asked for is unknown.
    """
    if vitals is None:
        return [name for name in KEY_VITALS if name in doctor.vitals]
    unknown = [name for name in vitals if name not in doctor.vitals]
    if unknown:
        raise ValueError(f"unknown vitals {', '.join(unknown)}; known: {', '.join(doctor.vitals)}")
    return list(vitals)
