"""No-op sink: one key takes most of the weight and adds little to the output. Not a disease."""

from __future__ import annotations

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, above, below, each_site, judge
from regard.doctor.findings.sinks import FEW, MOST, MOST_SOURCE, SHORT, SHORT_SOURCE

LITTLE, LITTLE_SOURCE = 0.3, "ours: less than half of what all other keys add"


def rule(disease: Disease, e: Evidence) -> list[Finding | None]:
    """A note where one key takes most of the weight and its value is short."""
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
    title="a sink that adds little, not a disease",
    find=each_site(rule),
    explanation=(
        "Most of the weight goes to one key, often the first or a separator, whose value adds "
        "little. This is how a head adds almost nothing where it finds nothing relevant. If you "
        "drop keys from a cache, keep this one."
    ),
    remedies=(Advice("swap-score", "a learned sink that takes this weight in place of a key"),),
)
