"""Findings of broken laws, of the same kind as those of the vitals."""

from __future__ import annotations

from collections.abc import Sequence

from regard.doctor.findings.calibration import LAW_COUNTS, share
from regard.doctor.findings.finding import Advice, Finding, Severity, Signal
from regard.doctor.laws.law import NOISE_SOURCE, Law

NOT_ATTENTION = (
    "The change enters at no attention call. Expert capacity, convolutions, normalisation over tokens or "
    "samples and contrastive losses do this on purpose, so this is a note."
)


def finding_of(
    law: Law,
    site: str,
    explanation: str,
    advice: Sequence[str],
    *,
    moved: float,
    allowed: float,
    what: str = "forbidden change",
    source: str = NOISE_SOURCE,
    severity: Severity = Severity.FAILURE,
    title: str = "",
    above: bool = True,
) -> Finding:
    """A finding; `advice` is what usually causes it, the likeliest first, as what to do."""
    return Finding(
        disease=law.name,
        title=title or f"broken law: {law.title}",
        severity=severity,
        site=site,
        heads=(),
        since=0,
        signals=(Signal(what, moved, allowed, above, source),),
        confidence=share(*LAW_COUNTS),
        explanation=explanation,
        remedies=tuple(Advice("by hand", text) for text in advice),
    )
