"""The doctor: tells whether the attention of a model is healthy, what is wrong, and what helps.

This file only exports the public API. Each part imports only those before it in this list: `seen`,
`vitals`, `facts`, `chart`, `capture`, `findings`, `running`, `sites`, `signature`, `watch`, `remedies`,
`report`, `probing`, `laws`, `patients`, `checkup`. `Doctor` in `watch.py` imports remedies and reports inside its
methods.
The command line (`regard doctor`) is in `regard.cli`.
"""

from __future__ import annotations

from regard.doctor.findings import DISEASES, Advice, Finding, Severity, Signal
from regard.doctor.laws import LAWS
from regard.doctor.laws.checking import check
from regard.doctor.laws.result import Checked
from regard.doctor.probing import Probe, probe
from regard.doctor.remedies import REMEDIES, describe_changes, put_again
from regard.doctor.remedies.treat import Treatment, TreatmentRefused
from regard.doctor.report import JsonLines, LogTo, TensorBoard, live, show, write_report
from regard.doctor.report.data import record_of
from regard.doctor.vitals import VITALS, Level
from regard.doctor.watch import Doctor, attach, watch

__all__ = [
    "DISEASES",
    "LAWS",
    "REMEDIES",
    "VITALS",
    "Advice",
    "Checked",
    "Doctor",
    "Finding",
    "JsonLines",
    "Level",
    "LogTo",
    "Probe",
    "Severity",
    "Signal",
    "TensorBoard",
    "Treatment",
    "TreatmentRefused",
    "attach",
    "check",
    "describe_changes",
    "live",
    "probe",
    "put_again",
    "record_of",
    "show",
    "watch",
    "write_report",
]
