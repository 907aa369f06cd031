"""Who sees whom, as far as the vitals show it."""

from __future__ import annotations

import re

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.signs import Sign, known

SEEN = "ours: whether any query sees that place"
# How the names of its signals end.
VISIBLE = ": visible"


def is_square(e: Evidence) -> bool:
    """Whether queries and keys can be the same tokens, and there are enough to tell."""
    return e.facts is not None and e.facts.queries == e.facts.keys > 2


def seen(e: Evidence, vital: str, wanted: bool) -> Sign:
    """Whether any query sees a place."""
    return Sign(f"{vital}{VISIBLE}", known(e.of(vital), e), 0.5, wanted, SEEN)


def kind_of(e: Evidence) -> str:
    """The name of a site without its numbers: layers of one stack have the same."""
    return re.sub(r"\d+", "{}", e.name)


def looks_back(e: Evidence) -> bool:
    """Whether no query ever sees the place ahead of it."""
    ahead, back = known(e.of("next_share"), e), known(e.of("previous_share"), e)
    measured = ~ahead.isnan()
    return bool(measured.any() and (ahead[measured] == 0).all() and (back[measured] > 0).all())
