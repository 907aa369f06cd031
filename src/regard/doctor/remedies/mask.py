"""Mask: correct the mask of one call."""

from __future__ import annotations

from typing import Any

from regard.arguments import check_one_of
from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import (
    Applied,
    NotApplicable,
    Remedy,
    RemedyCase,
    put_change,
    put_each,
)
from regard.doctor.remedies.change import Change
from regard.doctor.remedies.intervene import module_at
from regard.doctor.remedies.locate import locate
from regard.doctor.remedies.masking import KINDS
from regard.doctor.vitals.logits import HIDDEN_LOGIT

# The kind of change (`masking.py`) that each disease of masks needs.
FOR = {"missing-mask": "causal", "inverted-mask": "invert", "masked-rows": "fill"}
DONE = {
    "causal": "no query sees a later key",
    "invert": "hidden keys are seen, and seen ones hidden",
    "fill": "a query that sees no key sees all of them",
}


class Masked(Change):
    """A call with its mask changed in one of the ways of `masking.py`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        check_one_of("kind", kind, KINDS)
        self.mask = kind

    def arguments(self) -> dict[str, Any]:
        """The kind of change."""
        return {"kind": self.mask}


class MaskRemedy(Remedy):
    """Change the mask that the call is given."""

    name = "mask"
    does = (
        "Corrects the mask of the call until the code does: adds a missing causal mask, inverts one "
        "of the wrong polarity (SDPA attends where True, nn.MultiheadAttention ignores there: write "
        "~mask), and lets queries that see no key see all. In transformers, register a mask function "
        "with an attention function: AttentionMaskInterface.register(name, sdpa_mask)."
    )
    source = "torch's documentation; transformers PR 45811; measured: outputs move by 0.35"
    moves = frozenset({"masked_rows", "visible_share", "next_share", "previous_share"})
    changes = (Masked,)

    def refuse(self, finding: Finding) -> str | None:
        """Refuses all but diseases of masks."""
        if finding.disease in FOR:
            return None
        return f"mask treats {', '.join(FOR)}, and {finding.disease} is not a disease of masks"

    def cannot(self, case: RemedyCase) -> str | None:
        """None: what stands in the way depends on the kind, which `apply` gets."""
        return None

    def apply(self, case: RemedyCase, *, kind: str | None = None, **_: Any) -> Applied:
        """Apply one kind of change to the mask of all heads."""
        kind = FOR[case.finding.disease] if kind is None else kind
        check_one_of("kind", kind, DONE)
        reason = out_of_reach(case, kind)
        if reason is not None:
            raise NotApplicable(reason)
        if kind == "fill":
            return fill(case)
        undo, names = put_change(case, "mask", Masked(kind))
        keeps = "changed on purpose: other keys are seen"
        return Applied(f"{DONE[kind]}, at every call", keeps, undo, names)


def fill(case: RemedyCase) -> Applied:
    """Fill at this call and at all later calls by the same kind of module.

    Layers usually get the same mask. Whether a later one also has queries without a key cannot be
    measured, because the NaN of this call reaches it.
    """
    calls = locate(case.model, case.batch, case.site)
    later = [calls[site].place for site in list(calls)[list(calls).index(case.site) :]]
    kind = case.place.route, type(case.module)
    places = dict.fromkeys(
        x for x in later if (x.route, type(module_at(case.model, x.module))) == kind
    )
    undo = put_each(case, "mask", Masked, places, "fill")
    later_ones = len(places) - 1
    more = f", here and at {later_ones} later call{'s' * (later_ones > 1)}" if later_ones else ""
    return Applied(f"{DONE['fill']}{more}", "exactly for queries that see a key", undo)


def out_of_reach(case: RemedyCase, kind: str) -> str | None:
    """Why this kind of change cannot be made to the mask of the call, or None."""
    seen, route = case.call.seen, case.place.route
    if (
        kind == "causal" or route == "flex"
    ):  # `put_change` refuses FlexAttention with its own reason
        return None
    if route == "regard":
        return f"{case.site} is a call of regard: invert its Mask where it is created"
    if kind == "fill" and route == "softmax":
        return None
    if route == "softmax":
        return f"{case.site} is attention written out: its mask is part of its logits"
    if seen.bias is None and seen.visible is None and seen.logits is None:
        return f"{case.site} is given no mask" + (" but is_causal=True" if seen.causal else "")
    if (
        kind == "invert"
        and seen.bias is not None
        and bool(((seen.bias > HIDDEN_LOGIT) & (seen.bias != 0)).any())
    ):
        return f"the mask of {case.site} also holds a bias, which cannot be inverted"
    if kind == "invert" and seen.logits is not None:
        return f"{case.site} runs with need_weights=True, where its mask is part of its logits"
    return None
