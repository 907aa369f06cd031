"""Laws find what is planted at its site, accuse no healthy model, and each is needed."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("transformers")

from regard.doctor.findings import Severity
from regard.doctor.laws import LAWS, LawVerdict
from regard.doctor.laws.bench import BACKWARD, FORWARD
from regard.doctor.laws.checking import FAILED, check

from .faults import FAULTS
from .healthy import HEALTHY, WIDE
from .hosts import HOSTS
from .matrix import Planted, examined, outcome, planted

# Each fault once: hosts take turns.
TURNS = [
    next(case for case in itertools.chain(cases[turn % len(cases) :], cases))
    for turn, fault in enumerate(FAULTS)
    if (cases := [x for x in planted(False) if x.fault == fault])
]
# Notes that are right: what the healthy model does is rare, and its reader should know of it.
NOTES = {
    "queries at zero": "queries-and-keys-matter",
    "statistics over the batch": "one-sample-one-answer",
    "look-ahead convolution": "who-may-see-whom",
}


@pytest.mark.parametrize("case", TURNS, ids=lambda case: case.name)
def test_a_planted_fault_is_found_at_its_site(case: Planted) -> None:
    assert_found(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(planted()), ids=lambda case: case.name)
def test_every_planted_fault_is_found_at_its_site(case: Planted) -> None:
    assert_found(case)


def assert_found(case: Planted) -> None:
    result = examined(case)
    said = outcome(case, result)
    assert said.found and said.placed and said.others == (), str(result)
    finding = next(x for x in result.findings if x.disease == FAULTS[case.fault].law)
    assert finding.severity >= Severity.WARNING and finding.explanation and finding.remedies


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_a_healthy_model_has_no_alarm(case) -> None:
    result = case.examined()
    assert not result.broken, str(result)
    assert {x.disease for x in result.findings} == (
        {NOTES[case.name]} if case.name in NOTES else set()
    )
    assert result.forward <= FORWARD and result.backward <= BACKWARD
    assert not [x.why for x in result.rulings if FAILED in x.why]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers, about options of small models
@pytest.mark.parametrize("case", WIDE, ids=lambda case: case.name)
def test_a_family_of_transformers_has_no_alarm(case) -> None:
    result = case.examined()
    assert not result.broken, str(result)
    assert not [x.why for x in result.rulings if FAILED in x.why]


@pytest.mark.parametrize("law", [law.name for law in LAWS])
def test_a_law_that_is_switched_off_is_missed(law: str) -> None:
    """The faults of a law are found by that law: without it, no other alarm stands in for it."""
    cases = [
        case for case in TURNS if FAULTS[case.fault].law == law and not FAULTS[case.fault].also
    ]
    cases = cases or [case for case in TURNS if FAULTS[case.fault].law == law]
    case = cases[0]
    others = [x.name for x in LAWS if x.name != law]
    model = case.host.build(dict.fromkeys(case.layers, case.fault)).eval()
    batch = case.host.batch()
    found = check(model, batch, **case.host.options)
    without = check(model, batch, **case.host.options, laws=others)
    assert found.ruling(law).verdict is LawVerdict.BROKEN
    assert law not in {x.law for x in without.broken}
    # A mask of the whole pass that decoding does not have is seen by comparing the two, too.
    assert {x.law for x in without.broken} <= {*FAULTS[case.fault].also, "steps-are-the-whole"}


def test_every_law_has_a_planted_fault_in_several_hosts() -> None:
    for law in LAWS:
        hosts = {x.host.name for x in planted(False) if FAULTS[x.fault].law == law.name}
        assert len(hosts) >= 3, law.name
    assert {host.apart for host in HOSTS} == {True, False}
