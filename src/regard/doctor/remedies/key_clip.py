"""Key-clip: shortens keys that are longer than three times the median key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.arguments import check_positive
from regard.doctor.remedies.base import Applied, Remedy, RemedyCase, needs_sides, put_change
from regard.doctor.remedies.change import Change, by_head
from regard.precision import widened

# At ten times the median norm a key takes 25% of the queries; clipped to three times it takes 1% (d=64).
TIMES = 3.0


class ClippedKeySides(Change):
    """Keys shortened to `max_norm` (K,) if they are longer; all others stay bit-identical."""

    max_norm: Tensor

    def __init__(self, key_heads: int) -> None:
        super().__init__()
        self.register_buffer("max_norm", torch.full((key_heads,), torch.inf))

    def change_sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """The query as it is, and the keys clipped."""
        work = widened(key)
        limit = by_head(self.max_norm, work)
        # Divide by the largest entry first, so that squares do not overflow.
        peak = work.detach().abs().amax(-1, keepdim=True).clamp(min=1)
        norm = peak * torch.linalg.vector_norm(work / peak, dim=-1, keepdim=True)
        short = norm <= limit
        factor = torch.where(short, 1.0, limit / torch.where(short, 1.0, norm))
        return query, (work * factor).to(key.dtype)

    def arguments(self) -> dict[str, Any]:
        """The number of key heads."""
        return {"key_heads": self.max_norm.shape[0]}


class KeyClip(Remedy):
    """Key-clip: bounds the norms of the keys."""

    name = "key-clip"
    does = (
        "Shortens keys that are longer than three times the median key of their head. The limit is "
        "measured on the batch and then fixed. Shorter keys, and outputs that see only those, stay "
        "bit-identical."
    )
    source = "ours: at ten times the norm a key keeps 1% of the queries in place of 25% (d=64)"
    moves = frozenset({"key_spread", "c50", "key_norm", "logit_bound"})
    changes = (ClippedKeySides,)

    def cannot(self, case: RemedyCase) -> str | None:
        """Needs a query and key that can be changed."""
        return needs_sides(case)

    def apply(self, case: RemedyCase, *, times: float = TIMES, **_: Any) -> Applied:
        """Clip keys at a fixed limit for each key head."""
        check_positive(times=times)
        key = case.sides()[1]
        norms = key.norm(dim=-1).transpose(0, 1).flatten(1)
        limit = times * norms.median(-1).values
        change = ClippedKeySides(case.place.key_heads).to(**case.like())
        change.max_norm.copy_(limit)
        shortened = int((norms > limit[:, None]).sum())
        undo, names = put_change(case, "key_clip", change)
        return Applied(
            f"keys clipped at {times:g} times the median norm: {shortened} of {norms.numel()} keys",
            "exactly for keys within the limit; queries that saw a clipped key now see others more",
            undo,
            names,
        )
