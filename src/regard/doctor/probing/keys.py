"""The first attack: one key of a call is made longer, up to 100 times.

A query is captured when it gives more than half of its weight to that key. The attack uses the key
that would capture the most queries. With x_ij the scaled inner product, r_ij the rest of the logit,
and l_ij the log-sum-exp of all other keys, key j times c captures query i where `c x_ij + r_ij >
l_ij`.

Shape legend: B batch, H heads, R queries, L keys.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.doctor.probing.looking import in_full, look, moved_by, weights_of
from regard.doctor.probing.planting import planted
from regard.doctor.remedies.locate import LocatedCall
from regard.doctor.seen import Seen
from regard.doctor.vitals.logits import HIDDEN, products, size_of

FACTORS = (1.0, 3.0, 10.0, 30.0, 100.0)
HALF = 0.5


class KeyAttack(NamedTuple):
    """What one attention call did at each of `FACTORS`.

    Attributes:
        site: the call.
        key: the place of the key that was lengthened.
        captured: the share of queries that it captured, mean over the heads.
        worst: the same for the head in which it captured the most.
        c50: the factor at which it captured half of the queries, interpolated; inf if it did not.
        moved: how far the model's output moved, |change| over |output|.
    """

    site: str
    key: int
    captured: tuple[float, ...]
    worst: tuple[float, ...]
    c50: float
    moved: tuple[float, ...]


def attack_key(
    model: nn.Module, batch: object, site: str, call: LocatedCall, output: Tensor
) -> KeyAttack:
    """The results of all factors on one call; `output` is that of the unchanged model."""
    seen = call.seen
    place, keys = easiest_key(seen), size_of(seen).keys

    def captured(seen: Seen) -> Tensor:
        return (weights_of(seen).weights[..., place] > HALF).double().mean((0, 2))

    mean, worst, moved = [], [], []
    for factor in FACTORS:
        with planted(model, call.place, keys, place, factor):
            found = look(model, batch, captured, only=site)
        mean.append(float(found.sites[site].mean()))
        worst.append(float(found.sites[site].max()))
        moved.append(moved_by(output, found.output))
    return KeyAttack(site, place, tuple(mean), tuple(worst), half_at(mean), tuple(moved))


def easiest_key(seen: Seen) -> int:
    """The place of the key that would capture the most queries, summed over all factors."""
    read = weights_of(seen)
    if seen.query is None or seen.key is None:
        # Without an inner product, take the key with the largest mean logit.
        return int(torch.where(read.logits > HIDDEN / 2, read.logits, 0).mean((0, 1, 2)).argmax())
    size = size_of(seen)
    product = products(in_full(seen)._replace(logits=None), size, read.rows)
    rest = read.logits - product
    # Without its own share of the weight, the log-sum-exp of a row is that of all other keys.
    own = read.logits.softmax(-1)
    others = read.logits.logsumexp(-1, keepdim=True) + (1 - own).clamp(min=1e-38).log()
    shares = [(c * product + rest > others).double().mean((0, 1, 2)) for c in FACTORS]
    return int(torch.stack(shares).sum(0).argmax())


def half_at(captured: list[float]) -> float:
    """The factor at which the share reaches one half, interpolated over the log of the factor."""
    if captured[0] >= HALF:
        return FACTORS[0]
    for i in range(1, len(FACTORS)):
        low, high = captured[i - 1], captured[i]
        if high >= HALF:
            part = (HALF - low) / (high - low)
            return FACTORS[i - 1] * math.exp(part * math.log(FACTORS[i] / FACTORS[i - 1]))
    return math.inf
