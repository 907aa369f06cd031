"""Treating the same finding twice does not stack one remedy on the other."""

from __future__ import annotations

import pytest

from regard.doctor.remedies.treat import TreatmentRefused
from regard.doctor.watch import watch

from .patients.treated import diagnosed, planted


@pytest.mark.parametrize("name", ["Growing", "UnscaledWide", "Large", "NoGradient"])
def test_the_same_finding_is_treated_once(name):
    patient = planted(name)
    _, doctor, finding = diagnosed(patient)
    treatment = doctor.treat(finding, batch=patient.batch(0))
    with pytest.raises(TreatmentRefused, match=r"treated with [a-z-]+ already"):
        doctor.treat(finding, batch=patient.batch(0))
    treatment.undo()
    again = doctor.treat(finding, batch=patient.batch(0))
    assert again.remedy is treatment.remedy and again.moved == treatment.moved
    again.undo()


def test_another_doctor_does_not_put_a_second_norm_on_the_first():
    patient = planted("Growing")
    model, doctor, finding = diagnosed(patient)
    doctor.treat(finding, "qk-norm", batch=patient.batch(0))
    names = list(model.state_dict())
    with pytest.raises(TreatmentRefused, match="has qk-norm already"):
        watch(model).treat(finding, "qk-norm", batch=patient.batch(0))
    assert list(model.state_dict()) == names


def test_the_first_advice_is_the_one_that_the_text_recommends():
    """The learning rate comes before a norm: the text says to check it first."""
    _, doctor, finding = diagnosed(planted("Growing"))
    assert "check this first" in finding.explanation
    assert finding.remedies[0].remedy == "rate"
    assert str(finding).endswith("try rate")
    treatment = doctor.treat(finding, batch=planted("Growing").batch(0))
    assert "by hand" in treatment.passed_over["rate"] and treatment.remedy.name == "qk-norm"
