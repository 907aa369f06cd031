"""Positions that swamp what is said."""

from __future__ import annotations

from collections.abc import Sequence

from regard.doctor.findings.evidence import Evidence, sequences_differ
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, above, judge

SWAMPED = 0.95
SWAMPED_SOURCE = "ours: never both above 0.6 in healthy models, fresh and trained"

# Sinusoids of amplitude 1 have 0.7. Beside them a fresh Whisper, whose convolutions start at 0.02, has
# next to no content, and learns to have some.
USUAL = 1.0
FRESH = (
    "Here they are no larger than usual: in a model that is not trained yet it passes as it learns."
)


def find(disease: Disease, sites: Sequence[Evidence]) -> list[Finding]:
    """From the input on, in all heads: single ones learn to follow places.

    A bias on the logits leaves the values alone. Learned queries, which are the same in every
    sequence too, come in later.
    """
    if not sequences_differ(sites):
        return []
    found: list[Finding] = []
    for e in sites:
        needed = (
            above(e, "place_share", SWAMPED, SWAMPED_SOURCE),
            above(e, "value_place", SWAMPED, SWAMPED_SOURCE),
        )
        size = e.declared.position_size
        usual = size is not None and size <= USUAL
        severity = Severity.NOTE if usual else Severity.WARNING
        finding = judge(disease, e, severity, needed, every_head=True)
        if finding is not None:
            more = f"{finding.explanation} {FRESH}" if usual else finding.explanation
            found.append(finding._replace(explanation=more))
        elif e is sites[0]:
            return []
    return found


COLLAPSED_POSITIONS = Disease(
    name="collapsed-positions",
    title="positions swamp the content",
    find=find,
    explanation=(
        "Tokens differ by almost nothing but their position: every sequence of the batch is attended "
        "to in the same way, and has the same values. The positions that are added are "
        "many times as large as the embeddings, so that the content is lost in them."
    ),
    remedies=(
        Advice("positions", "positions as large as the embeddings: a third of the variance"),
    ),
    causes=("rank-collapse",),
)
