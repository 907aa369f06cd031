"""Broken numbers: NaN and Inf, reported where they first appear."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity, Signal
from regard.doctor.findings.origin import LARGEST, SOURCE, emptied_before, first_broken
from regard.doctor.findings.signs import Disease
from regard.doctor.vitals.table import BROKEN


def find(disease: Disease, sites: Sequence[Evidence]) -> list[Finding]:
    """A finding at the origin alone: broken numbers after it are a consequence."""
    origin = first_broken(sites)
    if origin is None or emptied_before(sites, origin) is not None:
        return []
    e = sites[origin.site]
    at = {name: e.of(name)[origin.place] for name in BROKEN}
    sick = torch.stack([x > 0 for x in at.values()]).any(0)
    heads = tuple(sick.nonzero().flatten().tolist())
    signals = [
        Signal(name, x.nan_to_num()[list(heads)].max().item(), 0.0, True, SOURCE)
        for name, x in at.items()
        if (x > 0).any()
    ]
    bound = e.of("logit_bound")[origin.place, list(heads)]
    if len(signals) < 2 and not bound.isfinite().all():
        signals.append(Signal("logit_bound", torch.inf, LARGEST, True, SOURCE))
    later = sum(
        bool(any((other.of(name) > 0).any() for name in BROKEN))
        for other in sites[origin.site + 1 :]
    )
    # A single count that no other number confirms is weak evidence: a real NaN spreads.
    severity = Severity.FAILURE if len(signals) > 1 or later else Severity.NOTE
    if len(signals) < 2:
        signals.append(Signal("later sites that are broken", float(later), 0.0, True, SOURCE))
    came = sick.all() and all((at[name] > 0).all() for name in ("nan_queries", "nan_keys"))
    where = (
        "It came in with the input of this layer: look at the layers before it."
        if came
        else "It arose in the projections or the product of this layer."
    )
    # After a step with NaN all weights are NaN: later steps do not show where it began.
    lost = origin.place == 0 and e.steps[0] > 1
    if lost:
        where = "Earlier steps are no longer kept, so it may have begun elsewhere."
    calls = "1 later attention call is" if later == 1 else f"{later} later attention calls are"
    after = f" {calls} broken as a result." if later else ""
    found = disease.found(e, origin.place, severity, heads, signals, where + after)
    if lost:
        found = found._replace(confidence=found.confidence / 2)
    # qk-norm, the first remedy, cannot help where queries or keys are broken before it.
    if any((at[name] > 0).any() for name in BROKEN if not name.endswith("logits")):
        found = found._replace(remedies=disease.remedies[1:])
    return [found]


BROKEN_NUMBERS = Disease(
    name="broken-numbers",
    title="NaN or Inf",
    find=find,
    explanation="Queries, keys or logits hold NaN or Inf here, and at no earlier attention call.",
    remedies=(
        Advice("qk-norm", "queries and keys that stay within the range of the dtype"),
        Advice("finite", "broken numbers that stay inside the module that produces them"),
        Advice("numbers", "find the division by zero, log of zero or overflow before this layer"),
    ),
)
