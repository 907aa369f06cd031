"""A whole layer that looks at one key which says something."""

from __future__ import annotations

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, above, each_site, judge
from regard.doctor.findings.sinks import FEW, says_something

ALMOST_ALL, ALMOST_ALL_SOURCE = 0.9, "ours: nine tenths of all weight of the layer"
MUCH, MUCH_SOURCE = 0.7, "ours: more than twice what all other keys add"
ALIKE, ALIKE_SOURCE = 0.99, "ours: all queries get the same but for 1%"


def rule(disease: Disease, e: Evidence) -> list[Finding | None]:
    """All heads on one key that matters, so that the layer adds the same everywhere.

    One head of several may well have learnt to tell everybody what one token says.
    """
    if e.fewer_than(FEW) or e.heads < 2:
        return []
    needed = (
        above(e, "sink_weight", ALMOST_ALL, ALMOST_ALL_SOURCE),
        above(e, "sink_output", MUCH, MUCH_SOURCE),
        above(e, "output_alike", ALIKE, ALIKE_SOURCE),
    )
    # Where all values are alike every output is.
    only = ~(e.now("value_alike") > ALIKE) & says_something(e)
    return [judge(disease, e, Severity.WARNING, needed, only=only, every_head=True)]


MALIGNANT_SINK = Disease(
    name="malignant-sink",
    title="a whole layer looks at one key",
    find=each_site(rule),
    explanation=(
        "All heads of this layer give nearly all their weight to one key, whose value is no smaller "
        "than others. The layer adds the same vector to every token, and no information "
        "passes between tokens. The usual causes are a bias on the logits and a component that all "
        "queries share."
    ),
    remedies=(
        Advice("bias-clip", "no key that wins by a bias alone"),
        Advice("qk-norm", "no shared component large enough to hide the rest"),
        Advice("temperature", "softer weights that a gradient can move"),
        Advice("swap-score", "a score without the bias"),
    ),
    causes=("dead-softmax", "dead-gradient", "no-op-sink", "identical-heads"),
)
