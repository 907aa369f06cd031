"""Results on disk, each file whole or not there at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from regard.choose.results import Report


def write_atomic(path: Path, data: bytes) -> None:
    """Write beside the target, then move into place: a reader never sees half a file."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)  # mkstemp gives the owner alone access
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def to_json(report: Report) -> str:
    """The report as JSON text."""
    return json.dumps(report.as_dict(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def save(report: Report, folder: Path) -> list[Path]:
    """Write `choose.json`, and the chart as `choose.png` and `choose.svg`.

    Raises:
        OSError: the folder cannot be made or written to, or the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "choose.json"]
    write_atomic(written[0], to_json(report).encode())
    if not any(row.timed() for row in report.rows):
        return written
    from regard.choose import chart

    for suffix, data in chart.draw(report).items():
        written.append(folder / f"choose.{suffix}")
        write_atomic(written[-1], data)
    return written
