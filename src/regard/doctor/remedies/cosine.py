"""Cosine: makes logits depend on the angle between query and key only."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from regard.doctor.remedies.base import (
    Applied,
    Remedy,
    RemedyCase,
    for_heads,
    needs_sides,
    put_change,
    too_sharp,
)
from regard.doctor.remedies.change import Change, by_head
from regard.scores.cosine import unit

# Swin V2 lets no temperature fall below 1/100.
LARGEST_GAIN = 100.0


class CosineSides(Change):
    """Logits `gain cos(q, k)`, from unit vectors and a gain that cancels the scale of the call.

    `gain = exp(log_gain)` (H,), at most 100.
    """

    def __init__(self, heads: int, scale: float) -> None:
        super().__init__()
        self.log_gain = nn.Parameter(torch.zeros(heads))
        self.scale = scale

    def change_sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Unit vectors; the queries are multiplied by the gain."""
        gain = self.log_gain.clamp(max=math.log(LARGEST_GAIN)).exp() / self.scale
        return unit(query) * by_head(gain, query), unit(key)

    def arguments(self) -> dict[str, Any]:
        """The number of heads and the scale of the call."""
        return {"heads": self.log_gain.shape[0], "scale": self.scale}


class CosineScore(Remedy):
    """Cosine: takes the norms of queries and keys out of the logits."""

    name = "cosine"
    does = (
        "Makes the logits `gain * cos(query, key)` with a learned gain for each head: no key and no "
        "query can be loud. The gain starts at the scale times the median norms, which keeps the "
        "spread of the logits; for a head that is too sharp it starts at sqrt(d) at most."
    )
    source = "Swin V2 (arXiv 2111.09883); QKNorm, Henry et al. 2020 (arXiv 2010.04245)"
    moves = frozenset(
        {
            "key_spread",
            "query_spread",
            "c50",
            "logit_max",
            "logit_var",
            "logit_bound",
            "entropy",
            "max_weight",
            "jacobian",
            "query_norm",
            "key_norm",
        }
    )
    changes = (CosineSides,)

    def cannot(self, case: RemedyCase) -> str | None:
        """Needs a query and key that can be changed."""
        return needs_sides(case)

    def apply(self, case: RemedyCase, **_: Any) -> Applied:
        """Normalise queries and keys, with a gain for each head."""
        query, key = case.sides()
        scale, place = case.call.seen.scale, case.place
        norms = [x.norm(dim=-1).transpose(0, 1).flatten(1).median(-1).values for x in (query, key)]
        group = place.heads // place.key_heads
        gain = (abs(scale) * norms[0] * norms[1].repeat_interleave(group)).cpu()
        limited = too_sharp(case.finding)
        if limited:
            # Cosines of random directions have the standard deviation 1/sqrt(d): a gain of sqrt(d)
            # gives logits of variance 1.
            gain = for_heads(case, gain.clamp(max=query.shape[-1] ** 0.5), gain)
        change = CosineSides(place.heads, scale).to(**case.like())
        with torch.no_grad():
            change.log_gain.copy_(gain.clamp(1e-3, LARGEST_GAIN).log())
        undo, names = put_change(case, "cosine", change)
        keeps = "as far as the queries, and the keys, of a head have one norm"
        keeps += "; sick heads start at a gain of sqrt(d) at most" if limited else ""
        text = f"cosine with gains from {float(gain.min()):.3g} to {float(gain.max()):.3g}"
        return Applied(text, keeps, undo, names)
