"""Collapsed positions: tokens differ in their position and in almost nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from regard.doctor.findings.evidence import Evidence, sequences_differ
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, above, judge

SWAMPED = 0.95
SWAMPED_SOURCE = "ours: never both above 0.6 in healthy models, fresh and trained"

# Sinusoids of amplitude 1 have 0.7. Beside them a fresh Whisper, whose convolutions start at 0.02,
# has almost no content, and learns to have some.
USUAL = 1.0
FRESH = (
    "Here the positions are no larger than usual. In an untrained model this passes with training."
)


def find(disease: Disease, sites: Sequence[Evidence]) -> list[Finding]:
    """Findings at the first site and at later ones, where weights and values are both swamped.

    All heads must show it: a single head may have learnt to follow positions. The values must show
    it too: a bias on the logits affects the weights alone.
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
            # Positions are added to the input, so the first site must show it. Learned queries,
            # which are also the same in every sequence, come in at later sites.
            return []
    return found


COLLAPSED_POSITIONS = Disease(
    name="collapsed-positions",
    title="positions swamp the content",
    find=find,
    explanation=(
        "Tokens differ in almost nothing but their position: the weights and the values are the "
        "same in every sequence of the batch. The positions added to the embeddings are many times "
        "as large as the embeddings and drown out the content."
    ),
    remedies=(
        Advice("positions", "positions as large as the embeddings: a third of the variance"),
    ),
    causes=("rank-collapse",),
)
