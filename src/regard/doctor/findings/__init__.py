"""Findings: what is wrong with the attention of a model, where, since when, and what helps.

One file for each disease belongs here: its thresholds with their sources, a rule that turns numbers
into findings by at least two signs, and its texts. Measurements are in `vitals`, treatments in
`remedies`. A new disease needs its file and its line in `DISEASES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.doctor.findings.broken_numbers import BROKEN_NUMBERS
from regard.doctor.findings.collapsed_entropy import COLLAPSED_ENTROPY
from regard.doctor.findings.collapsed_positions import COLLAPSED_POSITIONS
from regard.doctor.findings.dead_gradient import DEAD_GRADIENT
from regard.doctor.findings.dead_softmax import DEAD_SOFTMAX
from regard.doctor.findings.evidence import Declared, Evidence, evidence
from regard.doctor.findings.finding import Advice, Finding, Severity, Signal
from regard.doctor.findings.growing_logits import GROWING
from regard.doctor.findings.identical_heads import IDENTICAL_HEADS
from regard.doctor.findings.inverted_mask import INVERTED_MASK
from regard.doctor.findings.key_norm_hijack import HIJACK
from regard.doctor.findings.large_logits import LARGE_LOGITS
from regard.doctor.findings.malignant_sink import MALIGNANT_SINK
from regard.doctor.findings.masked_rows import MASKED_ROWS
from regard.doctor.findings.missing_mask import MISSING_MASK
from regard.doctor.findings.no_gradient import NO_GRADIENT
from regard.doctor.findings.no_op_sink import NO_OP_SINK
from regard.doctor.findings.rank_collapse import RANK_COLLAPSE
from regard.doctor.findings.saturated_tanh import SATURATED_TANH
from regard.doctor.findings.signs import Disease, Sign
from regard.doctor.findings.unscaled_logits import UNSCALED
from regard.doctor.findings.washed_out_positions import WASHED_OUT

if TYPE_CHECKING:
    from regard.doctor.watch import Doctor

__all__ = [
    "DISEASES",
    "Advice",
    "Declared",
    "Disease",
    "Evidence",
    "Finding",
    "Severity",
    "Sign",
    "Signal",
    "diagnose",
    "evidence",
    "findings_of",
]

# Findings of the same severity, site and confidence are reported in this order.
DISEASES: tuple[Disease, ...] = (
    BROKEN_NUMBERS,
    MASKED_ROWS,
    INVERTED_MASK,
    MISSING_MASK,
    UNSCALED,
    GROWING,
    LARGE_LOGITS,
    HIJACK,
    COLLAPSED_ENTROPY,
    DEAD_SOFTMAX,
    SATURATED_TANH,
    DEAD_GRADIENT,
    NO_GRADIENT,
    IDENTICAL_HEADS,
    WASHED_OUT,
    COLLAPSED_POSITIONS,
    RANK_COLLAPSE,
    MALIGNANT_SINK,
    NO_OP_SINK,
)


def diagnose(doctor: Doctor) -> list[Finding]:
    """The findings for the model that the doctor has watched, the worst first."""
    return findings_of(evidence(doctor))


def findings_of(sites: Sequence[Evidence]) -> list[Finding]:
    """The findings for sites that are given in the order of the forward pass, the worst first."""
    sites = [e for e in sites if e.steps and e.heads]
    found = [finding for disease in DISEASES for finding in disease.find(disease, sites)]
    order = {e.name: place for place, e in enumerate(sites)}
    return sorted(
        merged(without_consequences(found)),
        key=lambda x: (-x.severity, order[x.site], -x.confidence),
    )


def without_consequences(found: Sequence[Finding]) -> list[Finding]:
    """The findings that no other finding explains in all their heads; see `raised`."""
    kept = []
    for finding in found:
        causes = [x for x in found if explains(x, finding)]
        # A finding stays if one of its heads has no cause among the others.
        if set(finding.heads) <= {head for x in causes for head in x.heads}:
            continue
        kept.append(raised(finding, [x for x in found if explains(finding, x)]))
    return kept


def raised(finding: Finding, consequences: Sequence[Finding]) -> Finding:
    """The finding with the severity and signals of its worst consequence, if that is worse."""
    worst = max(consequences, key=lambda x: x.severity, default=finding)
    if worst.severity <= finding.severity:
        return finding
    signals = {x.vital: x for x in (*finding.signals, *worst.signals)}
    return finding._replace(
        severity=worst.severity,
        signals=tuple(signals.values()),
        explanation=(
            f"{finding.explanation} It is rated this severe because of a consequence: "
            f"{worst.title}."
        ),
    )


def merged(found: Sequence[Finding]) -> list[Finding]:
    """The findings, with those of the same disease, site and severity merged into one."""
    kept: dict[tuple[str, str, Severity], Finding] = {}
    for finding in found:
        key = (finding.disease, finding.site, finding.severity)
        if key not in kept:
            kept[key] = finding
            continue
        first = kept[key]
        kept[key] = first._replace(
            heads=tuple(sorted({*first.heads, *finding.heads})),
            since=min(first.since, finding.since),
            confidence=max(first.confidence, finding.confidence),
        )
    return list(kept.values())


def explains(cause: Finding, other: Finding) -> bool:
    """Whether one finding is the cause of another in some of its heads; a note never is."""
    return (
        cause.site == other.site
        and cause.severity > Severity.NOTE
        and other.disease in CAUSES[cause.disease]
        and not set(other.heads).isdisjoint(cause.heads)
    )


CAUSES = {disease.name: disease.causes for disease in DISEASES}
