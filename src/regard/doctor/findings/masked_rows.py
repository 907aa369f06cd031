"""Masked rows: queries that see no key."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity, Signal
from regard.doctor.findings.origin import LARGEST, SOURCE, emptied_before, first_broken
from regard.doctor.findings.signs import Disease, above, below, judge

GRADIENTS = ("query_grad", "key_grad", "value_grad")
ROWS_SOURCE = "ours: softmax over nothing is 0 / 0"
HIDDEN_SOURCE = "ours: some keys are hidden"
FOLLOWS = "Here it leads to NaN, which backward carries to every weight of the model."


def find(disease: Disease, sites: Sequence[Evidence]) -> list[Finding]:
    """Findings where queries see no key: a failure where NaN follows, else a note."""
    origin = first_broken(sites)
    # The last site with empty rows before the first NaN counts as its cause.
    guilty = None if origin is None else emptied_before(sites, origin)
    found = []
    for index, e in enumerate(sites):
        finding = None
        if origin is not None and index == guilty:
            after = sites[origin.site]
            signs = [Signal(f"NaN at {after.name}", 1.0, 0.0, True, SOURCE)]
            finding = failure(disease, e, e.steps.index(after.steps[origin.place]), signs)
        elif origin is None and index == len(sites) - 1:
            # No site after the last one can show the NaN, but its gradients do.
            empty = (e.of("masked_rows") > 0).any(1)
            broken = torch.stack([e.of(name).isposinf().any(1) for name in GRADIENTS]).any(0)
            if (empty & broken).any():
                finding = failure(disease, e, int((empty & broken).nonzero()[0]), [])
        if finding is None:
            rows = above(e, "masked_rows", 0.0, ROWS_SOURCE)
            hidden = below(e, "visible_share", 1.0, HIDDEN_SOURCE)
            finding = judge(disease, e, Severity.NOTE, (rows, hidden))
        found.append(finding)
    return [finding for finding in found if finding is not None]


def failure(disease: Disease, e: Evidence, place: int, signs: Sequence[Signal]) -> Finding:
    """The finding for the step at index `place`, in which queries saw no key and NaN followed."""
    rows = e.of("masked_rows")[place]
    heads = tuple((rows > 0).nonzero().flatten().tolist())
    signals = [
        Signal("masked_rows", rows.nan_to_num().max().item(), 0.0, True, ROWS_SOURCE),
        *signs,
    ]
    for name in GRADIENTS:
        if e.of(name)[place].isposinf().any():
            signals.append(Signal(name, torch.inf, LARGEST, True, SOURCE))
    return disease.found(e, place, Severity.FAILURE, heads, signals, FOLLOWS)


MASKED_ROWS = Disease(
    name="masked-rows",
    title="queries that see no key",
    find=find,
    explanation=(
        "The mask leaves some queries without any key: a sequence is empty, or padding is used as "
        "queries. Softmax over no keys is 0 / 0: some kernels return zeros there, others NaN."
    ),
    remedies=(Advice("mask", "leave at least one key, or drop empty sequences from the batch"),),
)
