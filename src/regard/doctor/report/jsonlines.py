"""A doctor's history as JSON lines, written while the model trains.

The first line says what the columns are. Every other line is one step of one attention call:

    {"format": "regard doctor", "version": 1, "model": "GPT", "vitals": ["logit_mean", ...]}
    {"step": 1, "site": "h.0.attn", "values": [[0.1, null, "inf", ...], ...]}

with a list of numbers for each head. NaN, which means not measured, is null; an infinity is "inf" or
"-inf". A file that is there already is gone on with; its last line may have been cut by a crash. A
step that is there twice counts as written last.
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
TAIL = 1 << 20  # bytes at the end of a file among which its last step is looked for


class LinesError(ValueError):
    """The file is not one of ours, or not of this doctor's vitals."""


class SavedHistory(NamedTuple):
    """What a file holds: the model's name, the vitals' names, and the history of every site."""

    model: str
    vitals: tuple[str, ...]
    sites: dict[str, History]


class JsonLines(Listener):
    """Writes every step to a file: `with JsonLines(doctor, "history.jsonl"): ...`.

    Args:
        doctor: whose history it is; of steps that it made before, what is kept is written too.
        path: of the file; one that is there is gone on with, its numbers of steps too.
        every: write after this many steps, at once for all of them; at most the doctor's window, by
            default 50.
        start: the number of the last step before this doctor's first; by default what the file has
            last. For training that goes on from an older checkpoint.

    When it starts it raises `LinesError` where the file there is another one, and `OSError` where it
    cannot be written.
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
            raise ValueError(f"every is {every}, and only {doctor.chart.window} steps are kept")
        self.path, self.first = Path(path), start
        self.file: Any = None
        self.written = self.offset = 0

    def start(self) -> Self:
        """Open the file, and go on with what is in it."""
        if self.listening:
            return self
        self.file = self.path.open("a+b", buffering=0)
        try:
            last = self.prepare()
        except BaseException:
            self.file.close()
            raise
        if last is None:  # a new file: what the doctor keeps goes in too
            self.written, self.offset = 0, 0
        else:
            self.written, self.offset = self.doctor.steps, last - self.doctor.steps
        self.offset = self.offset if self.first is None else self.first
        self.seen = self.written
        return super().start()

    def prepare(self) -> int | None:
        """Make the file ready to append to; the last step in it, None for a new one."""
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
                raise LinesError(f"{self.path} is no history of a doctor")
            self.file.truncate(0)
            self.file.write(line_of(header))
            return None
        there = read_header(first, self.path)
        if list(there["vitals"]) != header["vitals"]:
            raise LinesError(f"{self.path} has other vitals than this doctor: name another file")
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
        """Write what came since the last time, step by step."""
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
        # One write: two processes that append do not mix their lines.
        while data:
            data = data[self.file.write(data) :]
        self.written = self.doctor.steps

    def close(self) -> None:
        """Nothing more is written."""
        self.file.close()


def read_lines(path: str | Path) -> SavedHistory:
    """Read a history. A last line that was cut is left out.

    Raises:
        LinesError: it is none, with the line that is wrong.
        OSError: it cannot be read.
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
    """Rows by step in the order of steps."""
    steps = sorted(rows)
    try:
        return History(steps, torch.tensor([rows[step] for step in steps], dtype=torch.float32))
    except ValueError:
        raise LinesError(f"{path} holds steps of different numbers of heads") from None


def read_header(line: bytes, path: Path) -> dict[str, Any]:
    """The first line, checked."""
    try:
        found = json.loads(line)
        known = found["format"] == FORMAT
        names = [str(name) for name in found["vitals"]]
    except (ValueError, TypeError, KeyError):
        known, names, found = False, [], {}
    if not known:
        raise LinesError(f"{path} is no history of a doctor")
    if found.get("version") != VERSION:
        raise LinesError(f"{path} is of version {found.get('version')}, we read {VERSION}")
    return {"model": str(found.get("model", "")), "vitals": names}


def line_of(found: dict[str, Any]) -> bytes:
    """Strict JSON in ASCII on one line."""
    return json.dumps(found, allow_nan=False, separators=(",", ":")).encode() + b"\n"
