"""Run files: one JSON file for each finished contender, setting and seed, written atomically.

Every way to run a comparison writes this format: the command, the parallel driver and the recipes' own scripts. A
run belongs to a comparison by its key, made of the names, the setting, the row's other arguments, the fingerprint of
the data, the kind of device and the number of threads; a file with another key is left alone and not used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

import regard
from regard.measuring.clock import CPU
from regard.measuring.files import set_aside, write_atomic
from regard.measuring.machine import machine
from regard.recipes.kit import Contender, Evaluated

RUN_SCHEMA = "regard.recipes.run/2"
DIGITS = 6  # significant digits of statistics: metrics show at most three
THREADS = 1  # of torch in every run: see `work.perform`
LARGEST_RUN = 256 * 2**20  # bytes of a run file that is read


@dataclass(frozen=True)
class RunRecord:
    """One finished run: what was trained, and its `Evaluated`.

    Attributes:
        comparison: name of the comparison.
        contender: name of the contender.
        setting: the arguments that were tried.
        seed: of the training.
        validation: the quality on validation rows, by which settings are chosen; NaN if training diverged.
        statistics: of the test rows (N, K).
        parameters, train_seconds, predict_seconds, extra: as in `Evaluated`.
        fingerprint: of the data; empty if it is unknown.
        release: the version of regard that ran it.
        machine: the machine that ran it, by `measuring.machine`; empty if it is unknown.
        fixed: the row's other arguments.
        device: kind of device that the comparison trains on: "cpu", "cuda".
        threads: of torch.
    """

    comparison: str
    contender: str
    setting: Mapping[str, Any]
    seed: int
    validation: float
    statistics: np.ndarray
    parameters: int
    train_seconds: float
    predict_seconds: float
    extra: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    release: str = regard.__version__
    machine: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    device: str = CPU.type
    threads: int = THREADS

    @property
    def key(self) -> str:
        """What tells this run from runs of other arguments, of other data or on another kind of device."""
        facts = (self.comparison, self.contender, dict(self.setting), dict(self.fixed))
        return run_key(*facts, self.fingerprint, self.device, self.threads)

    def as_json(self) -> dict[str, Any]:
        """The content of the file."""
        found = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        found["setting"], found["fixed"] = dict(self.setting), dict(self.fixed)
        found["validation"] = finite(self.validation)
        found["statistics"] = columns(self.statistics)
        return {"schema": RUN_SCHEMA, "key": self.key} | found

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Self:
        """The run in the content of a file.

        Raises:
            KeyError, TypeError, ValueError: the content is not that of a run file.
        """
        if found["schema"] != RUN_SCHEMA:
            raise ValueError(f"schema {found['schema']!r}, expected {RUN_SCHEMA!r}")
        own = {
            one.name: found[one.name] for one in dataclasses.fields(cls) if one.name != "machine"
        }
        own["machine"] = dict(found.get("machine", {}))
        own["validation"] = math.nan if own["validation"] is None else float(own["validation"])
        own["statistics"] = matrix(own["statistics"])
        kinds = {"setting": dict, "fixed": dict, "extra": dict, "contender": str, "seed": int}
        for name, kind in kinds.items():
            if not isinstance(own[name], kind):
                raise TypeError(f"{name} is {own[name]!r}")
        own["parameters"] = int(own["parameters"])
        for name in ("train_seconds", "predict_seconds"):
            own[name] = float(own[name])
        return cls(**own)


def finite(value: float) -> float | None:
    """The number, or None for NaN and infinities, which JSON does not have."""
    return float(value) if math.isfinite(value) else None


def rounded(values: np.ndarray) -> list[Any]:
    """Numbers to `DIGITS` significant digits; whole numbers without a point, NaN as None."""
    found = (None if not math.isfinite(x) else float(f"{x:.{DIGITS}g}") for x in values.tolist())
    return [x if x is None or x != int(x) else int(x) for x in found]


def columns(statistics: np.ndarray) -> dict[str, Any]:
    """Statistics (N, K) as JSON: column by column, which has the fewest brackets."""
    found = np.asarray(statistics, dtype=np.float64)
    if found.ndim != 2:
        raise ValueError(f"statistics must be (rows, numbers), got shape {found.shape}")
    return {"shape": list(found.shape), "columns": [rounded(column) for column in found.T]}


def matrix(found: Mapping[str, Any]) -> np.ndarray:
    """Statistics (N, K) from `columns`."""
    rows, width = found["shape"]
    values = np.array(
        [[math.nan if x is None else x for x in column] for column in found["columns"]],
        dtype=np.float64,
    ).reshape(width, -1)
    if values.shape[1] != rows:
        raise ValueError(f"statistics have {values.shape[1]} rows, expected {rows}")
    return np.ascontiguousarray(values.T)


def run_key(*facts: Any) -> str:
    """A hash of what a run follows from, beside its seed."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def slug(name: str) -> str:
    """The name with letters, digits and hyphens alone, for a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"


class RunStore:
    """The run files of one comparison on one set of data, in `folder/runs`.

    Args:
        folder: of the comparison's results.
        comparison: name of the comparison.
        fingerprint: of the data, by `fingerprint.py`.
        device: kind of device that runs train on.
    """

    def __init__(
        self, folder: Path, comparison: str, fingerprint: str = "", device: str = CPU.type
    ) -> None:
        self.folder = folder / "runs"
        self.comparison, self.fingerprint, self.device = comparison, fingerprint, device

    def path(self, contender: Contender, setting: Mapping[str, Any], seed: int) -> Path:
        """The file of a run."""
        facts = (self.comparison, contender.name, dict(setting), dict(contender.fixed))
        key = run_key(*facts, self.fingerprint, self.device, THREADS)
        return self.folder / f"{slug(self.comparison)}.{slug(contender.name)}.{key}.seed{seed}.json"

    def read(self, contender: Contender, setting: Mapping[str, Any], seed: int) -> RunRecord | None:
        """The finished run; None if there is none. A damaged file is renamed, not overwritten."""
        path = self.path(contender, setting, seed)
        if not path.is_file():
            return None
        try:
            if path.stat().st_size > LARGEST_RUN:
                raise ValueError("too large")
            found = RunRecord.of_json(json.loads(path.read_bytes()))
            if found.seed != seed or found.contender != contender.name:
                raise ValueError("of another run")
        except (KeyError, TypeError, ValueError):  # a JSONDecodeError is a ValueError
            set_aside(path, "damaged")
            return None
        # The names in the key are those asked for: a file that was renamed by hand does not count.
        return found if found.key == path.name.split(".")[-3] else None

    def write(
        self, contender: Contender, setting: Mapping[str, Any], seed: int, found: Evaluated
    ) -> RunRecord:
        """Write the file of a finished run, and return what it holds: rounded as a later reader sees it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        record = RunRecord(
            self.comparison,
            contender.name,
            setting,
            seed,
            float(found.validation),
            np.asarray(found.statistics, dtype=np.float64),
            int(found.parameters),
            round(float(found.train_seconds), 3),
            round(float(found.predict_seconds), 4),
            plain(found.extra),
            self.fingerprint,
            machine=machine(torch.device("cuda" if torch.cuda.is_initialized() else "cpu")),
            fixed=contender.fixed,
            device=self.device,
        )
        content = json.dumps(record.as_json(), allow_nan=False, ensure_ascii=False, default=str)
        write_atomic(self.path(contender, setting, seed), content.encode())
        return RunRecord.of_json(json.loads(content))


def plain(value: Any) -> Any:
    """The value as JSON: numbers of numpy as Python's, NaN as None, anything unknown as its text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return finite(value)
    return value if isinstance(value, str | int | bool | None) else str(value)
