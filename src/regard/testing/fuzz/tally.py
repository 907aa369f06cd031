"""What a run has found so far: a value that is added up, saved beside the report and taken up again."""

from __future__ import annotations

import collections
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

MOST_FAILURES = 200


@dataclass
class Tally:
    """Counts of a run, by words, and its failures."""

    calls: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    wrong: int = 0
    failures: list[dict] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in what another has found."""
        self.calls += other.calls
        self.wrong += other.wrong
        total = collections.Counter(self.counts)
        total.update(other.counts)
        self.counts = dict(total)
        self.failures = (self.failures + other.failures)[:MOST_FAILURES]


@dataclass
class State:
    """A run that can be resumed: its settings, the chunks that are done, and what they found.

    Attributes:
        versions: of Python and torch, of every process that had a part in the run.
    """

    seed: int
    calls: int
    chunk: int
    engine: str
    done: list[int] = field(default_factory=list)
    seconds: float = 0.0
    versions: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def settings(self) -> tuple:
        """What must agree for a run to be resumed."""
        return self.seed, self.calls, self.chunk, self.engine

    def save(self, path: Path) -> None:
        """Write it whole, or not at all."""
        fresh = path.with_suffix(".tmp")
        fresh.write_text(json.dumps(asdict(self)), encoding="utf-8")
        fresh.replace(path)

    @classmethod
    def load(cls, path: Path) -> State:
        """What `save` wrote."""
        given = json.loads(path.read_text(encoding="utf-8"))
        return cls(**given | {"tally": Tally(**given["tally"])})
