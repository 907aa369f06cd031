"""A sink that takes the weight and says nothing: a way to be silent, and no disease."""

from __future__ import annotations

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, above, below, each_site, judge
from regard.doctor.findings.sinks import FEW, MOST, MOST_SOURCE, SHORT, SHORT_SOURCE

LITTLE, LITTLE_SOURCE = 0.3, "ours: less than half of what all other keys add"


def rule(disease: Disease, e: Evidence) -> list[Finding | None]:
    """Much weight on a short value."""
    if e.fewer_than(FEW):
        return []
    needed = (
        above(e, "sink_weight", MOST, MOST_SOURCE),
        below(e, "sink_value", SHORT, SHORT_SOURCE),
    )
    also = (below(e, "sink_output", LITTLE, LITTLE_SOURCE),)
    return [judge(disease, e, Severity.NOTE, needed, also)]


NO_OP_SINK = Disease(
    name="no-op-sink",
    title="a sink, which is no disease",
    find=each_site(rule),
    explanation=(
        "Most of the weight goes to one key, often the first or a separator, whose value adds "
        "little. In this way a head adds almost nothing where it finds nothing relevant. If you drop "
        "keys from a cache, keep this one."
    ),
    remedies=(Advice("swap-score", "a learned sink takes this weight, and no key has to"),),
)
