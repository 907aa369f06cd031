"""The first remedy of every planted disease makes its signals better, by an amount stated here."""

from __future__ import annotations

import re

import pytest
import torch

from regard.doctor.remedies.treat import TreatmentRefused

from .patients import PLANTED
from .patients.treated import AMOUNTS, NOT_YET_HEALTHY, REFUSED, diagnosed, first_remedy


def marked(patients) -> list:
    slow = ("Unregistered",)
    return [
        pytest.param(x, id=x.name, marks=[pytest.mark.slow] if x.slow or x.name in slow else [])
        for x in patients
    ]


@pytest.mark.parametrize("patient", marked(x for x in PLANTED if x.name in AMOUNTS))
def test_the_first_remedy_helps(patient):
    remedy, _, least = AMOUNTS[patient.name]
    case = diagnosed(patient)
    model = case.model
    before = {name: x.clone() for name, x in model.state_dict().items()}
    treatment, effect = first_remedy(patient, case)
    assert treatment.remedy.name == remedy
    assert effect.gain >= least and treatment.better, treatment.summary()
    assert treatment.healed == (patient.name not in NOT_YET_HEALTHY), treatment.summary()
    treatment.undo()
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(same(after[name], before[name]) for name in before)


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return torch.equal(x.nan_to_num(), y.nan_to_num()) and torch.equal(x.isnan(), y.isnan())


@pytest.mark.parametrize("patient", marked(x for x in PLANTED if x.name in REFUSED))
def test_what_no_remedy_reaches_is_refused_with_the_reason(patient):
    model, doctor, found = diagnosed(patient)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(TreatmentRefused) as refusal:
        doctor.treat(found, batch=patient.batch(0))
    for part in REFUSED[patient.name]:
        assert re.search(part, str(refusal.value))
    after = model.state_dict()
    assert list(after) == list(before) and all(same(after[name], before[name]) for name in before)


def test_no_patient_is_forgotten():
    assert {patient.name for patient in PLANTED} == {*AMOUNTS, *REFUSED}


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
