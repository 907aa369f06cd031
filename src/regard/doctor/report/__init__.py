"""What a doctor has measured and found, as output: terminal, HTML, JSON, JSON lines, loggers.

Here belong formats and their texts; nothing here measures or judges.

`huggingface.py` is imported by itself: it needs transformers.
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
    """A report could not be written; what was there before is as it was."""


def write_report(
    doctor: Doctor,
    path: str | Path,
    findings: list[Finding] | None = None,
    *,
    name: str | None = None,
    probe: Probe | None = None,
) -> Path:
    """Write the report: one HTML file, or the record as JSON where the path ends in `.json`.

    Args:
        doctor: it goes on watching.
        path: where to; a report that is there is replaced once the new one is whole.
        findings: `doctor.findings()` unless given.
        name: of the model; its class's name unless given.
        probe: what `doctor.probe` gave, to be in it too.

    Raises:
        ReportError: it cannot be written there.
    """
    path = Path(path)
    record = record_of(doctor, findings, name=name, probe=probe)
    try:
        if path.exists() and not path.is_file():
            # The move into place would put a file where a device such as /dev/null was.
            raise OSError("there is something that is no file")
        if path.suffix == ".json":
            write_atomic(path, record.to_text().encode() + b"\n")
        else:
            write_html(record, path, attacks="" if probe is None else str(probe))
    except OSError as error:
        raise ReportError(f"cannot write the report to {path}: {error.strerror or error}") from None
    return path
