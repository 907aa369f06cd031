"""Growing logits: they rise from step to step and do not slow down."""

from __future__ import annotations

from torch import Tensor

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import (
    Disease,
    Grade,
    Sign,
    above,
    constant,
    each_site,
    graded,
)

# Start, middle and end are medians over a quarter of the steps; below 8 steps that is a single one.
LEAST_STEPS = 8
GROWTH, GROWTH_SOURCE = 2.0, "ours: doubled in the steps that are kept"
# Real growth makes all logits vary more; a single odd pair of query and key does not.
VARIANCE_GROWTH = 2.0
# Increase in the second half of the steps over that in the first: 1 is linear growth.
PACE, SUPERLINEAR = 0.5, 1.25
PACE_SOURCE = (
    "ours: growth in the second half of the steps over that in the first; Kimi K2 (arXiv "
    "2507.20534) reports growth without end before loss spikes"
)
# Fresh models grow from 1 to 10 or 20 while they learn, and stop there.
LEVEL, LEVEL_SOURCE = 50.0, "Gemma 2 caps attention logits at 50 (arXiv 2408.00118)"
HIGH, HIGH_SOURCE = 100.0, "Kimi K2 clips from 100 on (arXiv 2507.20534)"
# The bound from norms is a few times the largest logit.
BOUND = 4.0


def rule(disease: Disease, e: Evidence) -> list[Finding]:
    """Findings from the courses of the largest logit, or else its bound, and of the variance."""
    vital, factor, seen = "logit_max", 1.0, measured(e, "logit_max")
    if len(seen) < LEAST_STEPS:
        if e.facts is not None and e.facts.rescored:
            return []  # a score function changes the products, so their norms bound nothing
        vital, factor, seen = "logit_bound", BOUND, measured(e, "logit_bound")
    varied = measured(e, "logit_var")
    if min(len(seen), len(varied)) < LEAST_STEPS:
        return []
    start, middle, end = ends(seen)
    before, _, after = ends(varied)
    spread = constant(e, after / before.clamp(min=1e-3))
    widening = Sign("logit_var growth", spread, VARIANCE_GROWTH, True, GROWTH_SOURCE)
    growth = Sign(
        f"{vital} growth", constant(e, end / start.clamp(min=1)), GROWTH, True, GROWTH_SOURCE
    )
    # From a start near zero the ratio can be arbitrarily large, so it is cut off at 100.
    pace = constant(e, ((end - middle) / (middle - start).clamp(min=1e-3)).clamp(max=100))
    steady = Sign(f"{vital} pace", pace, PACE, True, PACE_SOURCE)
    faster = Sign(f"{vital} pace", pace, SUPERLINEAR, True, PACE_SOURCE)
    level = above(e, vital, LEVEL * factor, LEVEL_SOURCE)
    high = above(e, vital, HIGH * factor, HIGH_SOURCE)
    return graded(
        disease,
        e,
        Grade(Severity.FAILURE, (growth, faster, high, widening)),
        Grade(Severity.WARNING, (growth, steady, level, widening)),
    )


def measured(e: Evidence, vital: str) -> Tensor:
    """The values of a vital in the steps in which all heads have a number."""
    values = e.of(vital)
    return values[values.isfinite().all(1)]


def ends(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Medians of the first, middle and last quarter of the steps, each (H,)."""
    quarter = max(1, len(values) // 4)
    half = (len(values) - quarter) // 2
    parts = values[:quarter], values[half : half + quarter], values[-quarter:]
    first, middle, last = (part.median(0).values for part in parts)
    return first, middle, last


GROWING = Disease(
    name="growing-logits",
    title="logits grow and do not slow down",
    find=each_site(rule),
    explanation=(
        "The logits of these heads (the scores of queries and keys before softmax) keep growing. "
        "Softmax becomes harder and harder, until one key takes all the weight, gradients vanish "
        "or numbers overflow, and the loss spikes. The usual causes are a learning rate that is "
        "too high or warms up too fast (check this first), and a missing norm on queries and keys."
    ),
    remedies=(
        Advice("rate", "logits that settle, if steps were too large"),
        Advice("qk-norm", "logits that cannot grow with the weights"),
        Advice("qk-clip", "weights scaled back each time a logit exceeds 100"),
        Advice("soft-cap", "logits bounded by the cap; the weights keep growing"),
        Advice("cosine", "logits bounded by a learned temperature"),
    ),
    causes=("large-logits", "collapsed-entropy", "dead-softmax", "dead-gradient"),
)
