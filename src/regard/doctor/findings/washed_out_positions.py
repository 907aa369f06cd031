"""Washed-out positions: the embeddings drown out the positions added to them."""

from __future__ import annotations

from collections.abc import Sequence

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, Sign, constant, judge

# Beside embeddings of unit variance, sinusoids make up a third of the variance, and 0.16 after
# removing what all places have in common. At 2% the words are seven times as loud.
WASHED = 0.02
WASHED_SOURCE = "ours: 0.15 to 0.5 where positions are added to embeddings of unit variance"
# The estimate has a standard error of sqrt(2 / n): 0.016 for this n.
LEAST_NUMBERS = 8000
MOST_KEYS = 64  # `value_place` reads the values of at most so many keys
# Learned positions of this size or more are no fresh ones (std 0.02 or so, or zero): then what is added to
# them is too loud. Smaller ones may grow, and so many measured steps must have passed without.
GROWN, PATIENCE = 0.5, 8
LOUD_WORDS = (
    "Here the positions are learned, and as large as they usually get: the embeddings are too loud."
)
MAY_GROW = (
    "Here the positions are learned and small, so they may still grow; in these steps they did not."
)


def find(disease: Disease, sites: Sequence[Evidence]) -> list[Finding]:
    """A finding at the first layer of a model that adds positions; a note where these may still grow."""
    for e in sites:
        facts = e.facts
        if facts is None or facts.queries != facts.keys or facts.batch < 2:
            continue
        size = e.declared.position_size
        if numbers(e) < LEAST_NUMBERS or not (e.declared.fixed_positions or size):
            return []
        signs = [
            Sign(name, constant(e, e.of(name).nanmean()), WASHED, False, WASHED_SOURCE)
            for name in ("value_place", "place_share")
        ]
        if e.declared.fixed_positions:
            found = judge(disease, e, Severity.WARNING, signs, every_head=True)
            return [] if found is None else [found]
        grown = size is not None and size >= GROWN
        if not grown and measured(e) < PATIENCE:
            return []
        severity = Severity.WARNING if grown else Severity.NOTE
        found = judge(disease, e, severity, signs, every_head=True)
        if found is None:
            return []
        more = LOUD_WORDS if grown else MAY_GROW
        return [found._replace(explanation=f"{found.explanation} {more}")]
    return []


def measured(e: Evidence) -> int:
    """In how many steps it was measured what places explain."""
    return int((~e.of("value_place").isnan()).any(1).sum())


def numbers(e: Evidence) -> int:
    """How many independent numbers `value_place` rests on, over all heads and steps."""
    assert e.facts is not None
    width = e.heads * (e.facts.dims or 1)
    return measured(e) * width * (e.facts.batch - 1) * min(e.facts.keys, MOST_KEYS)


WASHED_OUT = Disease(
    name="washed-out-positions",
    title="positions are washed out",
    find=find,
    explanation=(
        "Positions are added to the embeddings, but the embeddings are many times as large, and "
        "almost nothing of the positions reaches the first attention layer. The model then treats "
        "a sentence as a bag of words. The usual cause is a factor of sqrt(d) on embeddings that "
        "already have unit variance."
    ),
    remedies=(
        Advice("positions", "positions as large as the embeddings: a third of the variance"),
    ),
)
