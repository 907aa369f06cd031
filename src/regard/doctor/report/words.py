"""Sentences that all reports share."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from regard.doctor.report.data import Record
from regard.doctor.report.numbers import counted, ranges, real, shortened, shown
from regard.measuring.words import listed

SEVERITIES = ("failure", "warning", "note")
# What is judged, and a vital without which it cannot be.
JUDGED = {
    "logits": "logit_var",
    "weights": "entropy",
    "masks of the layers": "visible_share",
    "gradients": "value_grad",
    "positions": "place_share",
    "copies of heads": "head_similarity",
}
GROWTH_STEPS = 8  # fewer steps show no course
WIRING = "wiring, which regard.doctor.check tests"


def headline(record: Record) -> tuple[str, str]:
    """The verdict in one sentence, and its tone: failure, warning, good or none."""
    counts = Counter(finding["severity"] for finding in record.findings)
    said = [counted(counts[s], s) for s in SEVERITIES if counts[s]]
    if counts["failure"] or counts["warning"]:
        return f"{listed(said)} found".capitalize() + ".", (
            "failure" if counts["failure"] else "warning"
        )
    if not record.sites:
        return "No attention was seen.", "none"
    if not any(site.last for site in record.sites):
        return "Attention was seen, but nothing could be measured.", "none"
    return f"A clean bill of health{f', with {said[0]}' if said else ''}.", "good"


def circumstances(record: Record) -> str:
    """What was examined, in one sentence."""
    heads = sum(site.heads for site in record.sites)
    return (
        f"{record.model}: {counted(len(record.sites), 'attention call')} with "
        f"{counted(heads, 'head')}, watched for {counted(record.steps, 'step')} at level "
        f"{record.level}."
    )


def tested(record: Record) -> str:
    """What the numbers were enough to judge, and what not: a clean bill covers no more than that."""
    there = {
        vital
        for site in record.sites
        for vital, heads in site.last.items()
        if any(not math.isnan(real(x)) for x in heads)
    }
    done = [name for name, vital in JUDGED.items() if vital in there]
    left = [name for name in JUDGED if name not in done]
    (done if record.kept >= GROWTH_STEPS and done else left).append("growth over steps")
    return (
        f"Checked: {listed(done) if done else 'nothing'}. Not checked: {listed([*left, WIRING])}."
    )


def where(finding: dict[str, Any], heads: int) -> str:
    """The heads of a finding and the step since when, such as "heads 0-3 of 8, since step 20"."""
    named = finding["heads"]
    if not named:
        which = ""
    elif len(named) == heads:
        which = "its only head, " if heads == 1 else f"all {heads} heads, "
    else:
        which = f"head{'' if len(named) == 1 else 's'} {ranges(named)} of {heads}, "
    return f"{which}since step {finding['since']}"


def comparison(signal: dict[str, Any]) -> str:
    """A signal against its threshold: `logit_max 140, above 100`."""
    side = "above" if signal["above"] else "below"
    return f"{signal['vital']} {shown(signal['value'])}, {side} {shown(signal['threshold'])}"


def worst_of_all(record: Record) -> str:
    """The worst finding in one sentence; "" if there is none above a note."""
    for finding in record.findings[:1]:
        if finding["severity"] != "note":
            return f"The worst: {finding['title']}, at {shortened(finding['site'], 60)}."
    return ""
