"""Dead softmax: so hard that no gradient passes through it."""

from __future__ import annotations

from regard.doctor.findings.evidence import GRADIENT_SHARE, Evidence, gradient_share
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, Sign, above, below, each_site, judge

# For uniform weights over n keys the Jacobian's norm is about 1 / sqrt(n), which is small for many
# keys too. So it counts only together with the largest weight.
SLOPE, SLOPE_SOURCE = 2e-3, "ours: 0.09 for unscaled logits at d = 1024, which still learn slowly"
ONE, ONE_SOURCE = 0.99, "ours: all other keys together get less than 1%"
# Some initialisations set the values to zero, which gives no gradient in the first step.
LASTING = 2
REACHES, REACHES_SOURCE = 1e-3, "ours: 0.007 to 50 in healthy models, fresh and trained"


def rule(disease: Disease, e: Evidence) -> list[Finding | None]:
    """A warning for a whole layer; a note for single heads, which mostly learnt to be this hard."""
    if e.facts is not None and e.facts.keys < 2:
        return []
    needed = (
        below(e, "jacobian", SLOPE, SLOPE_SOURCE),
        above(e, "max_weight", ONE, ONE_SOURCE),
        Sign(GRADIENT_SHARE, gradient_share(e.of), REACHES, False, REACHES_SOURCE),
    )
    found = judge(disease, e, Severity.WARNING, needed, every_head=True, lasting=LASTING)
    return [found or judge(disease, e, Severity.NOTE, needed)]


DEAD_SOFTMAX = Disease(
    name="dead-softmax",
    title="softmax is so hard that nothing can be learnt through it",
    find=each_site(rule),
    explanation=(
        "Every query of these heads gives one key nearly all of its weight, where the slope of "
        "softmax is almost zero. Queries and keys get almost no gradient any more, while the "
        "values still do: what these heads attend to can no longer change."
    ),
    remedies=(
        Advice("temperature", "softer weights, and a slope that gradients can use"),
        Advice("qk-norm", "logits bounded whatever the weights do"),
        Advice("cosine", "logits bounded by a learned temperature"),
    ),
    causes=("dead-gradient",),
)
