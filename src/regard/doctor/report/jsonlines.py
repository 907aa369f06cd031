"""The history of a doctor as JSON lines, written while the model trains.

The first line names the columns. Every other line is one step of one attention call:

    {"format": "regard doctor", "version": 1, "model": "GPT", "vitals": ["logit_mean", ...]}
    {"step": 1, "site": "h.0.attn", "values": [[0.1, null, "inf", ...], ...]}

with a list of numbers for each head. NaN, which means not measured, is null; an infinity is "inf" or
"-inf". Writing to an existing file continues it; a last line that a crash cut off is removed. If a step
appears twice, the later line counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from regard.doctor.capture.names import unwrapped
from regard.doctor.chart import History
from regard.doctor.report.listening import Listener
from regard.doctor.report.numbers import plain, real

if TYPE_CHECKING:
    from regard.doctor.watch import Doctor

FORMAT, VERSION = "regard doctor", 1
DIGITS = 6
EVERY = 50
# Bytes read at the end of an existing file to find its last step: files of long runs hold gigabytes.
TAIL = 1 << 20


class LinesError(ValueError):
    """The file is not a history of a doctor, or has other vitals than this doctor."""


class SavedHistory(NamedTuple):
    """The contents of a file: the model's name, the vitals' names, and the history of every site."""

    model: str
    vitals: tuple[str, ...]
    sites: dict[str, History]


class JsonLines(Listener):
    """A listener that writes every step to a file: `with JsonLines(doctor, "history.jsonl"): ...`.

    Args:
        doctor: the doctor to write the history of. In a new file its earlier steps are written too, as
            far as they are kept.
        path: the file; an existing one is continued, and so is its step number.
        every: number of steps to write at once; at most the doctor's window, 50 by default.
        start: number of the step before this doctor's first; by default the last step in the file. Set
            it when training resumes from an older checkpoint.

    `start` raises `LinesError` if the existing file is not such a history, and `OSError` if it cannot
    be written.
    """

    def __init__(
        self,
        doctor: Doctor,
        path: str | Path,
        every: int | None = None,
        *,
        start: int | None = None,
    ) -> None:
        every = min(EVERY, doctor.chart.window) if every is None else every
        super().__init__(doctor, steps=every)
        if every > doctor.chart.window:
            raise ValueError(
                f"every must be at most the doctor's window of {doctor.chart.window} steps, got "
                f"{every}: older steps are not kept"
            )
        self.path, self.first = Path(path), start
        self.file: Any = None
        self.written = self.offset = 0

    def start(self) -> Self:
        """Open the file, to continue what is in it."""
        if self.listening:
            return self
        self.file = self.path.open("a+b", buffering=0)
        try:
            last = self.prepare()
        except BaseException:
            self.file.close()
            raise
        if last is None:  # a new file: the steps that the doctor already has are written too
            self.written, self.offset = 0, 0
        else:
            self.written, self.offset = self.doctor.steps, last - self.doctor.steps
        self.offset = self.offset if self.first is None else self.first
        self.seen = self.written
        return super().start()

    def prepare(self) -> int | None:
        """Make the file ready to append to; returns the last step in it, None for a new file."""
        header = {
            "format": FORMAT,
            "version": VERSION,
            "model": type(unwrapped(self.doctor.model)).__name__,
            "vitals": list(self.doctor.vitals),
        }
        size = self.file.seek(0, 2)
        self.file.seek(0)
        first = self.file.readline()
        if not first.endswith(b"\n"):  # a new file, or one cut in its first line
            if first and not line_of(header).startswith(first):
                raise LinesError(f"{self.path} is not a history of a doctor: name another file")
            self.file.truncate(0)
            self.file.write(line_of(header))
            return None
        there = read_header(first, self.path)
        if list(there["vitals"]) != header["vitals"]:
            raise LinesError(f"{self.path} has other vitals than this doctor: name another file")
        # A crash may have cut the last line. Cut the file after its last newline, so that what is
        # appended starts on a line of its own.
        begin = max(len(first), size - TAIL)
        self.file.seek(begin)
        tail = self.file.read()
        whole = tail.rfind(b"\n") + 1
        if begin + whole < size and (whole or begin == len(first)):
            self.file.truncate(begin + whole)
        lines = tail[:whole].splitlines()
        try:
            return int(json.loads(lines[-1])["step"]) if lines else 0
        except (ValueError, TypeError, KeyError):
            raise LinesError(f"the last line of {self.path} is not a step of a history") from None

    def look(self) -> None:
        """Write the steps since the last look, in order of steps."""
        steps: dict[int, list[bytes]] = {}
        for site in self.doctor.chart.order:
            if site.ring is None:
                continue
            history = site.ring.read(after=self.written)
            for step, values in zip(history.steps, history.values.tolist(), strict=True):
                row = [[plain(x, DIGITS) for x in head] for head in values]
                line = {"step": step + self.offset, "site": site.name, "values": row}
                steps.setdefault(step, []).append(line_of(line))
        data = b"".join(line for step in sorted(steps) for line in steps[step])
        # One write for all lines, so that two processes that append do not mix them.
        while data:
            data = data[self.file.write(data) :]
        self.written = self.doctor.steps

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def read_lines(path: str | Path) -> SavedHistory:
    """The history in a file; an incomplete last line is left out.

    Raises:
        LinesError: the file is not a history; names the wrong line.
        OSError: the file cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        header = read_header(file.readline(), path)
        sites: dict[str, dict[int, list]] = {}
        for number, line in enumerate(file, start=2):
            try:
                found = json.loads(line)
                values = [[real(x) for x in head] for head in found["values"]]
                sites.setdefault(found["site"], {})[int(found["step"])] = values
            except (ValueError, TypeError, KeyError):
                if not line.endswith(b"\n"):
                    break
                raise LinesError(f"{path}, line {number}: not a step of a history") from None
    vitals = tuple(header["vitals"])
    return SavedHistory(
        header["model"], vitals, {name: as_history(rows, path) for name, rows in sites.items()}
    )


def as_history(rows: dict[int, list], path: Path) -> History:
    """A `History` from rows by step."""
    steps = sorted(rows)
    try:
        return History(steps, torch.tensor([rows[step] for step in steps], dtype=torch.float32))
    except ValueError:
        raise LinesError(f"{path} holds steps with different numbers of heads") from None


def read_header(line: bytes, path: Path) -> dict[str, Any]:
    """The model and vitals of the first line, checked."""
    try:
        found = json.loads(line)
        known = found["format"] == FORMAT
        names = [str(name) for name in found["vitals"]]
    except (ValueError, TypeError, KeyError):
        known, names, found = False, [], {}
    if not known:
        raise LinesError(f"{path} is not a history of a doctor")
    if found.get("version") != VERSION:
        raise LinesError(
            f"{path} has version {found.get('version')} of the format; this regard reads {VERSION}"
        )
    return {"model": str(found.get("model", "")), "vitals": names}


def line_of(found: dict[str, Any]) -> bytes:
    """A line of the file: strict JSON in ASCII."""
    return json.dumps(found, allow_nan=False, separators=(",", ":")).encode() + b"\n"
