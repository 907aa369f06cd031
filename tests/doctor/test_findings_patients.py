"""Every planted disease is found where it is and nowhere else; healthy models get a clean bill."""

from __future__ import annotations

import pytest
import torch

from regard.doctor.findings import DISEASES, Finding, Severity
from regard.doctor.watch import watch

from .patients import HEALTHY, PLANTED, Patient


def params(patients: tuple[Patient, ...]) -> list:
    slow = pytest.mark.slow
    return [pytest.param(p, id=p.name, marks=[slow] if p.slow else []) for p in patients]


def alarms(patient: Patient, **options: object) -> tuple[list[Finding], object]:
    if patient.needs:
        pytest.importorskip(patient.needs)
    _, doctor = patient.examined(**options)
    found = doctor.findings()
    check_form(found, doctor)
    return [x for x in found if x.severity > Severity.NOTE], doctor


def check_form(found: list[Finding], doctor) -> None:
    """What holds for every finding."""
    assert [x.severity for x in found] == sorted((x.severity for x in found), reverse=True)
    for x in found:
        assert x.site in doctor.sites
        heads = doctor.chart.sites[x.site].heads
        assert x.heads and set(x.heads) <= set(range(heads))
        assert len({signal.vital for signal in x.signals}) >= 2
        assert all(signal.source for signal in x.signals)
        assert x.since in doctor.history(x.site).steps
        assert 0 < x.confidence <= 1
        assert 2 <= x.explanation.count(". ") + 1 <= 5 and x.remedies


@pytest.mark.parametrize("patient", params(PLANTED))
def test_planted(patient):
    found, doctor = alarms(patient)
    assert {x.disease for x in found} == {patient.disease}
    assert {x.site for x in found} == set(patient.sites)
    for site in patient.sites:
        heads = {head for x in found if x.site == site for head in x.heads}
        every = range(doctor.chart.sites[site].heads)
        assert heads == set(every if patient.heads is None else patient.heads)


@pytest.mark.parametrize("patient", params(HEALTHY))
def test_healthy(patient):
    found, _ = alarms(patient)
    assert found == []


@pytest.mark.parametrize("name", ["UnscaledWide", "Diverging", "Growing", "BrokenNorm", "Overflow"])
def test_cheap_level_finds_what_norms_tell(name):
    patient = next(p for p in PLANTED if p.name == name)
    found, _ = alarms(patient, level="cheap")
    assert {x.disease for x in found} == {patient.disease}
    assert {x.site for x in found} == set(patient.sites)


@pytest.mark.parametrize("patient", params(tuple(p for p in HEALTHY if not p.needs and not p.rate)))
def test_healthy_at_the_cheap_level(patient):
    found, _ = alarms(patient, level="cheap")
    assert found == []


def test_enough_patients_and_one_for_every_disease():
    assert len(PLANTED) >= 15 and len(HEALTHY) >= 15
    assert len({p.name for p in (*PLANTED, *HEALTHY)}) == len(PLANTED) + len(HEALTHY)
    assert {p.disease for p in PLANTED} == {x.name for x in DISEASES} - {"no-op-sink"}
    assert all(type(p).__doc__ for p in (*PLANTED, *HEALTHY))


def test_a_sink_without_a_value_is_a_note():
    patient = next(p for p in HEALTHY if p.name == "NoOpSink")
    _, doctor = patient.examined()
    assert {(x.disease, x.severity) for x in doctor.findings()} == {("no-op-sink", Severity.NOTE)}


def test_freezing_on_purpose_is_a_note():
    patient = next(p for p in HEALTHY if p.name == "Frozen")
    _, doctor = patient.examined()
    assert [(x.disease, x.site) for x in doctor.findings()] == [
        ("no-gradient", "blocks.0.attention")
    ]


def test_since_is_when_it_began():
    """The broken norm comes into a model that was healthy for four steps."""
    from .patients.logits import Large
    from .patients.models import head_rows

    patient = next(p for p in HEALTHY if p.name == "Causal")
    model = patient.build()
    with watch(model, every=1) as doctor:
        patient.run(model)
        assert doctor.findings() == []
        for layer in (model.blocks[1].attention.q, model.blocks[1].attention.k):
            layer.weight.data[head_rows(2)] *= 15
        patient.run(model)
    (finding,) = doctor.findings()
    assert finding.disease == Large.disease and finding.heads == (2,) and finding.since == 4


def test_a_shifted_mask_of_a_causal_module_is_a_note():
    """A GPT-2 whose mask shows each token its successor is not given a clean bill."""
    pytest.importorskip("transformers")
    from .laws.hosts import huggingface, ids_and_mask

    for fault, said in (("shifted-mask", ["missing-mask"]), ("", [])):
        torch.manual_seed(0)
        model = huggingface.built("GPT2LMHeadModel", {1: fault}).eval()
        with watch(model, every=1) as doctor:
            model(**ids_and_mask())
        assert [x.disease for x in doctor.findings()] == said
        assert {x.site for x in doctor.findings()} <= {"transformer.h.1.attn"}
        assert all("check(model, batch, causal=True)" in x.explanation for x in doctor.findings())
