"""Output of a doctor's measurements and findings: terminal, HTML, JSON, JSON lines, loggers.

This folder holds formats and their texts. Nothing here measures or judges.

`huggingface.py` is not imported here, because it needs transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from regard.doctor.findings.finding import Finding
from regard.doctor.report.data import Record, record_of
from regard.doctor.report.html import write_html
from regard.doctor.report.jsonlines import JsonLines, LinesError, SavedHistory, read_lines
from regard.doctor.report.live import Live, live
from regard.doctor.report.log import LogTo
from regard.doctor.report.tensorboard import TensorBoard
from regard.doctor.report.terminal import show, summary_text
from regard.measuring.files import write_atomic

if TYPE_CHECKING:
    from regard.doctor.probing import Probe
    from regard.doctor.watch import Doctor

__all__ = [
    "JsonLines",
    "LinesError",
    "Live",
    "LogTo",
    "Record",
    "ReportError",
    "SavedHistory",
    "TensorBoard",
    "live",
    "read_lines",
    "record_of",
    "show",
    "summary_text",
    "write_html",
    "write_report",
]


class ReportError(OSError):
    """A report could not be written; a file that was there before is unchanged."""


def write_report(
    doctor: Doctor,
    path: str | Path,
    findings: list[Finding] | None = None,
    *,
    name: str | None = None,
    probe: Probe | None = None,
) -> Path:
    """Write the report: one HTML file, or the record as JSON if the path ends in `.json`.

    Args:
        doctor: the doctor, which keeps watching.
        path: the file to write; an existing report is replaced once the new one is complete.
        findings: `doctor.findings()` unless given.
        name: name of the model; the name of its class unless given.
        probe: result of `regard.doctor.probe`, to include in the report.

    Raises:
        ReportError: the file cannot be written.
    """
    path = Path(path)
    record = record_of(doctor, findings, name=name, probe=probe)
    try:
        if path.exists() and not path.is_file():
            # Moving the finished file into place would replace a device such as /dev/null by it.
            raise OSError("the path exists and is not a regular file")
        if path.suffix == ".json":
            write_atomic(path, record.to_text().encode() + b"\n")
        else:
            write_html(record, path, attacks="" if probe is None else str(probe))
    except OSError as error:
        raise ReportError(f"cannot write the report to {path}: {error.strerror or error}") from None
    return path
