"""Soft cap: bounds the logits smoothly."""

from __future__ import annotations

import math
from typing import Any

from regard.arguments import check_positive
from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import Applied, Remedy, RemedyCase, loud_key, put_change
from regard.doctor.remedies.change import Change

GEMMA = 50.0
# Logits between -20 and 20 can still give one key of a million nearly all the weight: e^40 is far above
# 10^6. A lower cap would bend the logits of healthy sharp heads.
LOWEST = 20.0


class Capped(Change):
    """Logits bounded to `cap * tanh(logits / cap)`."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        check_positive(cap=cap)
        self.softcap = cap

    def arguments(self) -> dict[str, Any]:
        """The cap."""
        return {"cap": self.softcap}


class SoftCap(Remedy):
    """Soft-cap: bounds the logits of a call."""

    name = "soft-cap"
    does = (
        "Bounds the logits to 50 tanh(logits / 50). Small logits stay nearly as they are, large ones "
        "stop growing and keep a gradient. torch's SDPA has no cap: regard's engine replaces it."
    )
    source = "Gemma 2 (arXiv 2408.00118): 50"
    moves = frozenset({"logit_max", "logit_var", "logit_bound"})
    changes = (Capped,)

    def refuse(self, finding: Finding) -> str | None:
        """Also refuses one loud key, which a cap does not stop."""
        if loud_key(finding):
            return (
                "soft-cap does not stop a key with a large norm: at ten times the norm the key takes "
                "24% of the queries with a cap and 25% without, at thirty times 40% with and without "
                "(measured at 512 keys, d=64). key-clip leaves it 1%, cosine none"
            )
        return super().refuse(finding)

    def cannot(self, case: RemedyCase) -> str | None:
        """Refuses a call that has a soft cap already."""
        seen = case.call.seen
        if seen.softcap is not None:
            return f"{case.site} has a soft cap of {seen.softcap:g} already"
        return None

    def apply(self, case: RemedyCase, *, cap: float = GEMMA, **_: Any) -> Applied:
        """Cap the logits of all heads of the call."""
        check_positive(cap=cap)
        if cap < LOWEST:
            raise ValueError(
                f"cap={cap:g} would bend the logits of healthy heads: give {LOWEST:g} or more, with "
                "which a head can still single out one key of a million"
            )
        undo, names = put_change(case, "soft_cap", Capped(cap))
        keeps = f"for logits far below {cap:g}: one of 10 moves by {10 - _capped(10, cap):.2g}"
        return Applied(f"logits bounded to {cap:g} tanh(logits / {cap:g})", keeps, undo, names)


def _capped(x: float, cap: float) -> float:
    return cap * math.tanh(x / cap)
