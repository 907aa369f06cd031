"""Large logits: beyond what training runs recover from."""

from __future__ import annotations

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, Grade, Sign, above, below, each_site, graded

LARGE, KIMI = 100.0, "Kimi K2 clips from 100 on (arXiv 2507.20534)"
DIVERGED, WORTSMAN = (
    1000.0,
    "loss worsens from about 1e3 on, and above 1e4 every run diverged (arXiv 2309.14322)",
)
# A large logit can be harmless: adding the same amount to all logits of a query changes nothing.
VARIANCE, VARIANCE_SOURCE = 25.0, "ours: standard deviation 5; a shift of all logits has none"
# Without logit_max: the largest logit is about 3 standard deviations from the mean. The bound from
# norms is larger still, so its thresholds are 10 times higher.
TYPICAL = 3.0


def rule(disease: Disease, e: Evidence) -> list[Finding]:
    """Findings from the largest logit and the variance; without logit_max, from its bound."""
    varied = above(e, "logit_var", VARIANCE, VARIANCE_SOURCE)
    sharp = below(e, "entropy", 0.3, "ours: healthy fresh heads are above 0.8")
    if not e.of("logit_max").isnan().all():
        return graded(
            disease,
            e,
            Grade(Severity.FAILURE, (above(e, "logit_max", DIVERGED, WORTSMAN), varied), (sharp,)),
            Grade(Severity.WARNING, (above(e, "logit_max", LARGE, KIMI), varied), (sharp,)),
        )
    if e.facts is not None and e.facts.rescored:
        return []  # a score function changes the products, so their norms bound nothing
    size = TYPICAL * e.of("logit_var").sqrt()
    name = "3 * sqrt(logit_var)"
    bounds = [above(e, "logit_bound", limit, WORTSMAN) for limit in (10 * DIVERGED, DIVERGED)]
    return graded(
        disease,
        e,
        Grade(Severity.FAILURE, (bounds[0], Sign(name, size, DIVERGED, True, WORTSMAN))),
        Grade(Severity.WARNING, (bounds[1], Sign(name, size, LARGE, True, KIMI))),
    )


LARGE_LOGITS = Disease(
    name="large-logits",
    title="logits are far too large",
    find=each_site(rule),
    explanation=(
        "The logits of these heads (the scores of queries and keys before softmax) are far larger "
        "than in healthy models, and the logits of one query lie far apart. One key takes nearly "
        "all the weight, little is learnt from the other keys, and training gets worse or diverges "
        "as logits keep growing. Queries and keys have become too long, or the scale or "
        "temperature is wrong."
    ),
    remedies=(
        Advice("qk-clip", "largest logit back to 100, by smaller weights for query and key"),
        Advice("qk-norm", "logits bounded whatever the weights do"),
        Advice("temperature", "a learned factor that can lower the logits"),
        Advice("soft-cap", "logits bounded by the cap"),
    ),
    causes=("dead-softmax", "dead-gradient"),
)
