"""docs/doctor.md says what the code does: its tables are made from it."""

from __future__ import annotations

import re

from regard.doctor import DISEASES, REMEDIES, VITALS
from regard.doctor.patients import EXAMPLES

from .page_tables import PAGE, TABLES, between, written

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code():
    """`python -m tests.doctor.page_tables` writes them."""
    assert written(TEXT) == TEXT


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
