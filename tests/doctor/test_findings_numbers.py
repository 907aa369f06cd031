"""Rules on numbers made by hand: edges, and that no sign alone makes an alarm."""

from __future__ import annotations

import functools
import importlib
import json
import math
from pathlib import Path

import pytest
import torch

import regard
from regard.doctor.facts import Facts
from regard.doctor.findings import (
    DISEASES,
    Advice,
    Declared,
    Evidence,
    Finding,
    Severity,
    Signal,
    evidence,
    findings_of,
    merged,
)
from regard.doctor.findings.calibration import COUNTS, LAW_COUNTS, sure
from regard.doctor.findings.evidence import filled, has_fixed_positions
from regard.doctor.findings.growing_logits import GROWING
from regard.doctor.findings.large_logits import LARGE_LOGITS
from regard.doctor.findings.signs import above, judge
from regard.doctor.vitals import VITALS, Level
from regard.doctor.vitals.table import SeenForm
from regard.doctor.watch import watch

from .patients import HEALTHY, PLANTED
from .patients.models import Model, attentions

NAMES = tuple(vital.name for vital in VITALS)
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
FACTS = Facts(SeenForm.INNER, 4, 32, 32, 16, 0.25, False)
# One of the largest logit and one of the variance, which make large logits.
SICK = {"logit_max": 500.0, "logit_var": 900.0}


def made(steps: list[int], heads: int = 2, name: str = "a", **columns: object) -> Evidence:
    """Evidence with these columns, each a number, one for each head or (steps, heads)."""
    values = torch.full((len(steps), heads, len(NAMES)), math.nan)
    for vital, value in columns.items():
        values[..., NAMES.index(vital)] = torch.as_tensor(value, dtype=torch.float32)
    return Evidence(name, name, "sdpa", steps, values, NAMES, FACTS, Declared())


def diseases(*sites: Evidence, least: Severity = Severity.WARNING) -> list[str]:
    return [x.disease for x in findings_of(sites) if x.severity >= least]


@functools.cache
def healthy_sites() -> list[Evidence]:
    patient = next(p for p in HEALTHY if p.name == "Causal")
    return evidence(patient.examined()[1])


def test_nothing_known():
    assert findings_of([]) == []
    assert findings_of([made([1, 2, 3])]) == []
    assert findings_of([made([])]) == []
    assert findings_of([made([1, 2], heads=0, **SICK)]) == []
    assert (
        findings_of([made([1])._replace(facts=None, vitals=(), values=torch.empty(1, 2, 0))]) == []
    )


def test_all_columns_nan_in_between():
    """Levels differ from step to step: what was measured last counts."""
    gaps = torch.tensor([[math.nan], [500.0], [math.nan], [math.nan]]).expand(4, 2)
    (finding,) = findings_of([made([1, 2, 3, 4], logit_max=gaps, logit_var=900.0)])
    assert finding.disease == "large-logits" and finding.since == 2


def test_one_step_is_enough():
    (one,) = findings_of([made([7], **SICK)])
    (many,) = findings_of([made(list(range(20)), **SICK)])
    assert one.since == 7 and many.since == 0
    assert one.severity is many.severity is Severity.WARNING
    assert one.confidence == many.confidence == sure("large-logits")


def test_a_single_spike_is_no_state():
    peak = torch.full((9, 2), 1.0)
    peak[8] = 500.0
    assert diseases(made(list(range(9)), logit_max=peak, logit_var=900.0)) == []
    peak[6:] = 500.0
    (finding,) = findings_of([made(list(range(9)), logit_max=peak, logit_var=900.0)])
    assert finding.since == 6


def test_over_and_gone():
    peak = torch.full((9, 2), 500.0)
    peak[5:] = 1.0
    assert diseases(made(list(range(9)), logit_max=peak, logit_var=900.0)) == []


def test_heads_are_the_right_ones_and_each_is_told_once():
    site = made([1, 2], heads=4, logit_max=[1.0, 200.0, 5000.0, 300.0], logit_var=900.0)
    found = findings_of([site])
    assert [(x.severity, x.heads) for x in found] == [
        (Severity.FAILURE, (2,)),
        (Severity.WARNING, (1, 3)),
    ]
    assert found[1].signals[0].value == 300.0
    assert found[0].signals[0].threshold == 1000.0


def test_steps_that_left_the_window():
    patient = next(p for p in PLANTED if p.name == "Large")
    model = patient.build()
    with watch(model, every=1, window=2) as doctor:
        patient.run(model)
    (finding,) = doctor.findings()
    assert finding.since == 2 and doctor.history(finding.site).steps == [2, 3]


def test_without_vitals_there_is_nothing_to_find():
    patient = next(p for p in PLANTED if p.name == "Large")
    model = patient.build()
    with watch(model, vitals=None) as doctor:
        patient.run(model)
    assert doctor.findings() == []
    assert watch(model).findings() == []


