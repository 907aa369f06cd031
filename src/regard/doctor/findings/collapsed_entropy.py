"""Collapsed entropy: queries attend to the same single key, whatever they contain."""

from __future__ import annotations

import torch

from regard.doctor.findings.evidence import Evidence, filled
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import (
    Disease,
    Grade,
    Sign,
    above,
    below,
    each_site,
    graded,
)
from regard.doctor.findings.sinks import FEW, says_something

LOW, LOW_SOURCE = 0.1, "ours; Zhai et al. (arXiv 2303.06296) give no absolute level"
FELL, FELL_SOURCE = 0.3, "a sharp drop while training (arXiv 2303.06296); 0.3 is ours"
RANK = 2.0
RANK_SOURCE = (
    "runs crash where attention is sparse and of low rank; sparse alone is benign (Qi et al., "
    "Taming Transformer Without Using Learning Rate Warmup, 2025); 2 is ours"
)
ONE_KEY, ONE_KEY_SOURCE = 0.4, "ours: a map of rank one gives half of the queries the same key"
# In a head that learnt to attend to one marked key, its logit is 20 to 30 above all others.
VARIANCE, VARIANCE_SOURCE = 400.0, "ours: heads that learnt to pick one marked key stay below 100"
# Heads that attend by distance are sharp and of low rank by design.
BY_DISTANCE = 0.5


def rule(disease: Disease, e: Evidence) -> list[Finding]:
    """Low entropy counts only with low rank, one key for many queries, and large logits."""
    if e.fewer_than(FEW):
        return []
    rank = "output_rank" if e.of("map_rank").isnan().all() else "map_rank"
    needed = (
        below(e, "entropy", LOW, LOW_SOURCE),
        below(e, rank, RANK, RANK_SOURCE),
        above(e, "sink_weight", ONE_KEY, ONE_KEY_SOURCE),
        above(e, "logit_var", VARIANCE, VARIANCE_SOURCE),
    )
    entropy = filled(e.of("entropy"))
    # How far the entropy is below its highest value so far.
    drop = torch.nan_to_num(entropy, nan=-torch.inf).cummax(0).values - entropy
    fell = Sign("entropy drop", drop, FELL, True, FELL_SOURCE)
    only = says_something(e) & ~(e.now("distance_share") > BY_DISTANCE)
    return graded(
        disease,
        e,
        Grade(Severity.FAILURE, (*needed, fell)),
        Grade(Severity.WARNING, needed),
        only=only,
    )


COLLAPSED_ENTROPY = Disease(
    name="collapsed-entropy",
    title="attention has collapsed onto one key",
    find=each_site(rule),
    explanation=(
        "Each query of these heads puts nearly all its weight on one key, and many queries put it "
        "on the same key. Queries and keys interact in a single direction. Sharp attention is fine "
        "as long as different queries can select different keys; here they cannot. Training runs "
        "in this state do not recover by themselves."
    ),
    remedies=(
        Advice(
            "qk-norm", "lower logits, entropy above 0.5, gradients that can change the direction"
        ),
        Advice("temperature", "softer weights; training still has to unlearn the direction"),
        Advice("qk-clip", "largest logit back to 100"),
    ),
    causes=("large-logits", "dead-softmax", "dead-gradient", "malignant-sink", "no-op-sink"),
)
