"""Saturated tanh: most hidden units of an additive score are where tanh is flat."""

from __future__ import annotations

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, Grade, Sign, above, below, each_site, graded
from regard.doctor.vitals.table import SeenForm

# For unit-variance projections, a fifth of the hidden units have less than a tenth of the full
# slope.
HALF, MOST = 0.5, 0.8
SHARE_SOURCE = "ours: 0.2 for unit-variance projections, 0.25 to 0.35 in trained healthy models"
# Root mean square of the sum of both projections: 1.4 for unit variance. At 2.7, half of a normal
# distribution lies beyond |x| = 1.82, where the slope is 0.1.
SIZE, SIZE_SOURCE = 2.5, "ours: 1.4 for unit-variance projections"
SLOPE, SLOPE_SOURCE = 0.25, "ours: 0.5 for unit-variance projections"


def rule(disease: Disease, e: Evidence) -> list[Finding]:
    """Findings from the share of saturated units and from the size of their inputs."""
    if e.facts is None or not e.facts.dims:
        return []
    inside = (e.of("query_norm").square() + e.of("key_norm").square()) / e.facts.dims
    size = Sign("input of tanh, rms", inside.sqrt(), SIZE, True, SIZE_SOURCE)
    slope = below(e, "tanh_slope", SLOPE, SLOPE_SOURCE)
    if (
        e.facts.kind is SeenForm.LOGITS
    ):  # of a score that is written out the sum in tanh is not known
        return graded(disease, e, *(Grade(x, (share, slope)) for x, share in grades(e)))
    most, half = grades(e)
    return graded(
        disease,
        e,
        Grade(most[0], (most[1], size), (slope,)),
        Grade(half[0], (half[1], size), (slope,)),
    )


def grades(e: Evidence) -> tuple[tuple[Severity, Sign], tuple[Severity, Sign]]:
    """The severities and their shares of saturated units, the worse first."""
    most, half = (above(e, "tanh_saturated", x, SHARE_SOURCE) for x in (MOST, HALF))
    return (Severity.FAILURE, most), (Severity.WARNING, half)


SATURATED_TANH = Disease(
    name="saturated-tanh",
    title="tanh of the additive score is saturated",
    find=each_site(rule),
    explanation=(
        "Most hidden units of the additive score are close to +1 or -1, where tanh is flat. The "
        "score then depends on signs alone, and hardly any gradient reaches the projections. The "
        "projections or their inputs have become too large."
    ),
    remedies=(
        Advice("shrink-tanh", "inputs of tanh back to unit size, slopes of about 0.5"),
        Advice("swap-score", "a score without tanh"),
    ),
    causes=("dead-gradient",),
)
