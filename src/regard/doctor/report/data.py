"""An examination as data: what every report is made from, and what its JSON file holds.

Everything in a `Record` is strict JSON: NaN, which means not measured, is null, and an infinity is
"inf" or "-inf". Nothing in it names the machine.

The last values are heads x vitals numbers; `courses.py` says how large the courses can get.
"""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import regard
from regard.doctor.capture.names import unwrapped
from regard.doctor.findings.finding import Finding
from regard.doctor.report.courses import Course, CourseBudget, courses_of, last_values
from regard.doctor.report.entries import facts_entry, finding_entry, vital_entry
from regard.doctor.report.numbers import Number

if TYPE_CHECKING:
    from regard.doctor.probing import Probe
    from regard.doctor.watch import Doctor


class SiteRecord(NamedTuple):
    """One attention call.

    Attributes:
        name, module, route, heads: as `regard.doctor.chart.Site` has them.
        facts: sizes and options of its last call.
        last: for each vital the last value of each head.
        courses: for each vital its course over time.
    """

    name: str
    module: str
    route: str
    heads: int
    facts: dict[str, Any]
    last: dict[str, list[Number]]
    courses: dict[str, Course]


class Record(NamedTuple):
    """One examination.

    Attributes:
        model: its name.
        parameters: how many numbers it learns.
        made: when, in UTC.
        versions: of regard and torch.
        level: what was measured at every `every`-th step.
        every: see level.
        steps: how many there were.
        kept: of how many of them numbers are kept.
        vitals: name, unit, level, meaning, and whether low values are the bad ones.
        axes: lists of steps that courses share; a point that stands for several has the last one's.
        sites: in the order in which they were first seen.
        findings: the worst first.
        notes: what to know about the numbers.
        left_out: what a bound on the size took away, "" for nothing.
        probe: what the model withstood, as `Probe.as_dict` has it; None where it was not attacked.
    """

    model: str
    parameters: int
    made: str
    versions: dict[str, str]
    level: str
    every: int
    steps: int
    kept: int
    vitals: list[dict[str, Any]]
    axes: list[list[int]]
    sites: list[SiteRecord]
    findings: list[dict[str, Any]]
    notes: list[str]
    left_out: str
    probe: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Dicts, lists, texts and finite numbers alone."""
        sites = [
            site._asdict() | {"courses": {k: c._asdict() for k, c in site.courses.items()}}
            for site in self.sites
        ]
        return self._asdict() | {"sites": sites}

    def to_text(self) -> str:
        """As JSON in ASCII, on one line."""
        return json.dumps(self.as_json(), allow_nan=False, separators=(",", ":"))


def record_of(
    doctor: Doctor,
    findings: list[Finding] | None = None,
    *,
    name: str | None = None,
    probe: Probe | None = None,
) -> Record:
    """What a doctor knows, copied from the device.

    Args:
        doctor: it goes on watching.
        findings: `doctor.findings()` unless given.
        name: of the model; its class's name unless given.
        probe: what `doctor.probe` gave.
    """
    findings = doctor.findings() if findings is None else findings
    budget = CourseBudget(doctor, findings)
    axes: dict[tuple[int, ...], int] = {}
    sites, kept = [], set()
    for site in doctor.chart.order:
        history = doctor.history(site.name)
        kept.update(history.steps)
        last, courses = {}, {}
        if history.steps:
            last = last_values(history.values, doctor.vitals)
            heads = budget.heads_of(site.name, site.heads)
            courses = courses_of(history, doctor.vitals, axes, budget.points, heads)
        sites.append(
            SiteRecord(
                site.name, site.module, site.route, site.heads, facts_entry(site), last, courses
            )
        )
    model = unwrapped(doctor.model)
    return Record(
        model=type(model).__name__ if name is None else name,
        parameters=sum(x.numel() for x in model.parameters()),
        made=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        versions={"regard": regard.__version__, "torch": str(torch.__version__)},
        level=doctor.level.value,
        every=doctor.chart.every,
        steps=doctor.steps,
        kept=len(kept),
        vitals=[vital_entry(vital) for vital in doctor.vitals],
        axes=[list(steps) for steps in axes],
        sites=sites,
        findings=[finding_entry(finding) for finding in findings],
        notes=doctor.notes,
        left_out=budget.left_out,
        probe=None if probe is None else probe.as_dict(),
    )
