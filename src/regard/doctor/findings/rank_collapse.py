"""Rank collapse: all tokens have become alike."""

from __future__ import annotations

from collections.abc import Sequence

from regard.doctor.findings.evidence import Evidence, tokens_differ
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, above, judge

ALIKE, ALIKE_SOURCE = 0.99, "ours: below 0.7 in healthy fresh and trained models"
OUTPUT, OUTPUT_SOURCE = (
    0.99,
    "ours; uniform weights alone reach it too, so it counts with the values",
)
UNIFORM, UNIFORM_SOURCE = (
    0.999,
    "equal keys get equal weights; rank decays doubly exponentially with depth (arXiv 2103.03404)",
)
FEW = 4  # fewer queries or keys can be alike by chance


def find(disease: Disease, sites: Sequence[Evidence]) -> list[Finding]:
    """Findings where values, keys and outputs are all alike, though the inputs differ."""
    if not tokens_differ(sites):
        return []
    found = []
    for e in sites[1:]:
        if e.fewer_than(FEW):
            continue
        needed = (
            above(e, "value_alike", ALIKE, ALIKE_SOURCE),
            above(e, "output_alike", OUTPUT, OUTPUT_SOURCE),
            above(e, "entropy", UNIFORM, UNIFORM_SOURCE),
        )
        found.append(judge(disease, e, Severity.WARNING, needed, every_head=True))
    return [finding for finding in found if finding is not None]


RANK_COLLAPSE = Disease(
    name="rank-collapse",
    title="all tokens have become alike",
    find=find,
    explanation=(
        "Keys, values and outputs of all tokens agree to within one percent: there is nothing left "
        "to attend to. Attention averages tokens. Many layers without residual connections, or "
        "with weak ones, average all differences away."
    ),
    remedies=(
        Advice("residual", "a residual connection around attention, or larger weights on it"),
        Advice("contrast", "larger differences between values, as far as any are left"),
    ),
    causes=("dead-gradient",),
)
