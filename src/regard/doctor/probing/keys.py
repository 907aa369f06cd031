"""The first attack: one key of a call gets longer, until it has captured the queries.

A query is captured when it gives more than half of its weight to that key. Which key: the one that
would capture the most queries. With x_ij the scaled inner product, r_ij what else is in the logit,
and l_ij the log-sum-exp of all other keys, key j times c has query i where `c x_ij + r_ij > l_ij`.

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
    """What became of one attention call.

    Attributes:
        site: the call.
        key: the place of the key that was lengthened.
        captured: the share of queries that it had at each of `FACTORS`, mean over the heads.
        worst: the same of the head that fared worst.
        c50: the factor at which it had half of the queries, between the two that were tried; inf
            beyond the last.
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
    """Try all factors on one call; `output` is what the model gives without them."""
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
    """The key that would capture the most queries, over all factors."""
    read = weights_of(seen)
    if seen.query is None or seen.key is None:
        # No inner product: the key of the largest mean logit.
        return int(torch.where(read.logits > HIDDEN / 2, read.logits, 0).mean((0, 1, 2)).argmax())
    size = size_of(seen)
    product = products(in_full(seen)._replace(logits=None), size, read.rows)
    rest = read.logits - product
    own = read.logits.softmax(-1)
    others = read.logits.logsumexp(-1, keepdim=True) + (1 - own).clamp(min=1e-38).log()
    shares = [(c * product + rest > others).double().mean((0, 1, 2)) for c in FACTORS]
    return int(torch.stack(shares).sum(0).argmax())


def half_at(captured: list[float]) -> float:
    """Where the share passes one half, on a logarithmic line between two factors."""
    if captured[0] >= HALF:
        return FACTORS[0]
    for i in range(1, len(FACTORS)):
        low, high = captured[i - 1], captured[i]
        if high >= HALF:
            part = (HALF - low) / (high - low)
            return FACTORS[i - 1] * math.exp(part * math.log(FACTORS[i] / FACTORS[i - 1]))
    return math.inf
