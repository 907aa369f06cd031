"""What the first remedy does for every planted patient: how much at least, or why none can be applied."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.treat import Effect, Treatment
from regard.doctor.watch import Doctor

from . import PLANTED
from .patient import Patient

# Patient: the remedy that is taken, and for one of its signals how far it has to come, as a share
# of what it was.
AMOUNTS = {
    "UnscaledWide": ("scale", "logit_var", 0.99),
    "UnscaledEager": ("scale", "logit_var", 0.95),
    "UnscaledScore": ("scale", "logit_var", 0.95),
    "Growing": ("qk-norm", "logit_max growth", 0.9),
    "Large": ("qk-clip", "logit_max", 0.6),
    "Diverging": ("qk-clip", "logit_max", 0.9),
    "ColdCosine": ("qk-norm", "logit_max", 0.9),
    "CollapsedEntropy": ("qk-norm", "entropy", 0.5),
    "Hijacked": ("key-clip", "key_spread", 0.9),
    "CapturedLayer": ("bias-clip", "sink_weight", 0.3),
    "TwinHeads": ("heads", "head_similarity", 0.5),
    "SaturatedTanh": ("shrink-tanh", "tanh_saturated", 0.9),
    "NoResiduals": ("residual", "value_alike", 0.5),
    "WashedOut": ("positions", "value_place", 0.9),
    "WashedOutLearned": ("positions", "value_place", 0.9),
    "Swamped": ("positions", "value_place", 0.5),
    "SwampedEncoder": ("positions", "value_place", 0.5),
    "TiedSides": ("temperature", "jacobian", 0.9),
    "DeadGradient": ("contrast", "query_grad / value_grad", 0.99),
    "DeadHead": ("qk-norm", "query_grad / value_grad", 0.99),
    "NoGradient": ("reconnect", "steps with query_grad", 0.99),
    "CutOutside": ("reconnect", "steps with query_grad", 0.99),
    "DetachedValues": ("reconnect", "steps with value_grad", 0.99),
    "CutLayer": ("reconnect", "steps with query_grad", 0.99),
    "MaskedRow": ("mask", "masked_rows", 0.99),
    "InvertedCausal": ("mask", "next_share: visible", 0.99),
    "InvertedPadding": ("mask", "masked_rows", 0.99),
    "InvertedLongPadding": ("mask", "masked_rows", 0.99),
    "ForgottenMask": ("mask", "visible_share", 0.4),
    "Unregistered": ("mask", "visible_share", 0.4),
    "BrokenNorm": ("finite", "nan_queries", 0.99),
    "Overflow": ("finite", "inf_keys", 0.99),
}
# No honest remedy exists: part of what the refusal says.
REFUSED = {
    "CutByData": (
        r"look for \.data and inference_mode\(\), which cannot be disabled from outside",
        r"thaw: no parameter of blocks\.1\.attention is frozen",
        r"gradient has to be done by hand",
    ),
    "DetachedWeights": (
        r"look for \.data and inference_mode\(\), which cannot be disabled from outside",
        r"gradient has to be done by hand",
    ),
    "FrozenZero": (r"an output layer or gate that is zero and frozen",),
    "SaturatedDecoder": (r"written out for one query", r"regard\.nn\.BahdanauAttention"),
    "BrokenWeights": (
        r"weights themselves hold NaN or Inf \(blocks\.1\.before\.weight\): load an earlier checkpoint",
        r"numbers has to be done by hand",
    ),
}
# Better, and beyond that it takes training or another remedy: clips bring one number to its limit,
# and queries and keys of rank one stay so whatever their length is.
NOT_YET_HEALTHY = frozenset({"Large", "Diverging", "CollapsedEntropy", "Hijacked", "CapturedLayer"})


class Diagnosed(NamedTuple):
    """A patient whose disease was found."""

    model: nn.Module
    doctor: Doctor
    finding: Finding


def planted(name: str) -> Patient:
    """A patient by name."""
    return next(x for x in PLANTED if x.name == name)


def diagnosed(patient: Patient) -> Diagnosed:
    """The patient and the first finding of its disease."""
    assert patient.disease is not None
    return noted(patient, patient.disease)


def noted(patient: Patient, disease: str) -> Diagnosed:
    """The patient and the first finding of a disease, which may be a note of a healthy one."""
    model, doctor = patient.examined()
    found = [x for x in doctor.findings() if x.disease == disease]
    assert found, f"{disease} of {patient.name} was not found"
    return Diagnosed(model, doctor, found[0])


def first_remedy(patient: Patient, case: Diagnosed) -> tuple[Treatment, Effect]:
    """Treat it by what comes first; gives the effect on the signal that counts, too."""
    treatment = case.doctor.treat(case.finding, batch=patient.batch(0))
    vital = AMOUNTS[patient.name][1]
    return treatment, next(x for x in treatment.effects if x.signal.vital == vital)
