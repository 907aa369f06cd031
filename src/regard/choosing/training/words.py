"""A verdict in words, as a table in plain text, and as JSON."""

from __future__ import annotations

import math
from typing import Any

from regard.choosing.training.verdict import SCHEMA, Outcome, Row, Verdict
from regard.claims.tools.statistics import Estimate
from regard.measuring.memory import show
from regard.measuring.words import seconds

# Metrics that are shares of 1, told in points of a hundred.
SHARES = ("accuracy", "r2", "ndcg")


def recommendation(verdict: Verdict) -> list[str]:
    """Two sentences: what to use and by how much; what it costs, or what is cheaper."""
    return [first_sentence(verdict), second_sentence(verdict)]


def first_sentence(verdict: Verdict) -> str:
    """What to use, and on what grounds."""
    label = verdict.row(verdict.winner).candidate.label
    count = len(verdict.seeds)
    if verdict.runner_up is None or verdict.margin is None:
        return f"Use {label}: no alternative came through."
    other = verdict.row(verdict.runner_up).candidate.label
    if verdict.outcome is Outcome.ALTERNATIVE:
        assert verdict.over_null is not None
        return (
            f"Use {label}: it is ahead of scaled dot by {spread(verdict, verdict.over_null)} of "
            f"{verdict.metric} over {count} seeds, more than noise."
        )
    if verdict.outcome is Outcome.NULL:
        return (
            f"Use {label}: it is ahead of the best alternative, {other}, by "
            f"{spread(verdict, verdict.margin)} of {verdict.metric} over {count} seeds."
        )
    assert verdict.over_null is not None
    best = f"the best alternative, {other}, is {lead(verdict, verdict.over_null)}"
    if verdict.outcome is Outcome.SAME:
        return f"Use {label}: there is no difference that matters ({best} of {verdict.metric})."
    return (
        f"Stay with {label}: {best} of {verdict.metric} over {count} seed{plural(count)}, which may "
        "be noise; more seeds would tell."
    )


def lead(verdict: Verdict, found: Estimate) -> str:
    """Ahead or behind, and by how much."""
    if found.value >= 0:
        return f"ahead by {spread(verdict, found)}"
    return f"behind by {spread(verdict, Estimate(-found.value, -found.high, -found.low))}"


def second_sentence(verdict: Verdict) -> str:
    """Its price, and who is cheaper within the noise."""
    winner, cheapest = verdict.row(verdict.winner), verdict.row(verdict.cheapest)
    price = cost_words(winner)
    if cheapest is winner or winner.cost is None or cheapest.cost is None:
        return f"Nothing within the noise is cheaper: a training step takes {price}."
    ratio = cheapest.cost.seconds / winner.cost.seconds
    if ratio > 0.95:
        return (
            f"Nothing within the noise is cheaper by more than 5%: a training step takes {price}."
        )
    return (
        f"A training step takes {price}; the cheapest within the noise is "
        f"{cheapest.candidate.label}, at {ratio:.2f} times that."
    )


def cost_words(row: Row) -> str:
    """Time, memory and parameters."""
    if row.cost is None:
        return "an unknown time"
    return (
        f"{seconds(row.cost.seconds)} and {show(row.cost.memory)}, with "
        f"{row.cost.parameters:,} parameters"
    )


def spread(verdict: Verdict, found: Estimate) -> str:
    """A difference with its interval, in points where the metric is a share."""
    shares = verdict.metric in SHARES
    factor, unit = (100, " points") if shares else (1, "")
    if not math.isfinite(found.low):
        return f"{factor * found.value:.3g}{unit} (one seed: no interval)"
    low, high = factor * found.low, factor * found.high
    digits = 1 if shares else 4
    return f"{factor * found.value:.{digits}f}{unit} [{low:.{digits}f}, {high:.{digits}f}]"


def level(verdict: Verdict, row: Row) -> str:
    """The quality of a candidate."""
    factor = 100 if verdict.metric in SHARES else 1
    unit = "%" if verdict.metric in SHARES else ""
    if row.quality:
        found = row.mean()
        if not math.isfinite(found.low):
            return f"{factor * found.value:.4g}{unit}"
        return f"{factor * found.value:.4g}{unit} ±{factor * (found.high - found.value):.2g}"
    return ""


def standing(verdict: Verdict, row: Row) -> str:
    """What became of it."""
    if row.status == "halved" and row.searched is not None:
        return f"left behind in the search, at step {row.searched[0]}"
    if row.status == "failed":
        return f"failed: {row.reason}"
    if row.status == "final":
        name = row.candidate.name
        marks = {verdict.winner: "winner", verdict.runner_up: "runner-up"}
        told = [marks[name]] if name in marks else []
        told += ["cheapest within the noise"] if name == verdict.cheapest else []
        return ", ".join(told)
    return row.status


def as_text(verdict: Verdict) -> str:
    """The recommendation, then a line for each candidate."""
    lines = [*recommendation(verdict), ""]
    width = max(len(row.candidate.label) for row in verdict.rows)
    for row in verdict.rows:
        time = "" if row.cost is None else seconds(row.cost.seconds)
        cells = (row.candidate.label.ljust(width), level(verdict, row).rjust(14), time.rjust(8))
        lines.append("  ".join((*cells, standing(verdict, row))).rstrip())
    return "\n".join([*lines, "", f"score = {verdict.code}"])


def as_dict(verdict: Verdict) -> dict[str, Any]:
    """For JSON: everything, without NaN and infinities."""
    return {
        "schema": SCHEMA,
        "outcome": verdict.outcome.name.lower(),
        "recommendation": recommendation(verdict),
        "winner": verdict.winner,
        "runner_up": verdict.runner_up,
        "margin": interval(verdict.margin),
        "best_alternative_over_scaled_dot": interval(verdict.over_null),
        "cheapest_within_noise": verdict.cheapest,
        "code": verdict.code,
        "metric": verdict.metric,
        "matters": verdict.matters,
        "seeds": verdict.seeds,
        "interrupted": verdict.interrupted,
        "candidates": [row_dict(row) for row in verdict.rows],
        **verdict.facts,
    }


def row_dict(row: Row) -> dict[str, Any]:
    """One candidate."""
    cost = row.cost
    return {
        "name": row.candidate.name,
        "label": row.candidate.label,
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
    """Value, low and high; the value alone where there is no interval."""
    return None if found is None else [x for x in found if math.isfinite(x)]


def plural(count: int) -> str:
    """`s`, or nothing for one."""
    return "" if count == 1 else "s"
