"""Summaries of the claims for `regard choose`, read from `claims.json`.

`python -m regard.claims.report.summary RESULTS` writes the file from the registry of claims and the
committed run, so that `choosing` imports no experiment. A test compares the file with both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from regard.text import Text

FILE = "claims.json"


@dataclass(frozen=True)
class ClaimSummary:
    """One claim as a report shows it.

    Attributes:
        id: its id, as in docs/claims.md.
        statement: what is claimed.
        criterion: the criterion that decided, fixed before the run.
        meaning: what the outcome means for choosing a score.
        verdict: verdict of the committed run; None if it has none.
    """

    id: str
    statement: Text
    criterion: Text
    meaning: Text
    verdict: Text | None


@cache
def claim_summaries() -> dict[str, ClaimSummary]:
    """All claims by id, in the order of their ids."""
    text = resources.files("regard.choosing").joinpath(FILE).read_text(encoding="utf-8")
    return {
        name: ClaimSummary(
            name,
            Text(**found["statement"]),
            Text(**found["criterion"]),
            Text(**found["meaning"]),
            Text(**found["verdict"]) if found["verdict"] else None,
        )
        for name, found in json.loads(text)["claims"].items()
    }
