"""Unscaled logits: the division by sqrt(d) is missing."""

from __future__ import annotations

import torch

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import (
    Disease,
    Grade,
    Sign,
    above,
    below,
    constant,
    each_site,
    graded,
    judge,
)
from regard.doctor.vitals.table import SeenForm

VASWANI = "arXiv 1706.03762 3.2.1: unit-variance q and k give logits of variance d, hence 1/sqrt(d)"
# Without a scale, queries and keys of half of unit variance each reach a quarter of d.
SHARE_OF_DIMS = 0.25
# Up to a factor of 2 on 1/sqrt(d) can be a design choice; more is a mistake.
TIMES_USUAL = 2.0
# Below this variance softmax is not much sharper than for scaled logits, whatever d is.
LEAST_VARIANCE = 8.0
# Standard deviation 10: usually one key takes all the weight.
HARD_VARIANCE = 100.0
# Measured at 512 keys: 0.37 at d = 16, 0.12 at d = 64; 0.92 with the scale at every d.
LOW_ENTROPY = 0.5
# Narrow heads work without a scale: their logits vary no more than those of a trained head. T5 has
# no scale by design, and its sharp heads at d = 8 have a variance of 10.
LEAST_DIMS = 32
# Where only logits were captured, d is that of the values and the scale is unknown. There all heads
# must agree and lie near d: trained heads differ from one another and cosine scores do not follow
# d, while untrained unscaled heads all have a variance of about d.
AGREE, SHARES = 2.0, (0.4, 2.0)
# Untrained heads of one layer differ by less than 1.5 in this variance, trained ones mostly by 10 or more.
APART = 4.0


def rule(disease: Disease, e: Evidence) -> list[Finding]:
    """Findings from the variance of the logits, the scale, and the size of queries and keys."""
    facts = e.facts
    if facts is None or not facts.dims or facts.dims < LEAST_DIMS or facts.keys < 4:
        return []
    share = Sign("logit_var / dims", e.of("logit_var") / facts.dims, SHARE_OF_DIMS, True, VASWANI)
    least = above(
        e, "logit_var", LEAST_VARIANCE, "ours: scaled logits of fresh models stay below 2"
    )
    entropy = below(e, "entropy", LOW_ENTROPY, "ours: 0.92 scaled and below 0.4 unscaled, 512 keys")
    if facts.kind is SeenForm.LOGITS:
        if not from_the_start(e, facts.dims):
            return []
        found = judge(disease, e, Severity.WARNING, (share, least, entropy), every_head=True)
        return [] if found is None else [found]
    if facts.scale is None or facts.rescored:
        return []
    times = constant(e, abs(facts.scale) * facts.dims**0.5)
    scale = Sign("scale * sqrt(dims)", times, TIMES_USUAL, True, VASWANI)
    # Cosine attention has a large scale too, but on vectors of length 1.
    size = e.now("query_norm") * e.now("key_norm") / facts.dims
    hard = above(e, "logit_var", HARD_VARIANCE, "ours: standard deviation 10")
    found = graded(
        disease,
        e,
        Grade(Severity.FAILURE, (hard, share, scale), (entropy,)),
        Grade(Severity.WARNING, (least, share, scale), (entropy,)),
        only=torch.nan_to_num(size) > SHARE_OF_DIMS,
    )
    return [] if by_design(e, facts.dims) else found


def from_the_start(e: Evidence, dims: int) -> bool:
    """Whether all heads had logits of about the same variance, near d, in all steps."""
    share = e.of("logit_var") / dims
    share = share[~share.isnan().any(1)]
    if e.heads < 2 or not len(share):
        return False
    agree = share.amax(1) < AGREE * share.amin(1)
    return bool((agree & (share.amin(1) > SHARES[0]) & (share.amax(1) < SHARES[1])).all())


def by_design(e: Evidence, dims: int) -> bool:
    """Whether the factor is carried by the weights on purpose, as in T5, and heads have since learned.

    Weights of such a design begin with logits of variance 1, and what its heads have at d is learned, by each
    head for itself. A forgotten scale gives all heads about d at once, with weights that nothing made small.
    """
    share = e.of("logit_var") / dims
    share = share[~share.isnan().any(1)]
    if e.heads < 2 or not len(share):
        return False
    apart = share[-1].amax() > APART * share[-1].amin()
    began_small = share[0].amax() < SHARE_OF_DIMS / 2
    return bool(apart or began_small)


UNSCALED = Disease(
    name="unscaled-logits",
    title="logits are not scaled by 1/sqrt(d)",
    find=each_site(rule),
    explanation=(
        "The inner product of a query and a key with d features has a variance of about d, and "
        "here it is not divided by sqrt(d). Softmax then selects one key almost by chance, and "
        "hardly any gradient passes back through it. Wider heads suffer more."
    ),
    remedies=(
        Advice("scale", "logits of variance 1 instead of d; entropy back to about 0.9"),
        Advice("qk-norm", "logits bounded whatever the weights do"),
        Advice("cosine", "logits bounded by a learned temperature"),
    ),
    causes=("large-logits", "dead-softmax", "dead-gradient", "collapsed-entropy", "growing-logits"),
)