EXTREMES = (math.nan, 0.0, 1e-30, 1.0, math.inf, 1e6)


@pytest.mark.parametrize("vital", NAMES)
def test_one_vital_alone_never_makes_an_alarm(vital):
    """In one head or all, of a healthy model, at its best and worst."""
    first, second, _ = healthy_sites()
    for place, value in enumerate(EXTREMES):
        changed = second.values.clone()
        changed[:, : 1 if place % 2 else None, NAMES.index(vital)] = value
        assert diseases(first, second._replace(values=changed)) == []


@pytest.mark.parametrize("vital", [v.name for v in VITALS if v.level is Level.CHEAP])
def test_nor_does_it_at_the_cheap_level(vital):
    sampled = [i for i, v in enumerate(VITALS) if v.level is not Level.CHEAP]
    _, second, _ = healthy_sites()
    for value in EXTREMES:
        changed = second.values.clone()
        changed[..., sampled] = math.nan
        changed[..., NAMES.index(vital)] = value
        assert diseases(second._replace(values=changed)) == []


def test_one_sign_alone_is_refused():
    e = made([1], **SICK)
    with pytest.raises(AssertionError, match="two different vitals"):
        judge(LARGE_LOGITS, e, Severity.WARNING, [above(e, "logit_max", 1.0, "x")])


def course(values: torch.Tensor, **more: object) -> Evidence:
    steps = list(range(len(values)))
    return made(steps, logit_max=values[:, None].expand(-1, 2), **more)


def growth(values: torch.Tensor) -> list[Severity]:
    """Of logits that follow this course, their variance with them."""
    e = course(values, logit_var=(values[:, None] / 4).square().expand(-1, 2))
    return [x.severity for x in GROWING.find(GROWING, [e])]


def test_growth():
    t = torch.linspace(0, 1, 40)
    assert growth(2 + 90 * t) == [Severity.WARNING]
    assert growth(2 * 200**t) == [Severity.FAILURE]
    assert growth(2 + 90 * t[:7]) == []  # too few steps to tell
    assert growth(2 + 30 * t) == []  # as healthy ones do
    assert growth(2 + 90 * (1 - torch.exp(-6 * t))) == []  # and stopped
    assert growth(90 - 60 * t) == []
    assert growth(torch.full((40,), 90.0)) == []
    assert GROWING.find(GROWING, [course(2 + 90 * t, logit_var=1.0)]) == []


def test_only_the_first_broken_site_is_named():
    clean = made([1, 2], name="a", nan_keys=0.0, nan_queries=0.0, nan_logits=0.0)
    late = torch.tensor([[0.0], [3.0]]).expand(2, 2)
    first = made([1, 2], name="b", nan_keys=late, nan_queries=0.0, nan_logits=late)
    after = made([1, 2], name="c", nan_keys=late, nan_queries=late, nan_logits=late)
    (finding,) = findings_of([clean, first, after])
    assert (finding.site, finding.since) == ("b", 2)
    assert "1 later attention call is" in finding.explanation
    assert "arose in the projections" in finding.explanation
    # A step earlier counts more than a place earlier.
    early = made([1, 2], name="c", nan_keys=3.0, nan_queries=3.0, nan_logits=3.0)
    (finding,) = findings_of([clean, first, early])
    assert (finding.site, finding.since) == ("c", 1)
    assert "came in with the input" in finding.explanation
    gone = early._replace(steps=[7, 8])
    (finding,) = findings_of([clean._replace(steps=[7, 8]), gone])
    assert "no longer kept" in finding.explanation and finding.confidence < 0.5


def test_rows_without_keys_are_the_origin_of_nan_after_them():
    empty = made([1], name="a", masked_rows=0.25, visible_share=0.75, nan_logits=0.0)
    broken = made([1], name="b", nan_logits=8.0, nan_keys=8.0)
    (finding,) = findings_of([empty, broken])
    assert (finding.disease, finding.site) == ("masked-rows", "a")
    assert finding.severity is Severity.FAILURE
    (finding,) = findings_of([empty])
    assert finding.severity is Severity.NOTE
    # Once NaN is in the weights no later batch tells anything.
    rows = torch.tensor([[0.0], [0.25], [0.0]]).expand(3, 2)
    late = torch.tensor([[0.0], [8.0], [8.0]]).expand(3, 2)
    after = torch.tensor([[0.0], [0.0], [8.0]]).expand(3, 2)
    empty = made([1, 2, 3], name="a", masked_rows=rows, visible_share=1 - rows, nan_keys=after)
    broken = made([1, 2, 3], name="b", nan_logits=late, nan_keys=late)
    (finding,) = findings_of([empty, broken])
    assert (finding.disease, finding.site, finding.since) == ("masked-rows", "a", 2)
    gradients = dict.fromkeys(("query_grad", "key_grad", "value_grad"), math.inf)
    alone = made([1], masked_rows=0.25, visible_share=0.75, **gradients)
    (finding,) = findings_of([alone])
    assert finding.severity is Severity.FAILURE


