"""Which places queries see, as far as the vitals show it."""

from __future__ import annotations

import re

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.signs import Sign, known

SEEN = "ours: whether any query sees that place"
# The names of signals about visibility end in this.
VISIBLE = ": visible"


def is_square(e: Evidence) -> bool:
    """Whether queries and keys can be the same tokens, at least 3 of them."""
    return e.facts is not None and e.facts.queries == e.facts.keys > 2


def seen(e: Evidence, vital: str, wanted: bool) -> Sign:
    """The sign that some query sees a place; with `wanted` False, that no query does."""
    return Sign(f"{vital}{VISIBLE}", known(e.of(vital), e), 0.5, wanted, SEEN)


def kind_of(e: Evidence) -> str:
    """The name of a site without its numbers, which is the same for all layers of a stack."""
    return re.sub(r"\d+", "{}", e.name)


def looks_back(e: Evidence) -> bool:
    """Whether no query ever sees the next place, and queries do see the previous one."""
    ahead, back = known(e.of("next_share"), e), known(e.of("previous_share"), e)
    measured = ~ahead.isnan()
    return bool(measured.any() and (ahead[measured] == 0).all() and (back[measured] > 0).all())
