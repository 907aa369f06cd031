"""Bias-clip: keeps a bias from giving one key most of the weight by itself."""

from __future__ import annotations

from typing import Any

from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import Applied, Remedy, RemedyCase, put_change, vitals_of
from regard.doctor.remedies.mask import Masked
from regard.doctor.remedies.masking import levelled


class BiasClip(Remedy):
    """Bias-clip: bounds how far a bias lifts a key above the others."""

    name = "bias-clip"
    does = (
        "Bounds the bias on the logits to 3 above the median bias of its query, which is twenty times "
        "the weight. Keys that it pushes down, as distance biases do, stay as they are."
    )
    source = "ours: e^3 = 20; the median is over the keys that the query sees"
    moves = frozenset({"sink_weight", "sink_output", "output_alike"})
    changes = (Masked,)

    def refuse(self, finding: Finding) -> str | None:
        """Refuses findings that are not about a key that all queries attend to."""
        if vitals_of(finding) & self.moves:
            return None
        return f"bias-clip treats a key that a bias favours, and {finding.disease} is about none"

    def cannot(self, case: RemedyCase) -> str | None:
        """Needs a bias that lifts a key by more than the bound."""
        bias = case.call.seen.bias
        if bias is None:
            return f"{case.site} has no bias on its logits that the doctor can see"
        if bool((levelled(bias) == bias).all()):
            return f"the bias of {case.site} lifts no key by more than 3, so it is not the cause"
        return None

    def apply(self, case: RemedyCase, **_: Any) -> Applied:
        """Bound the bias at every call."""
        undo, names = put_change(case, "bias_clip", Masked("level"))
        return Applied(
            "the bias lifts no key by more than 3 above its median",
            "exactly for queries whose bias stays below that",
            undo,
            names,
        )
