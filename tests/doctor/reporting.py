"""What the tests of reports share: a small model that was watched, made-up findings, bad names."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.doctor.findings.finding import Advice, Finding, Severity, Signal
from regard.doctor.remedies import REMEDIES
from regard.doctor.report.data import Record, record_of
from regard.doctor.vitals import VITALS
from regard.doctor.watch import Doctor, watch

from .watching import HEADS, Attention, Stack, tokens

HOSTILE = (
    "<script>alert('x')</script></script><!--",
    "\u202eevil\u202c.\x1b[31mred\n.\"quoted'&amp;",
    "模型.编码器.层.自注意力." * 4,
    "שכבה.תשומת_לב",
    "path." * 60 + "attention",
    "{{record}}",
    "\ud800",
)


# A remedy that no code can apply.
BY_HAND = next(name for name, remedy in REMEDIES.items() if not remedy.applies)


def examined(layers: int = 2, steps: int = 6, **options) -> Doctor:
    """A model that took a few steps of training while a doctor watched."""
    model = Stack(*[Attention() for _ in range(layers)])
    with watch(model, **{"every": 2, **options}) as d:
        for _ in range(steps):
            model(tokens()).square().sum().backward()
    return d


def finding(site: str = "layers.0", severity: Severity = Severity.FAILURE, **changes) -> Finding:
    """A made-up one."""
    return Finding(
        disease="growing-logits",
        title="the logits grow",
        severity=severity,
        site=site,
        heads=(1,),
        since=3,
        signals=(
            Signal("logit_max", 152.0, 100.0, True, "Kimi K2 (arXiv 2507.20534)"),
            Signal("entropy slope", -0.2, math.nan, False, "ours"),
        ),
        confidence=0.9,
        explanation="They rise from step to step.",
        remedies=(Advice("qk-norm", "bounded logits"), Advice(BY_HAND, "a look at it")),
    )._replace(**changes)


def renamed(record: Record, names: tuple[str, ...] = HOSTILE) -> Record:
    """With other names for its sites, as many sites as names, and a hostile model and note."""
    sites = [record.sites[i % len(record.sites)]._replace(name=n) for i, n in enumerate(names)]
    findings = [
        {**record.findings[0], "site": name, "title": f"sick {name}", "explanation": name}
        for name in names
    ]
    return record._replace(sites=sites, findings=findings, model=names[0], notes=[*names])


def values_record(values: Tensor, findings: tuple[Finding, ...] = ()) -> Record:
    """The record of one site with given values (steps, heads, vitals)."""
    d = watch(Stack(Attention()), window=max(values.shape[0], 1))
    site = d.chart.site_of("layers.0", "sdpa")
    for row in values:
        d.chart.step += 1
        d.chart._put(site, row)
    return record_of(d, list(findings))


def constant(steps: int, heads: int, value: float) -> Tensor:
    return torch.full((steps, heads, len(VITALS)), value)


__all__ = [
    "BY_HAND",
    "HEADS",
    "HOSTILE",
    "constant",
    "examined",
    "finding",
    "renamed",
    "values_record",
]
