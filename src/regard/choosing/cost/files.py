"""Writes a cost report to disk."""

from __future__ import annotations

import json
from pathlib import Path

from regard.choosing.cost.results import CostReport
from regard.measuring.files import write_atomic


def to_json(report: CostReport) -> str:
    """The report as JSON text."""
    return json.dumps(report.as_dict(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def save(report: CostReport, folder: Path) -> list[Path]:
    """Write `cost.json`, and the chart as `cost.png` and `cost.svg`: `choose.json` is the answer for data.

    Raises:
        OSError: the folder cannot be made or written to, or the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "cost.json"]
    write_atomic(written[0], to_json(report).encode())
    if not any(row.timed() for row in report.rows):
        return written
    from regard.choosing.cost import chart

    for suffix, data in chart.draw(report).items():
        written.append(folder / f"cost.{suffix}")
        write_atomic(written[-1], data)
    return written
