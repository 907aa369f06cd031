"""The doctor's numbers and findings on the attention of a trained candidate."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from regard.choosing.training.trainer import Training
from regard.measuring.failures import first_line

# The vitals that are kept, each from the worst head: the highest or the lowest value.
WORST_HIGH = ("logit_max", "max_weight", "sink_weight", "key_spread", "tanh_saturated")
WORST_LOW = ("entropy", "jacobian", "c50")
BATCHES = 4
# Notes in the report.
FAILED = "the doctor could not examine this model; its results hold all the same"
UNSEEN = "no attention call was seen"


def vitals_of(training: Training) -> dict[str, Any]:
    """Vitals of the worst head, findings and notes on what could not be measured, as plain JSON.

    A few training batches run forward. If the doctor raises, the vitals are lost but not the training.
    """
    try:
        return examined(training)
    except Exception as error:  # an error of the doctor says nothing about the trained model
        return {"vitals": {}, "findings": [], "notes": [FAILED], "error": first_line(error)}


def examined(training: Training) -> dict[str, Any]:
    """Vitals, findings and notes; see `vitals_of`."""
    from regard.doctor.watch import watch

    model = attending(training.model)
    with watch(model, "sampled", every=1, window=BATCHES) as doctor:
        for _ in range(BATCHES):
            *inputs, _ = (x.to(training.job.device) for x in next(training.batches))
            with torch.no_grad():
                model(*inputs)
    rows = []
    for site in doctor.sites:
        history = doctor.history(site)
        if len(history.steps):
            rows.append(history.values.nanmean(0))
    found = {}
    if rows:
        heads = torch.cat(rows)
        for place, name in enumerate(doctor.vitals):
            column = heads[:, place]
            column = column[column.isfinite()]
            if name in WORST_HIGH + WORST_LOW and len(column):
                found[name] = float(column.min() if name in WORST_LOW else column.max())
    notes = [] if doctor.sites else [UNSEEN]
    return {"vitals": found, "findings": findings(doctor), "notes": notes}


def attending(model: nn.Module) -> nn.Module:
    """The model that the doctor watches: the model's own `attending()` if it has one.

    A model whose outputs are scores makes no attention call, so it offers one for the doctor.
    """
    own = getattr(model, "attending", None)
    return own() if callable(own) else model


def findings(doctor: Any) -> list[dict[str, Any]]:
    """The doctor's findings as plain JSON."""
    found = getattr(doctor, "findings", None)
    listed = (found() if callable(found) else found) or []
    return [
        {"title": one.title, "severity": str(one.severity), "disease": one.disease}
        for one in listed
        if math.isfinite(one.confidence)
    ]
