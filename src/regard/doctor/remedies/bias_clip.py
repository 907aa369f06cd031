"""Bias-clip: no key that a bias alone makes the winner."""

from __future__ import annotations

from typing import Any

from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import Applied, Remedy, RemedyCase, put_change, vitals_of
from regard.doctor.remedies.mask import Masked
from regard.doctor.remedies.masking import levelled


class BiasClip(Remedy):
    """Bound what a bias adds to the logits of a key."""

    name = "bias-clip"
    does = (
        "Lets the bias on the logits lift no key by more than 3 above the median bias of its query, "
        "twenty times the weight. What it pushes down, as distances do, stays as it is."
    )
    source = "ours: e^3 = 20; the median is over the keys that the query sees"
    moves = frozenset({"sink_weight", "sink_output", "output_alike"})
    changes = (Masked,)

    def refuse(self, finding: Finding) -> str | None:
        """For keys that all look at."""
        if vitals_of(finding) & self.moves:
            return None
        return f"bias-clip is for a key that a bias made the winner, and {finding.disease} is none"

    def cannot(self, case: RemedyCase) -> str | None:
        """There must be a bias of that kind."""
        bias = case.call.seen.bias
        if bias is None:
            return f"no bias on the logits of {case.site} can be told"
        if bool((levelled(bias) == bias).all()):
            return f"the bias of {case.site} lifts no key by more than 3: it is not the reason"
        return None

    def apply(self, case: RemedyCase, **_: Any) -> Applied:
        """At every call."""
        undo, names = put_change(case, "bias_clip", Masked("level"))
        return Applied(
            "the bias lifts no key by more than 3 above its median",
            "exactly for queries whose bias stays below that",
            undo,
            names,
        )
