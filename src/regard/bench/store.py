"""Results on disk: a JSON file written after every setting, and the same as CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.bench.bars import outcomes
from regard.bench.results import Measured
from regard.measuring.files import json_bytes, set_aside, write_atomic

SCHEMA = "regard.bench/2"
# Facts about the machine that must be the same for a run to be resumed.
SAME = ("device", "name", "torch", "threads", "busy")
COLUMNS = (
    "setting", "batch", "heads", "queries", "keys", "hidden", "value_dim", "dtype", "candidate",
    "family", "pass", "status", "median_s", "q1_s", "q3_s", "rounds", "captured", "eager_ms",
    "scaled_from_heads", "peak_bytes", "error", "plain_error", "error_limit", "over_dot", "dot", "over_textbook",
    "textbook", "reason",
)  # fmt: skip


class StoreError(ValueError):
    """A results file cannot be read or resumed; the message says why and what to do."""


@dataclass
class Results:
    """Results of all settings measured so far on one machine."""

    machine: dict[str, Any]
    seed: int
    measured: dict[str, Measured] = field(default_factory=dict)

    def add(self, result: Measured) -> None:
        """Add a setting, replacing earlier results of the same setting."""
        self.measured[result.setting.key] = result

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON, with the outcomes of the bars."""
        found = list(self.measured.values())
        return {
            "schema": SCHEMA,
            "machine": self.machine,
            "seed": self.seed,
            "bars": [o.as_dict() for o in outcomes(found, self.machine["device"])],
            "settings": [m.as_dict() for m in found],
        }

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Results:
        """The results that `as_dict` wrote.

        Raises:
            StoreError: the dict has another schema or lacks a field.
        """
        try:
            if found["schema"] != SCHEMA:
                raise StoreError(f"its schema is {found['schema']!r}, not {SCHEMA!r}")
            if not isinstance(found["machine"], dict):
                raise StoreError(f"its machine is {found['machine']!r}")
            settings = [Measured.from_dict(item) for item in found["settings"]]
            return cls(found["machine"], found["seed"], {m.setting.key: m for m in settings})
        except (KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"it lacks {error}") from None


class BenchStore:
    """The result files of one machine in a folder: NAME.json and NAME.csv."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.json, self.csv = folder / f"{name}.json", folder / f"{name}.csv"

    def open(self, machine: dict[str, Any], seed: int, resume: bool) -> tuple[Results, str]:
        """The results to continue from, and a sentence about the files found (empty if none).

        Without `resume` existing results are renamed, never overwritten.

        Raises:
            StoreError: `resume` was given and the results are from another machine or seed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = Results(machine, seed)
        if not self.json.exists():
            return fresh, ""
        try:
            old = load(self.json)
        except StoreError as error:
            # A damaged file must not stop a new run, but it may hold hours of measurements: keep it.
            aside = set_aside(self.json, "corrupt")
            return fresh, f"{self.json} cannot be read: {error}. Set aside as {aside.name}"
        if not resume:
            aside = set_aside(self.json, "previous")
            return (
                fresh,
                f"{self.json.name} was there: kept as {aside.name}; --resume goes on with it",
            )
        for field_name in SAME:
            was, now = old.machine.get(field_name), machine.get(field_name)
            if was != now:
                raise StoreError(
                    f"--resume: {self.json} was measured with {field_name} {was!r}, this is {now!r}. "
                    "Leave out --resume to begin a new run"
                )
        if old.seed != seed:
            raise StoreError(
                f"--resume: {self.json} was measured with seed {old.seed}, this is {seed}. Give "
                f"--seed {old.seed}, or leave out --resume to begin a new run"
            )
        count = len(old.measured)
        return old, f"going on after {count} setting{'s' * (count != 1)} of {self.json.name}"

    def threads(self) -> int | None:
        """The thread count of the results on disk; None if there are none that can be read."""
        try:
            found = load(self.json).machine.get("threads")
        except (OSError, StoreError):
            return None
        return found if isinstance(found, int) and found > 0 else None

    def save(self, results: Results) -> None:
        """Write both files, each atomically."""
        write_atomic(self.json, json_bytes(results.as_dict()))
        write_atomic(self.csv, to_csv(results).encode())


def load(path: Path) -> Results:
    """Read results from a JSON file.

    Raises:
        StoreError: the file is not one that `BenchStore.save` writes.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise StoreError("it is not a JSON object")
    try:
        results = Results.from_dict(found)
        # A file edited by hand may hold values of a wrong type, which only fail when they are used.
        json_bytes(results.as_dict())
        to_csv(results)
        return results
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"a field is not what it should be ({error!r})") from None


def to_csv(results: Results) -> str:
    """The results as CSV text with one line for each setting, candidate and pass."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for m in results.measured.values():
        s = m.setting
        sizes = (s.name, s.batch, s.heads, s.len_q, s.len_k, s.hidden, s.value_dim, s.dtype)
        for row in m.rows:
            for which, p in row.passes.items():
                # `None` becomes an empty cell.
                times = (p.times.median, *p.times.quartiles) if p.timed() else (None,) * 3
                over = m.over(row, which)
                ratios = [
                    over.get(base, {}).get(part)
                    for base in ("dot", "textbook")
                    for part in ("ratio", "of")
                ]
                writer.writerow((
                    *sizes, row.name, row.family, which, p.status, *times, len(p.times.samples),
                    p.captured, p.eager_ms(), p.scaled_from, p.bytes, p.error, p.plain_error, p.limit,
                    *ratios, p.reason,
                ))  # fmt: skip
    return buffer.getvalue()
