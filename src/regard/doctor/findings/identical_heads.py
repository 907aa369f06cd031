"""Identical heads: two or more heads of a layer are copies of one another.

Shape legend: S steps, H heads, C compared vitals.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.findings.evidence import Evidence, filled
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, Sign, above, each_site, judge

SAME, SAME_SOURCE = (
    0.99,
    "ours: below 0.4 in fresh models; up to 0.99 where trained heads share a sink",
)
# Two heads that attend to the same key have similar weights, but differ in their other numbers.
TOLD_APART, TOLD_APART_SOURCE = (
    0.01,
    "ours: different heads are 2% or more apart in one of eight numbers",
)
FINGERPRINT = (
    "query_norm",
    "key_norm",
    "logit_mean",
    "logit_var",
    "logit_max",
    "entropy",
    "max_weight",
    "sink_output",
)
LEAST_COMPARED = 4  # fewer known numbers do not show that two heads are the same


def rule(disease: Disease, e: Evidence) -> list[Finding | None]:
    """A finding where the weights of two heads correlate and their other numbers agree too."""
    if e.heads < 2:
        return []
    apart = Sign("difference of two heads", twin_distance(e), TOLD_APART, False, TOLD_APART_SOURCE)
    return [
        judge(
            disease,
            e,
            Severity.WARNING,
            (above(e, "head_similarity", SAME, SAME_SOURCE), apart),
        )
    ]


def twin_distance(e: Evidence) -> Tensor:
    """(S, H): the largest relative difference to the most similar head; NaN where unknown."""
    columns = torch.stack([filled(e.of(name)) for name in FINGERPRINT], -1)  # (S, H, C)
    compared = ~columns.isnan().any(1)  # (S, C)
    columns = torch.where(compared[:, None], columns, 0)
    first, second = columns.unsqueeze(2), columns.unsqueeze(1)
    size = torch.maximum(first.abs(), second.abs()).clamp(min=1e-12)
    apart = ((first - second).abs() / size).amax(-1)  # (S, H, H)
    own = torch.eye(e.heads, dtype=torch.bool, device=apart.device)
    nearest = apart.masked_fill(own, torch.inf).amin(-1)
    enough = compared.sum(-1) >= LEAST_COMPARED
    return torch.where(enough[:, None], nearest, torch.nan)


IDENTICAL_HEADS = Disease(
    name="identical-heads",
    title="the same head more than once",
    find=each_site(rule),
    explanation=(
        "These heads compute the same weights from queries and keys of the same size: they are "
        "copies. Copies get the same gradient and stay copies, so the layer has fewer different "
        "heads than it computes. The usual causes are identical initial weights and weights copied "
        "from a smaller model."
    ),
    remedies=(Advice("heads", "different weights for each head: initialise the copies again"),),
)
