"""Malignant sink: a whole layer attends to one key, whose value is not small."""

from __future__ import annotations

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, above, each_site, judge
from regard.doctor.findings.sinks import FEW, says_something

ALMOST_ALL, ALMOST_ALL_SOURCE = 0.9, "ours: nine tenths of all weight of the layer"
MUCH, MUCH_SOURCE = 0.7, "ours: more than twice what all other keys add"
ALIKE, ALIKE_SOURCE = 0.99, "ours: all queries get the same, up to 1%"


def rule(disease: Disease, e: Evidence) -> list[Finding | None]:
    """A finding where all heads attend to one key that matters, so all tokens get the same.

    A single head does not count: it may have learnt to copy one token to all others.
    """
    if e.fewer_than(FEW) or e.heads < 2:
        return []
    needed = (
        above(e, "sink_weight", ALMOST_ALL, ALMOST_ALL_SOURCE),
        above(e, "sink_output", MUCH, MUCH_SOURCE),
        above(e, "output_alike", ALIKE, ALIKE_SOURCE),
    )
    # Where all values are alike, all outputs are too, whatever the weights.
    only = ~(e.now("value_alike") > ALIKE) & says_something(e)
    return [judge(disease, e, Severity.WARNING, needed, only=only, every_head=True)]


MALIGNANT_SINK = Disease(
    name="malignant-sink",
    title="a whole layer looks at one key",
    find=each_site(rule),
    explanation=(
        "All heads of this layer give nearly all their weight to one key, and its value is not "
        "small. The layer adds almost the same vector to every token, and other tokens cannot pass "
        "on information. The usual causes are a bias on the logits and a component that all "
        "queries share."
    ),
    remedies=(
        Advice("bias-clip", "no key that wins by its bias alone"),
        Advice("qk-norm", "no shared component large enough to hide the rest"),
        Advice("temperature", "softer weights that a gradient can move"),
        Advice("swap-score", "a score without the bias"),
    ),
    causes=("dead-softmax", "dead-gradient", "no-op-sink", "identical-heads"),
)
