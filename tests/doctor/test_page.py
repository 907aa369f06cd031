"""docs/doctor.md says what the code does: its tables are made from it."""

from __future__ import annotations

import re

import pytest

from regard.doctor import DISEASES, REMEDIES, VITALS
from regard.doctor.patients import EXAMPLES

from .page_tables import MEASURED, PAGE, TABLES, between, written
from .patients import PLANTED

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code():
    """`python -m tests.doctor.page_tables` writes them."""
    assert written(TEXT) == TEXT


@pytest.mark.slow
def test_patients_are_treated_as_the_page_says():
    """The same remedies, and numbers of the same size: the last bits differ between machines."""
    pattern = between("patients")
    told = pattern.search(TEXT)[0].splitlines()
    again = pattern.search(written(TEXT, MEASURED))[0].splitlines()
    number = re.compile(r"-?[0-9][0-9.]*(?:e[+-][0-9]+)?|-?inf")
    assert [number.sub("#", x) for x in again] == [number.sub("#", x) for x in told]
    for one, two in zip(again, told, strict=True):
        measured, said = ([float(x) for x in number.findall(line)] for line in (one, two))
        # Below a thousandth is what rounding leaves.
        assert measured == pytest.approx(said, rel=0.3, abs=1e-3)


def test_every_planted_patient_is_in_the_page():
    rows = re.findall(r"^\| `([^`]+)`", between("patients").search(TEXT)[0], re.MULTILINE)
    assert rows == [patient.name for patient in PLANTED]


def test_every_vital_disease_and_remedy_is_there():
    shown = {name: between(name).search(TEXT)[0] for name in TABLES}
    for table, names in (
        ("vitals", [vital.name for vital in VITALS]),
        ("diseases", [disease.name for disease in DISEASES]),
        ("thresholds", [disease.name for disease in DISEASES]),
        ("remedies", list(REMEDIES)),
    ):
        rows = re.findall(r"^\| `([^`]+)`", shown[table], re.MULTILINE)
        assert list(dict.fromkeys(rows)) == names


def test_every_advice_is_a_remedy():
    for disease in DISEASES:
        assert {advice.remedy for advice in disease.remedies} <= set(REMEDIES)


def test_the_examples_of_the_command_exist():
    named = set(re.findall(r"^regard doctor ([a-z-]+) ", TEXT, re.MULTILINE)) - {"--list"}
    assert named and named <= set(EXAMPLES)
