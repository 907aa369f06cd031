"""The record of an examination: strict JSON, small, and true to what was measured."""

from __future__ import annotations

import json
import math

import pytest
import torch

from regard.doctor.findings.finding import Severity
from regard.doctor.remedies import REMEDIES
from regard.doctor.report import courses
from regard.doctor.report.courses import MOST_POINTS
from regard.doctor.report.data import record_of
from regard.doctor.report.numbers import cells, harmless, plain, ranges, real, shortened, shown
from regard.doctor.report.reading import KEY_VITALS, glance
from regard.doctor.report.words import headline
from regard.doctor.vitals import INDEX, VITALS
from regard.doctor.watch import watch

from .reporting import BY_HAND, HEADS, HOSTILE, constant, examined, finding, renamed, values_record
from .watching import Attention, Kept, Stack, tokens


def strict(text: str) -> dict:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_it_holds_what_was_measured() -> None:
    d = examined()
    record = record_of(d, [finding()])
    found = strict(record.to_text())
    assert found == json.loads(json.dumps(record.as_json()))
    assert [site["name"] for site in found["sites"]] == d.sites
    assert found["sites"][0]["facts"]["dims"] == 8
    for site in record.sites:
        history = d.history(site.name)
        for vital, numbers in site.last.items():
            column = history.values[:, :, INDEX[vital]]
            measured = column[~column.isnan().any(1)]
            assert [real(x) for x in numbers] == pytest.approx(measured[-1].tolist(), rel=1e-3)
    # Cheap vitals at every step, sampled ones at every second.
    found = record.sites[0].courses
    assert record.axes[found["logit_bound"].axis] == [1, 2, 3, 4, 5, 6]
    assert record.axes[found["logit_max"].axis] == [1, 3, 5]
    assert len(found["logit_max"].heads) == HEADS


def test_courses_are_ranges_and_means_over_heads() -> None:
    values = torch.rand(5, 3, len(VITALS))
    course = values_record(values).sites[0].courses["entropy"]
    column = values[..., INDEX["entropy"]]
    for mine, theirs in zip(
        course[1:4], (column.amin(1), column.mean(1), column.amax(1)), strict=True
    ):
        assert [real(x) for x in mine] == pytest.approx(theirs.tolist(), rel=1e-3)


def test_long_histories_are_binned_by_mean_or_largest() -> None:
    steps = 4 * MOST_POINTS
    values = torch.arange(steps).float().reshape(-1, 1, 1).expand(-1, 2, len(VITALS))
    record = values_record(values)
    found = record.sites[0].courses
    assert record.axes[found["entropy"].axis][:3] == [4, 8, 12]
    assert found["entropy"].mean[:3] == [1.5, 5.5, 9.5]
    assert found["logit_max"].high[:3] == [3, 7, 11]
    assert all(len(axis) <= MOST_POINTS for axis in record.axes)


def test_its_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courses, "MOST_NUMBERS", 20_000)
    d = watch(Stack(Attention()), window=256)
    for name in ("a", "b", "c"):
        site = d.chart.site_of(name, "sdpa")
        for step in range(256):
            d.chart.step = step + 1
            d.chart._put(site, torch.rand(64, len(VITALS)))
    record = record_of(d, [finding("b", heads=tuple(range(20)))])
    numbers = sum(
        len(x) for s in record.sites for c in s.courses.values() for x in c.heads.values()
    )
    assert 0 < numbers <= 20_000
    assert set(record.sites[1].courses["entropy"].heads) < set(range(20))
    assert record.sites[0].courses["entropy"].heads == {}
    assert "too many" in record.left_out


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_is_strict_json(value: float) -> None:
    record = values_record(constant(3, 2, value))
    found = strict(record.to_text())
    if math.isnan(value):
        assert found["sites"][0]["last"] == {}
        assert headline(record) == ("Attention was seen, but nothing could be measured.", "none")
    else:
        assert found["sites"][0]["last"]["entropy"] == [plain(value)] * 2


def test_nothing_at_all() -> None:
    record = record_of(watch(Stack()), [])
    assert strict(record.to_text())["sites"] == []
    assert headline(record) == ("No attention was seen.", "none")


def test_one_step_and_vitals_of_ones_own() -> None:
    kept = Kept()
    model = Stack(Attention())
    with watch(model, vitals=kept.vitals) as d:
        model(tokens())
    record = record_of(d, [])
    assert record.sites[0].last.keys() == {"bound", "rows"}
    assert record.vitals[0] == {"name": "bound", "unit": "", "level": "", "meaning": "", "low_is_worse": False}  # fmt: skip


def test_hostile_names_survive_as_they_are() -> None:
    record = renamed(record_of(examined(), [finding()]))
    assert [site["name"] for site in strict(record.to_text())["sites"]] == list(HOSTILE)


@pytest.mark.parametrize(
    ("severities", "sentence"),
    [
        ([], "A clean bill of health."),
        ([Severity.NOTE], "A clean bill of health, with 1 note."),
        ([Severity.WARNING], "1 warning found."),
        ([Severity.FAILURE] * 2 + [Severity.WARNING], "2 failures and 1 warning found."),
    ],
)
def test_the_verdict(severities: list[Severity], sentence: str) -> None:
    record = values_record(constant(1, 2, 0.5), tuple(finding(severity=s) for s in severities))
    assert headline(record)[0] == sentence


def test_remedies_have_code_or_say_what_to_do() -> None:
    by_code, by_hand = record_of(examined(), [finding()]).findings[0]["remedies"]
    assert by_code["code"] == "d.treat(finding, 'qk-norm', batch)"
    assert by_hand["code"] == ""
    assert by_hand["by_hand"] == REMEDIES[BY_HAND].does


def test_a_glance_sees_the_newest_and_the_worst() -> None:
    d = watch(Stack(Attention()), window=4)
    site = d.chart.site_of("a", "sdpa")
    for step in range(6):
        d.chart.step = step + 1
        row = torch.full((2, len(VITALS)), torch.nan)
        row[:, INDEX["logit_bound"]] = torch.tensor([step, step + 10.0])
        if step == 4:
            row[:, INDEX["entropy"]] = torch.tensor([0.25, 0.5])
        d.chart._put(site, row)
    seen = glance(d, ["logit_bound", "entropy"])["a"]
    assert seen.newest.tolist() == [[5, 0.25], [15, 0.5]]
    assert seen.course[:, 0].tolist() == [12, 13, 14, 15]
    assert seen.worst(1, "entropy") == 0.25
    assert seen.mean(1) == 0.375


def test_tables_name_vitals_that_exist() -> None:
    assert set(KEY_VITALS) <= set(INDEX)


def test_numbers_and_names_for_people() -> None:
    assert [shown(x) for x in (None, "inf", 0, 123456, 99.96, 3.14159, 0.01234, 1e-9, 8)] == (
        ["-", "inf", "0", "1.2e5", "100", "3.14", "0.012", "1.0e-9", "8"]
    )
    assert ranges([5, 0, 1, 2]) == "0-2, 5"
    for text in HOSTILE:
        for width in (8, 20, 77):
            assert cells(shortened(harmless(text), width)) <= width
    assert shortened("encoder.layers.11.attention", 20) == "enc.lay.11.attention"
    assert shortened("encoder.layers.11.attention", 16) == "e.l.11.attention"
    assert shortened("encoder.layers.11.attention", 13) == "e.l.…ttention"
    assert harmless("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"
