"""Inverted mask: queries see exactly what they should not see."""

from __future__ import annotations

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.seeing import is_square, seen
from regard.doctor.findings.signs import Disease, above, below, each_site, judge

# A batch is usually padded to its longest sequence, which then has no padding.
LONGEST = "ours: one sequence of the batch has no padding"


def rule(disease: Disease, e: Evidence) -> list[Finding | None]:
    """A finding where queries see only later tokens, or only padding."""
    if not is_square(e):
        return []
    facts = e.facts
    assert facts is not None
    ahead, back = seen(e, "next_share", True), seen(e, "previous_share", False)
    only_future = (ahead, back, seen(e, "own_share", False))
    found = judge(disease, e, Severity.WARNING, only_future, every_head=True)
    if found is not None or facts.batch < 2:
        return [found]
    # Under an inverted padding mask, sequences without padding see nothing and the others see only
    # their padding. So the rows that see nothing make up a whole number of sequences.
    whole = e.now("masked_rows") * facts.batch
    only = (whole > 0.5) & ((whole - whole.round()).abs() < 1e-3)
    empty = above(e, "masked_rows", 0.0, LONGEST)
    both_ways = (ahead, seen(e, "previous_share", True))
    # Padding is mostly at the end: then no query sees the first token. Padding elsewhere counts
    # where there is so little that few keys are visible.
    unseen = (
        seen(e, "first_share", False),
        below(e, "visible_share", 1 / facts.batch, LONGEST),
    )
    signs = [(empty, sign, *both_ways) for sign in unseen]
    found = [judge(disease, e, Severity.WARNING, x, only=only, every_head=True) for x in signs]
    return [next((x for x in found if x is not None), None)]


INVERTED_MASK = Disease(
    name="inverted-mask",
    title="the mask is the wrong way round",
    find=each_site(rule),
    explanation=(
        "Queries see exactly what they should not: only the tokens after them, or only padding. In "
        "nn.MultiheadAttention True means hidden, in scaled_dot_product_attention True means "
        "visible. The usual cause is a mask written for one and given to the other."
    ),
    remedies=(Advice("mask", "invert the mask: ~mask"),),
    causes=("masked-rows", "rank-collapse"),
)
