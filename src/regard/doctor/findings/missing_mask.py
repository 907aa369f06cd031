"""Missing mask: a layer of a causal model sees later tokens."""

from __future__ import annotations

from collections.abc import Sequence

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.seeing import is_square, kind_of, looks_back, seen
from regard.doctor.findings.signs import Disease, above, judge

NO_MASK, NO_MASK_SOURCE = 0.99, "ours: every query sees every key"
# A layer counts as causal if this share of at least so many layers of its kind are.
CAUSAL_SHARE, LEAST_LAYERS = 2 / 3, 3
AHEAD = (
    "This module declares itself causal (is_causal), and some of its queries see the next token. A prefix that is "
    "seen as a whole does this on purpose. A mask that is shifted by one does it too, and then the loss is far too "
    "low: regard.doctor.check(model, batch, causal=True) tells which."
)


def find(disease: Disease, sites: Sequence[Evidence]) -> list[Finding]:
    """Findings where queries see later tokens in a causal module, or among causal layers."""
    found = []
    backward = {e.name: looks_back(e) for e in sites}
    for e in sites:
        if not is_square(e) or e.declared.causal is False:
            continue
        alike = [x for x in sites if kind_of(x) == kind_of(e) and is_square(x)]
        causal = sum(backward[x.name] for x in alike)
        odd = len(alike) >= LEAST_LAYERS and causal >= CAUSAL_SHARE * len(alike)
        if not (e.declared.causal or odd):
            continue
        needed = (
            seen(e, "next_share", True),
            above(e, "visible_share", NO_MASK, NO_MASK_SOURCE),
        )
        finding = judge(disease, e, Severity.WARNING, needed, every_head=True)
        if finding is None and e.declared.causal:
            finding = looks_ahead(disease, e)
        if finding is not None:
            found.append(finding)
    return found


def looks_ahead(disease: Disease, e: Evidence) -> Finding | None:
    """A note where a module that declares itself causal sees some later token: a prefix, or a shifted mask."""
    both = seen(e, "next_share", True), seen(e, "previous_share", True)
    found = judge(disease, e, Severity.NOTE, both, every_head=True)
    if found is None:
        return None
    return found._replace(title="a causal layer sees some later tokens", explanation=AHEAD)


MISSING_MASK = Disease(
    name="missing-mask",
    title="the causal mask is missing",
    find=find,
    explanation=(
        "This layer belongs to a causal model and sees the tokens that it has to predict. The "
        "training loss gets very low, but what the model generates is worthless. In Hugging Face "
        "models a registered attention function gets no mask unless a mask function is registered "
        "under the same name."
    ),
    remedies=(
        Advice("mask", "is_causal=True, or AttentionMaskInterface.register(name, sdpa_mask)"),
    ),
)
