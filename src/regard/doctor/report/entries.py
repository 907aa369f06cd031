"""Sites, vitals, findings and remedies as entries of the JSON record."""

from __future__ import annotations

from typing import Any

from regard.doctor.chart import WatchedSite
from regard.doctor.findings.finding import Advice, Finding
from regard.doctor.remedies import REMEDIES
from regard.doctor.report.numbers import plain
from regard.doctor.vitals.table import INDEX, VITALS


def facts_entry(site: WatchedSite) -> dict[str, Any]:
    """The facts of a site; empty before the first measurement."""
    if site.facts is None:
        return {}
    facts = site.facts
    scale = None if facts.scale is None else plain(facts.scale)
    return facts._asdict() | {"kind": facts.kind.value, "scale": scale}


def vital_entry(name: str) -> dict[str, Any]:
    """Unit, level and meaning of a vital."""
    if name not in INDEX:  # a vital of the user's own
        return {"name": name, "unit": "", "level": "", "meaning": "", "low_is_worse": False}
    vital = VITALS[INDEX[name]]
    return {
        "name": name,
        "unit": vital.unit,
        "level": "gradient" if vital.backward else vital.level.value,
        "meaning": vital.meaning,
        "low_is_worse": vital.low_is_worse,
    }


def finding_entry(finding: Finding) -> dict[str, Any]:
    """A finding as plain data."""
    signals = [
        signal._asdict()
        | {"value": plain(signal.value), "threshold": plain(signal.threshold)}
        | {"made_of": signal.made_of}
        for signal in finding.signals
    ]
    return finding._asdict() | {
        "severity": str(finding.severity),
        "heads": list(finding.heads),
        "signals": signals,
        "confidence": plain(finding.confidence),
        "remedies": [remedy_entry(advice) for advice in finding.remedies],
        "code": code_of(finding),
    }


def remedy_entry(advice: Advice) -> dict[str, Any]:
    """A remedy with the code that applies it, or a text if it has to be done by hand.

    In the code `d` is the doctor and `batch` an input of the model; `code` in the entry of the finding
    assigns `finding`.
    """
    remedy = REMEDIES.get(advice.remedy)
    if remedy is not None and not remedy.applies:
        return advice._asdict() | {"by_hand": remedy.does, "code": ""}
    return advice._asdict() | {"by_hand": "", "code": f"d.treat(finding, {advice.remedy!r}, batch)"}


def code_of(finding: Finding) -> str:
    """Python code that looks the finding up again among those of the doctor `d`."""
    named = f"({finding.disease!r}, {finding.site!r})"
    return f"finding = next(f for f in d.findings() if (f.disease, f.site) == {named})"
