"""A verdict as JSON, complete and without NaN or infinities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from regard.choosing.training.phrases import parameters
from regard.choosing.training.rows import BaselineRow, CandidateRow, Outcome
from regard.choosing.training.verdict import SCHEMA, Verdict
from regard.choosing.training.words import recommendation
from regard.measuring.statistics import Estimate


def as_dict(verdict: Verdict) -> dict[str, Any]:
    """The verdict with all candidates, as fields for JSON."""
    needs = verdict.needs
    return {
        "schema": SCHEMA,
        "outcome": verdict.outcome.name.lower(),
        "recommendation": [sentence.en for sentence in recommendation(verdict)],
        "notes": [note.en for note in verdict.facts.get("notes", [])],
        "decided": verdict.outcome is not Outcome.UNDECIDED,
        "seeds_to_decide": needs.seeds,
        "test_rows_to_decide": needs.rows,
        "learned": verdict.learned,
        "guessing": None if verdict.chance is None else verdict.chance.value,
        "shuffled_targets": verdict.control,
        "winner": verdict.winner if verdict.recommended else None,
        "runner_up": verdict.runner_up,
        "margin": interval(verdict.margin),
        "best_alternative_over_scaled_dot": interval(verdict.over_null),
        "cheapest_as_good": verdict.cheapest if verdict.recommended else None,
        "code": verdict.code if verdict.recommended else None,
        "metric": verdict.metric,
        "matters": verdict.matters,
        "seeds": verdict.seeds,
        "interrupted": verdict.interrupted,
        "candidates": [row_dict(verdict, row) for row in verdict.rows],
        "without_attention": [baseline_dict(row) for row in verdict.baselines],
        "beats_without_attention": verdict.beats_baselines if verdict.baselines else None,
        **{name: fact for name, fact in verdict.facts.items() if name != "notes"},
    }


def row_dict(verdict: Verdict, row: CandidateRow) -> dict[str, Any]:
    """One candidate, as fields for JSON."""
    cost, null, odd = row.cost, verdict.null_of(row), row.outlying(verdict.matters)
    return {
        "name": row.candidate.name,
        "label": row.candidate.label.en,
        "code": row.candidate.code,
        "status": row.status,
        "reason": row.reason or None,
        "rate": row.rate,
        "rate_at_edge": row.at_edge,
        "quality": by_seed(row.quality),
        "interval": interval(row.mean()) if row.quality else None,
        "compared_with": None if null is None else null.candidate.name,
        "ahead": interval(verdict.over(row)),
        "outlying_seeds": by_seed(odd) or None,
        "extras": row.extra_means() or None,
        "searched": row.searched,
        "curve": row.curve,
        "step_seconds": None if cost is None else cost.seconds,
        "step_peak_bytes": None if cost is None else cost.memory,
        "parameters": parameters(row),
        "vitals": row.vitals or None,
    }


def baseline_dict(row: BaselineRow) -> dict[str, Any]:
    """One model without attention, as fields for JSON."""
    return {
        "label": row.name.en,
        "quality": by_seed(row.quality),
        "interval": interval(row.mean()) if row.quality else None,
        "seconds": row.seconds,
    }


def by_seed(values: Mapping[int, float]) -> dict[str, float]:
    """Values by seed, with keys that JSON can hold."""
    return {str(seed): value for seed, value in values.items()}


def interval(found: Estimate | None) -> list[float] | None:
    """Value, low and high; only the value if there is no interval."""
    return None if found is None else [x for x in found if math.isfinite(x)]
