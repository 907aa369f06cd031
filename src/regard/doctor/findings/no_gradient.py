"""No gradient: queries and keys are cut off from the loss."""

from __future__ import annotations

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, Sign, constant, each_site, judge

# On these routes the gradients of query, key and value are all read, or none is.
ROUTES = ("sdpa", "flex", "regard")
SOURCE = "ours: the values get a gradient in every step"
# The names of these signals begin with this.
GETS = "steps with "

RECONNECT = Advice("reconnect", "a gradient in spite of a detach or no_grad in this module")
THAW = Advice("thaw", "a gradient where weights of this module were frozen")
BY_HAND = Advice("gradient", "remove what cuts them off from the code")


def rule(disease: Disease, e: Evidence) -> list[Finding | None]:
    """A finding where values get a gradient, and queries and keys do not; a note if frozen."""
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
        "In backward the values of this layer get a gradient and its queries and keys get none, so "
        "the layer never learns what to attend to. The usual causes are detach or no_grad in the "
        "forward pass, and frozen weights. .data and inference_mode have the same effect, and no "
        "remedy can undo them: remove them from the code."
    ),
    remedies=(RECONNECT, THAW, BY_HAND),
)
