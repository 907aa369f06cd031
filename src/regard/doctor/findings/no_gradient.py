"""Queries and keys that are cut off from the loss."""

from __future__ import annotations

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, Sign, constant, each_site, judge

# They read gradients of all three sides, or of none.
ROUTES = ("sdpa", "flex", "regard")
SOURCE = "ours: the values get one in every step"
# How the names of its signals begin.
GETS = "steps with "

RECONNECT = Advice("reconnect", "a gradient in spite of a detach or no_grad in this module")
THAW = Advice("thaw", "a gradient where weights of this module were frozen")
BY_HAND = Advice("gradient", "take what cuts them off out of the code")


def rule(disease: Disease, e: Evidence) -> list[Finding | None]:
    """Values learn, and neither query nor key does: cut off, or frozen on purpose."""
    if e.route not in ROUTES:
        return []
    learns = ~e.of("value_grad").isnan()
    steps = constant(e, learns.sum(0).to(e.values.dtype))
    needed = [Sign(f"{GETS}value_grad", steps, 0.5, True, SOURCE)]
    for side in ("query_grad", "key_grad"):
        count = constant(e, (~e.of(side).isnan()).sum(0).to(e.values.dtype))
        needed.append(Sign(f"{GETS}{side}", count, 0.5, False, SOURCE))
    severity = Severity.NOTE if e.declared.frozen else Severity.WARNING
    found = judge(disease, e, severity, needed)
    if found is not None and e.declared.frozen:
        found = found._replace(remedies=(THAW, RECONNECT, BY_HAND))
    return [found]


NO_GRADIENT = Disease(
    name="no-gradient",
    title="queries and keys are cut off from the loss",
    find=each_site(rule),
    explanation=(
        "In backward a gradient arrives at the values of this layer and none at its queries and "
        "keys, so the layer never learns what to attend to. The usual causes are detach or no_grad in "
        "the forward pass and frozen weights. .data and inference_mode do the same, and no remedy "
        "can undo them: take them out of the code."
    ),
    remedies=(RECONNECT, THAW, BY_HAND),
)
