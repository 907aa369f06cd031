"""A verdict as JSON, complete and without NaN or infinities."""

from __future__ import annotations

import math
from typing import Any

from regard.choosing.training.verdict import SCHEMA, CandidateRow, Outcome, Verdict
from regard.choosing.training.words import recommendation
from regard.measuring.statistics import Estimate


def as_dict(verdict: Verdict) -> dict[str, Any]:
    """The verdict with all candidates, as fields for JSON."""
    return {
        "schema": SCHEMA,
        "outcome": verdict.outcome.name.lower(),
        "recommendation": [sentence.en for sentence in recommendation(verdict)],
        "decided": verdict.outcome is not Outcome.UNDECIDED,
        "seeds_to_decide": verdict.seeds_to_decide,
        "learned": verdict.learned,
        "guessing": None if verdict.chance is None else verdict.chance.value,
        "winner": verdict.winner,
        "runner_up": verdict.runner_up,
        "margin": interval(verdict.margin),
        "best_alternative_over_scaled_dot": interval(verdict.over_null),
        "cheapest_as_good": verdict.cheapest,
        "code": verdict.code,
        "metric": verdict.metric,
        "matters": verdict.matters,
        "seeds": verdict.seeds,
        "interrupted": verdict.interrupted,
        "candidates": [row_dict(row) for row in verdict.rows],
        **verdict.facts,
    }


def row_dict(row: CandidateRow) -> dict[str, Any]:
    """One candidate, as fields for JSON."""
    cost = row.cost
    return {
        "name": row.candidate.name,
        "label": row.candidate.label.en,
        "code": row.candidate.code,
        "status": row.status,
        "reason": row.reason or None,
        "rate": row.rate,
        "quality": {str(seed): value for seed, value in row.quality.items()},
        "searched": row.searched,
        "curve": row.curve,
        "step_seconds": None if cost is None else cost.seconds,
        "step_peak_bytes": None if cost is None else cost.memory,
        "parameters": None if cost is None else cost.parameters,
        "vitals": row.vitals or None,
    }


def interval(found: Estimate | None) -> list[float] | None:
    """Value, low and high; only the value if there is no interval."""
    return None if found is None else [x for x in found if math.isfinite(x)]
