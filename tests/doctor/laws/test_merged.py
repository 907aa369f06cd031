"""Findings of a watch beside those of the laws: none is told twice, and the exit status is that of the laws."""

from __future__ import annotations

from regard.doctor.findings import Severity
from regard.doctor.laws.checking import check
from regard.doctor.laws.result import merged

from ..reporting import finding
from .handmade import Small
from .hosts import tokens


def named(disease: str, site: str):
    return finding(site, Severity.WARNING)._replace(disease=disease)


def test_what_a_law_tells_better_is_not_told_twice():
    laws = [named("who-may-see-whom", "h.1"), named("gradients-arrive", "h.2")]
    vitals = [
        named("missing-mask", "h.1"),
        named("no-gradient", "h.2"),
        named("missing-mask", "h.0"),
        named("large-logits", "h.1")._replace(severity=Severity.FAILURE),
    ]
    found = [(x.disease, x.site) for x in merged(vitals, laws)]
    assert sorted(found) == sorted(
        [*((x.disease, x.site) for x in laws), ("missing-mask", "h.0"), ("large-logits", "h.1")]
    )
    assert found[0] == ("large-logits", "h.1")


def test_vitals_are_shown_beside_the_laws_and_break_none():
    result = check(Small({}, causal=True), tokens(3, 10), causal=True)
    assert result.ok and not result.findings
    beside = result._replace(vitals=(named("large-logits", "blocks.1.attention"),))
    assert beside.ok and [x.disease for x in beside.findings] == ["large-logits"]
    assert "large-logits" in str(beside.as_dict()) and "blocks.1.attention" in str(beside)
