"""`Record`: an examination as data, which every report and the JSON file are made from.

Everything in a `Record` is strict JSON: NaN, which means not measured, is null, and an infinity is
"inf" or "-inf". Nothing in it identifies the machine.

The last values are heads x vitals numbers; `courses.py` bounds the size of the courses.
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
        name, module, route, heads: as in `regard.doctor.chart.WatchedSite`.
        facts: sizes and options of its last call.
        last: the last value of each head, by vital.
        courses: the course over time, by vital.
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
        model: name of the model.
        parameters: number of its parameters.
        made: when the record was made, in UTC.
        versions: versions of regard and torch.
        level: the level measured at every `every`-th step.
        every: see level.
        steps: number of steps watched.
        kept: number of steps whose measurements are kept.
        vitals: name, unit, level, meaning, and whether low values are the bad ones.
        axes: lists of steps that courses share; a point for several steps has the last of them.
        sites: attention calls, in the order in which they were first seen.
        findings: findings, worst first.
        notes: sentences that qualify the numbers.
        left_out: what was left out to bound the size; "" for nothing.
        probe: result of `Probe.as_dict`; None if the model was not probed.
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
        """The record as dicts, lists, texts and finite numbers."""
        sites = [
            site._asdict() | {"courses": {k: c._asdict() for k, c in site.courses.items()}}
            for site in self.sites
        ]
        return self._asdict() | {"sites": sites}

    def to_text(self) -> str:
        """The record as JSON in ASCII, on one line."""
        return json.dumps(self.as_json(), allow_nan=False, separators=(",", ":"))


def record_of(
    doctor: Doctor,
    findings: list[Finding] | None = None,
    *,
    name: str | None = None,
    probe: Probe | None = None,
) -> Record:
    """The record of a doctor's measurements and findings, copied from the device.

    Args:
        doctor: the doctor, which keeps watching.
        findings: `doctor.findings()` unless given.
        name: name of the model; the name of its class unless given.
        probe: result of `regard.doctor.probe`.
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
