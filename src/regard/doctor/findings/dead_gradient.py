"""Dead gradient: queries and keys get almost no gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.doctor.findings.evidence import (
    GRADIENT_SHARE,
    Evidence,
    gradient_share,
    tokens_differ,
)
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, Grade, Sign, graded

# Adam divides by the root mean square of the gradient plus 1e-8: for smaller gradients the steps
# shrink to nothing.
EPSILON = 1e-8
NEAR, WORTSMAN = 100 * EPSILON, "AdamW's epsilon of 1e-8 (arXiv 2309.14322); 100 times it is ours"
REACHES, REACHES_SOURCE = 1e-4, "ours: 0.007 to 50 in healthy models, fresh and trained"
# Values that differ by less than a tenth of what they have in common.
ALIKE = 0.99
# Fresh models without norms have queries and keys of next to nothing: logits of a standard deviation below
# 0.01. What passes back to a query is as small as the keys, until they have grown.
FRESH_VARIANCE = 1e-4
# Some initialisations set the values to zero, which gives no gradient in the first step.
LASTING = 2


def find(disease: Disease, sites: Sequence[Evidence]) -> list[Finding]:
    """Findings at every site, unless all tokens of the input are the same."""
    return [x for e in sites for x in dead_at(disease, e)] if tokens_differ(sites) else []


def dead_at(disease: Disease, e: Evidence) -> list[Finding]:
    """Findings where the gradient is small beside Adam's epsilon and beside that of the values.

    A weight's gradient is a sum over the queries: with n queries it is about sqrt(n) times as
    large.
    """
    largest = torch.maximum(e.of("query_grad"), e.of("key_grad"))
    largest = largest.masked_fill(largest.isinf(), torch.nan)
    ratio = Sign(GRADIENT_SHARE, gradient_share(e.of), REACHES, False, REACHES_SOURCE)
    alike = e.now("value_alike") > ALIKE
    fresh = (e.now("logit_var") < FRESH_VARIANCE) & ~alike
    count = 1 if e.facts is None else e.facts.batch * e.facts.queries
    of_weights = largest * count**0.5
    found = graded(
        disease,
        e,
        Grade(
            Severity.FAILURE,
            (Sign("query_grad * sqrt(queries)", of_weights, EPSILON, False, WORTSMAN), ratio),
        ),
        Grade(
            Severity.WARNING,
            (Sign("query_grad * sqrt(queries)", of_weights, NEAR, False, WORTSMAN), ratio),
        ),
        only=~fresh,
        lasting=LASTING,
    )
    # Where all values are alike no gradient arrives, even through a softmax that is not saturated.
    return [
        x._replace(remedies=OF_VALUES) if bool(alike[list(x.heads)].all()) else x for x in found
    ]


EPSILON_ADVICE = Advice("epsilon", "1e-15 in place of 1e-8 lets Adam take small gradients in full")
OF_VALUES = (
    Advice("contrast", "values that differ by as much as they have in common"),
    EPSILON_ADVICE,
)
DEAD_GRADIENT = Disease(
    name="dead-gradient",
    title="hardly any gradient reaches queries and keys",
    find=find,
    explanation=(
        "The gradient at queries and keys is about as small as Adam's epsilon, while the values "
        "get a normal one. The weights of queries and keys hardly learn. Either softmax is "
        "saturated, or the values are all alike, so that it makes no difference what a head "
        "attends to."
    ),
    remedies=(
        Advice("qk-norm", "logits of unit size, which let gradients through"),
        Advice("temperature", "the same, with a learned factor"),
        *OF_VALUES,
    ),
)
