"""The first remedy of every planted disease makes its signals better, by an amount stated here."""

from __future__ import annotations

import pytest
import torch

from regard.doctor.remedies.treat import TreatmentRefused

from .patients import PLANTED

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
    "TiedSides": ("temperature", "jacobian", 0.9),
    "TwinHeads": ("heads", "head_similarity", 0.5),
    "SaturatedTanh": ("shrink-tanh", "tanh_saturated", 0.9),
    "MaskedRow": ("mask", "masked_rows", 0.99),
    "InvertedCausal": ("mask", "next_share: visible", 0.99),
    "InvertedPadding": ("mask", "masked_rows", 0.99),
    "InvertedLongPadding": ("mask", "masked_rows", 0.99),
    "ForgottenMask": ("mask", "visible_share", 0.4),
    "Unregistered": ("mask", "visible_share", 0.4),
}
# By hand alone: where the code is wrong before the call.
BY_HAND = {
    "WashedOut": "positions",
    "Swamped": "positions",
    "SwampedEncoder": "positions",
    "NoGradient": "gradient",
    "BrokenNorm": "numbers",
    "Overflow": "numbers",
}
# What can be applied keeps the function and helps no more than training does; the summary says so.
NOT_YET = {"NoResiduals": "temperature", "DeadGradient": "qk-norm"}


def diagnosed(patient):
    model, doctor = patient.examined()
    found = [x for x in doctor.findings() if x.disease == patient.disease]
    assert found, f"{patient.name} was not found"
    return model, doctor, found[0]


def marked(patients) -> list:
    slow = ("Unregistered",)
    return [
        pytest.param(x, id=x.name, marks=[pytest.mark.slow] if x.slow or x.name in slow else [])
        for x in patients
    ]


@pytest.mark.parametrize("patient", marked(x for x in PLANTED if x.name in AMOUNTS))
def test_the_first_remedy_helps(patient):
    remedy, vital, least = AMOUNTS[patient.name]
    model, doctor, found = diagnosed(patient)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    treatment = doctor.treat(found, batch=patient.batch(0))
    assert treatment.remedy.name == remedy
    effect = next(x for x in treatment.effects if x.signal.vital == vital)
    assert effect.gain >= least and treatment.better, treatment.summary()
    treatment.undo()
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("patient", marked(x for x in PLANTED if x.name in BY_HAND))
def test_what_is_to_be_done_by_hand_is_told(patient):
    _, doctor, found = diagnosed(patient)
    with pytest.raises(TreatmentRefused, match=f"{BY_HAND[patient.name]} is to be done by hand"):
        doctor.treat(found, batch=patient.batch(0))


@pytest.mark.parametrize("patient", marked(x for x in PLANTED if x.name in NOT_YET))
def test_what_is_not_better_yet_is_not_praised(patient):
    _, doctor, found = diagnosed(patient)
    treatment = doctor.treat(found, batch=patient.batch(0))
    assert treatment.remedy.name == NOT_YET[patient.name]
    assert not treatment.better and not treatment.healed
    assert any(word in treatment.verdict() for word in ("nothing is better", "watch on"))


def test_no_patient_is_forgotten():
    named = {**AMOUNTS, **BY_HAND, **NOT_YET}
    assert {patient.name for patient in PLANTED} == set(named)


@pytest.mark.slow
def test_treated_training_does_not_grow_again():
    """A disease of training: after the remedy the same steps keep the logits low."""
    patient = next(x for x in PLANTED if x.name == "Growing")
    model, doctor, found = diagnosed(patient)
    largest = doctor.vitals.index("logit_max")
    doctor.treat(found, batch=patient.batch(0))
    with doctor:
        patient.run(model)
    values = doctor.history(found.site).values[:, list(found.heads), largest]
    sick, treated = values[: patient.steps].nan_to_num().max(), values[patient.steps :]
    assert sick > 1000 and treated.nan_to_num().max() < 0.02 * sick
