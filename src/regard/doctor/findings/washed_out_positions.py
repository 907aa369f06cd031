"""Positions that are washed out by what is said."""

from __future__ import annotations

from collections.abc import Sequence

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, Sign, constant, judge

# Sinusoids beside embeddings of unit variance make a third of the variance, 0.16 after what all
# places have in common; at 2% words are seven times as loud.
WASHED = 0.02
WASHED_SOURCE = "ours: 0.15 to 0.5 where positions are added to embeddings of unit variance"
# The estimate scatters by sqrt(2 / n) with n as below: 0.016.
LEAST_NUMBERS = 8000
MOST_KEYS = 64


def find(disease: Disease, sites: Sequence[Evidence]) -> list[Finding]:
    """In the first layer, of a model that adds positions which cannot learn to be louder."""
    for e in sites:
        facts = e.facts
        if facts is None or facts.queries != facts.keys or facts.batch < 2:
            continue
        if not e.declared.fixed_positions or numbers(e) < LEAST_NUMBERS:
            return []
        signs = [
            Sign(name, constant(e, e.of(name).nanmean()), WASHED, False, WASHED_SOURCE)
            for name in ("value_place", "place_share")
        ]
        found = judge(disease, e, Severity.WARNING, signs, every_head=True)
        return [] if found is None else [found]
    return []


def numbers(e: Evidence) -> int:
    """How many independent numbers `value_place` of all heads and steps rests on."""
    assert e.facts is not None
    steps = int((~e.of("value_place").isnan()).any(1).sum())
    width = e.heads * (e.facts.dims or 1)
    return steps * width * (e.facts.batch - 1) * min(e.facts.keys, MOST_KEYS)


WASHED_OUT = Disease(
    name="washed-out-positions",
    title="positions are washed out",
    find=find,
    explanation=(
        "Positions are added to the embeddings, but the embeddings are many times as large, and the first "
        "attention layer gets almost nothing of the positions. The model then treats a sentence as a "
        "bag of words. The usual cause is a factor of sqrt(d) on embeddings that already have unit "
        "variance."
    ),
    remedies=(
        Advice("positions", "positions as large as the embeddings: a third of the variance"),
    ),
)