def test_a_cause_hides_what_follows_from_it():
    numbers = {
        "key_spread": 30.0,
        "sink_weight": 0.6,
        "sink_output": 0.9,
        "sink_value": 1.0,
        "logit_max": 3000.0,
        "logit_var": 900.0,
    }
    (finding,) = findings_of([made([1, 2], **numbers)])
    assert finding.disease == "key-norm-hijack" and finding.severity is Severity.FAILURE
    numbers["key_spread"] = [30.0, 1.0]
    found = findings_of([made([1, 2], **numbers)])
    assert {(x.disease, x.heads) for x in found} == {
        ("key-norm-hijack", (0,)),
        ("large-logits", (0, 1)),
    }


def test_filled():
    x = torch.tensor([[math.nan, 1.0], [2.0, math.nan], [math.nan, math.nan]])
    expected = torch.tensor([[math.nan, 1.0], [2.0, 1.0], [2.0, 1.0]])
    torch.testing.assert_close(filled(x), expected, equal_nan=True)
    assert filled(torch.empty(0, 3)).shape == (0, 3)


def test_fixed_positions_are_recognised():
    model = Model(*attentions(1))
    assert has_fixed_positions(model)
    del model.positions
    assert not has_fixed_positions(model)
    model.position_table = torch.nn.Embedding(8, 4)
    assert not has_fixed_positions(model)
    model.position_table.weight.requires_grad_(False)
    assert has_fixed_positions(model)


def test_names_and_causes():
    names = [x.name for x in DISEASES]
    assert len(set(names)) == len(names)
    for disease in DISEASES:
        file = disease.name.replace("-", "_")
        own = importlib.import_module(f"regard.doctor.findings.{file}")
        assert any(x is disease for x in vars(own).values())
        assert set(disease.causes) <= set(names) - {disease.name}
        assert disease.title and disease.explanation and disease.remedies


def test_a_finding_reads_as_a_line_and_is_short_in_a_list():
    finding = Finding(
        "large-logits", "large logits", Severity.FAILURE, "h.0", (0, 2), 7,
        (Signal("logit_max", 1234.0, 100.0, True, "ours"), Signal("entropy", 0.01, 0.1, False, "ours")),
        0.9, "They are large.", (Advice("qk-norm", "smaller"),),
    )  # fmt: skip
    assert str(finding) == (
        "failure: large logits, at h.0, heads 0, 2, since step 7: logit_max 1.23e+03 (above 100); "
        "entropy 0.01 (below 0.1); try qk-norm"
    )
    assert repr([finding]) == "[Finding('large-logits', 'failure', 'h.0', heads=(0, 2))]"


def test_equal_findings_of_one_call_become_one():
    one = Finding("large-logits", "large logits", Severity.FAILURE, "h.0", (2,), 7, (), 0.5, "", ())
    two, other = one._replace(heads=(0,), since=3, confidence=0.9), one._replace(site="h.1")
    assert merged([one, two, other]) == [
        one._replace(heads=(0, 2), since=3, confidence=0.9), other,
    ]  # fmt: skip
    milder = two._replace(severity=Severity.WARNING)
    assert merged([one, milder]) == [one, milder]


def test_narrow_gaussian_attention_is_not_called_unscaled():
    """Its learned bandwidth is multiplied into the query, so that the factor of the product is 1."""
    torch.manual_seed(0)
    layer = regard.nn.SelfAttention(32, heads=1, score="gaussian")
    with torch.no_grad():
        for weight in (layer.score.query_weight, layer.score.key_weight):
            weight.mul_(3)
    with watch(layer) as doctor:
        for _ in range(3):
            layer(torch.randn(8, 20, 32)).sum().backward()
    assert "unscaled-logits" not in {finding.name for finding in doctor.findings()}


def test_how_sure_a_finding_is_was_counted():
    """`python -m tests.doctor.calibration` writes the counts."""
    counted = json.loads((RESULTS / "doctor-sureness.json").read_text())
    assert {name: tuple(x) for name, x in counted["right_and_all"].items()} == COUNTS
    assert counted["sure"] == {name: sure(name) for name in COUNTS}
    assert tuple(counted["laws_right_and_all"]) == LAW_COUNTS
    assert {x.name for x in DISEASES} - set(COUNTS) == {"no-op-sink"}
    assert sure("no-op-sink") == 0.5 and min(map(sure, COUNTS)) > 0.5
