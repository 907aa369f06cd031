"""QK-clip: shrink the weights of heads whose largest logit is too large."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.arguments import check_positive
from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import (
    Applied,
    NotApplicable,
    Remedy,
    RemedyCase,
    fold,
    loud_key,
    named,
)

TAU = 100.0


class QKClip(Remedy):
    """QK-clip: scales W_q and W_k of a head by sqrt(tau / largest logit)."""

    name = "qk-clip"
    does = (
        "Multiplies the weights that project to the queries and keys of a head by sqrt(100 / largest "
        "logit) if the largest logit of the head is above 100. It adds nothing to the forward pass, "
        "and other heads stay as they are. Apply it again when the logits have grown again."
    )
    source = "Kimi K2 (arXiv 2507.20534): tau = 100"
    moves = frozenset({"logit_max", "logit_var", "logit_bound", "query_norm", "key_norm"})

    def refuse(self, finding: Finding) -> str | None:
        """Also refuses one loud key: all keys shrink alike."""
        if loud_key(finding):
            return (
                "qk-clip shrinks all keys of a head alike, so one loud key stays the loudest; "
                "key-clip and cosine stop it"
            )
        return super().refuse(finding)

    def cannot(self, case: RemedyCase) -> str | None:
        """Needs finite logits, and a query and key."""
        largest = case.vital("logit_max")
        if not bool(largest.isfinite().all()):
            return f"logits of {case.site} are not finite: they have overflowed already"
        if case.call.seen.pairwise is not None or case.call.seen.query is None:
            return f"{case.site} has no query and key whose weights can be identified"
        return None

    def apply(self, case: RemedyCase, *, tau: float = TAU, **_: Any) -> Applied:
        """Scale the weights of every head whose largest logit is above tau."""
        check_positive(tau=tau)
        largest = case.vital("logit_max")
        factor = clip_factors(largest, tau)
        clipped = [head for head, x in enumerate(factor.tolist()) if x < 1]
        if not clipped:
            raise NotApplicable(
                f"no largest logit of {case.site} is above {tau:g}: nothing to clip"
            )
        place, undo = case.place, None
        if place.heads == place.key_heads:
            undo = fold(case, factor.sqrt(), factor.sqrt())
        # A key head that serves several query heads must not shrink for one of them, so the queries
        # take the whole factor. The same if the keys alone cannot be scaled.
        if undo is None:
            undo = fold(case, factor, torch.ones(place.key_heads, dtype=factor.dtype))
        if undo is None:
            raise NotApplicable(
                f"the weights that project to the queries and keys of {case.site} cannot be "
                "identified, or a norm comes after them"
            )
        least = float(factor.min())
        return Applied(
            f"weights of {named(clipped)} scaled: logits times {least:.3g} at the least",
            "exactly for the other heads; these are softened",
            undo,
        )


def clip_factors(largest: Tensor, tau: float) -> Tensor:
    """The factor on the logits of each head: 1 if the largest is below tau.

    A largest logit of 0 or less clips nothing: dividing by it would flip the sign of the logits.
    """
    return (tau / largest.double().clamp(min=1e-30)).clamp(max=1.0)
