"""No gradient: queries, keys or values are cut off from the loss, and nobody froze them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.doctor.capture.gradient_hooks import SIDES
from regard.doctor.chart import ASKED, DETACHED, NO_GRAD, UNREAD
from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, Sign, constant, judge

# On these routes the gradients of query, key and value are all read, or none is.
ROUTES = ("sdpa", "flex", "regard")
SOURCE = "ours: the values get a gradient in every step"
OTHERS = "ours: other sides, or other attention calls, get a gradient in these steps"
ZERO = "ours: a gradient that is exactly zero"
# The names of these signals begin with this.
GETS = "steps with "
ELSEWHERE = f"{GETS}a gradient elsewhere"
SMALLEST = 1e-45  # the smallest number in fp32
# Zeros in a single step may be those of one batch.
LASTING = 2

RECONNECT = Advice("reconnect", "a gradient in spite of a detach or no_grad in this module")
THAW = Advice("thaw", "a gradient where weights of this module were frozen")
BY_HAND = Advice("gradient", "remove what cuts them off from the code")

CUT = {
    DETACHED: "They are cut off before the call: look for detach or .data in front of it.",
    NO_GRAD: "The call itself is made under no_grad.",
    ASKED: (
        "They are cut off after the softmax or the call: look for detach, .data or no_grad there, or for an "
        "output that the loss does not use."
    ),
}
BEHIND_ZERO = "What comes back is exactly zero: a layer or gate behind this call is zero and {}."
MAY_LEARN = (
    "trained: adapters and gates often begin so, and then the first steps of training end this"
)
STAYS = "does not learn"


def find(disease: Disease, sites: Sequence[Evidence]) -> list[Finding]:
    """Findings at every site where something else learns, in the same call or in another."""
    found = []
    for e in sites:
        elsewhere = any(learns(x, side) for x in sites if x is not e for side in SIDES)
        # A decoder of two streams leaves the last call of one without use; the module does learn.
        again = any(x.module == e.module and x is not e and learns(x, "value") for x in sites)
        # How a call was cut is known in the order of certainty: zeros, then sides that are missing.
        finding = zero_at(disease, e, elsewhere) or missing_at(disease, e, elsewhere and not again)
        if finding is not None:
            found.append(finding)
    return found


def learns(e: Evidence, side: str) -> bool:
    """Whether a side gets a gradient in some step that is not zero."""
    return bool((e.of(f"{side}_grad") > 0).any())


def known(e: Evidence, side: str) -> bool:
    """Whether it would have been seen if the side had got a gradient."""
    return e.asked.get(side, UNREAD) != UNREAD if e.asked else e.route in ROUTES


def missing_at(disease: Disease, e: Evidence, elsewhere: bool) -> Finding | None:
    """A finding for sides that get none while others do; a note if weights were frozen."""
    counts = {side: (~e.of(f"{side}_grad").isnan()).sum(0) for side in SIDES}
    cut = [s for s in SIDES if known(e, s) and not counts[s].any()]
    rest = [s for s in SIDES if bool((counts[s] > 0).all())]
    if not cut or not (rest or elsewhere):
        return None
    # One number alone makes no alarm: that it was detached is the second sign of a single side.
    if len(cut) < 2 and e.asked.get(cut[0]) not in (DETACHED, NO_GRAD):
        return None
    frozen, alone = e.declared.frozen, not rest
    if alone and frozen:
        return None  # a frozen base under adapters or a new head
    needed = [
        Sign(f"{GETS}{s}_grad", constant(e, counts[s].to(e.values)), 0.5, False, SOURCE)
        for s in cut
    ]
    needed += [
        Sign(f"{GETS}{s}_grad", constant(e, counts[s].to(e.values)), 0.5, True, SOURCE)
        for s in rest
    ]
    if len(needed) < 2:
        needed.append(
            Sign(ELSEWHERE, constant(e, float(elsewhere or len(rest))), 0.5, True, OTHERS)
        )
    if alone:
        needed.append(Sign(ELSEWHERE, constant(e, float(elsewhere)), 0.5, True, OTHERS))
    # Constant queries, or keys from a memory that is never trained, are a design: not among the same tokens.
    facts = e.facts
    one_sided = bool(rest) and len(cut) == 1 and (facts is None or facts.queries != facts.keys)
    severity = Severity.NOTE if frozen or one_sided else Severity.WARNING
    found = judge(disease, e, severity, needed)
    if found is None:
        return None
    ways = dict.fromkeys(e.asked[s] for s in cut if s in e.asked)
    said = " ".join(CUT[x] for x in ways) or disease.explanation.partition(". ")[2]
    title = f"{words(cut)} are cut off from the loss"
    said = (
        f"In backward {words(cut)} of this layer get no gradient, so that they never learn. {said}"
    )
    advice = (THAW, RECONNECT, BY_HAND) if frozen else disease.remedies
    return found._replace(title=title, explanation=said, remedies=advice)


def zero_at(disease: Disease, e: Evidence, elsewhere: bool) -> Finding | None:
    """A finding where the gradients are exactly zero; a note where training may change that."""
    read = [e.of(f"{s}_grad") for s in SIDES if not e.of(f"{s}_grad").isnan().all()]
    if not read or not elsewhere or any(bool((x > 0).any()) for x in read):
        return None
    largest = torch.stack(read).nan_to_num(0.0).amax(0)
    needed = (
        Sign("value_grad", largest, SMALLEST, False, ZERO),
        Sign(ELSEWHERE, constant(e, 1.0), 0.5, True, OTHERS),
    )
    begins = e.declared.starts_at_zero
    severity = Severity.NOTE if begins else Severity.WARNING
    found = judge(disease, e, severity, needed, lasting=LASTING)
    if found is None:
        return None
    said = f"In backward the whole layer gets a gradient of zero. {BEHIND_ZERO.format(MAY_LEARN if begins else STAYS)}"
    return found._replace(
        title="attention is dead behind a zero", explanation=said, remedies=(BY_HAND,)
    )


def words(sides: Sequence[str]) -> str:
    """Sides as words: "queries and keys"."""
    names = [{"query": "queries", "key": "keys", "value": "values"}[x] for x in sides]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


NO_GRADIENT = Disease(
    name="no-gradient",
    title="queries and keys are cut off from the loss",
    find=find,
    explanation=(
        "In backward the values of this layer get a gradient and its queries and keys get none, so "
        "the layer never learns what to attend to. The usual causes are detach or no_grad in the "
        "forward pass, and frozen weights. .data and inference_mode have the same effect, and no "
        "remedy can undo them: remove them from the code."
    ),
    remedies=(RECONNECT, THAW, BY_HAND),
)
