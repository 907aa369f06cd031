"""Results of measurements as plain values, to and from JSON, and the ratios computed from them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from regard.bench.candidate import BOTH, FORWARD, PASSES, Candidate
from regard.bench.settings import Setting
from regard.measuring.times import Times, finite

# `pending` remains only if a setting was interrupted or failed as a whole.
Status = Literal["pending", "measured", "unavailable", "skipped", "failed"]
# The yardstick is the first of these that has a time, else the fastest dot.
YARDSTICKS = ("dot cuDNN", "dot flash")


@dataclass
class Pass:
    """Results of one pass of one candidate.

    Attributes:
        status: whether there is a time; if not, `reason` says why.
        times: seconds per call in each round, scaled to all heads; on a GPU the device's time.
        eager: on a GPU, seconds that a caller waits, including Python and launches, scaled likewise.
        captured: on a GPU, whether `times` are of replays of a CUDA graph; if not, `capture_error` says
            why, and `times` are of eager calls.
        bytes: peak memory above the inputs, gradients included, scaled to all heads.
        scaled_from: number of heads that were run, if not all of them.
        error: of the output for a forward pass, of the gradient of a for a backward one.
            `plain_error` is the textbook's error in the same dtype, `limit` the largest that passes.
        others_error: the worst error of the other gradients.
    """

    status: Status = "pending"
    reason: str = ""
    times: Times = field(default_factory=Times)
    bytes: int | None = None
    scaled_from: int | None = None
    error: float | None = None
    plain_error: float | None = None
    limit: float | None = None
    others_error: float | None = None
    eager: Times = field(default_factory=Times)
    captured: bool | None = None
    capture_error: str = ""

    def timed(self) -> bool:
        """Whether there is a time to show; never for a pass whose error check failed."""
        return self.status == "measured" and bool(self.times.samples)

    def eager_ms(self) -> float | None:
        """Median milliseconds that a caller waits; None if that was not measured."""
        return 1e3 * self.eager.median if self.timed() and self.eager.samples else None

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON, in seconds and bytes."""
        return {
            "status": self.status,
            "reason": self.reason or None,
            "captured": self.captured,
            "capture_error": self.capture_error or None,
            "seconds": self.times.as_dict() if self.timed() else None,
            "eager_ms": self.eager_ms(),
            "eager_samples": self.eager.samples,
            "peak_bytes": self.bytes,
            "scaled_from_heads": self.scaled_from,
            "error": finite(self.error),
            "plain_error": finite(self.plain_error),
            "error_limit": finite(self.limit),
            "other_gradients_error": finite(self.others_error),
        }

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Pass:
        """The pass that `as_dict` wrote."""
        seconds = found["seconds"]
        return cls(
            found["status"],
            found["reason"] or "",
            # Only the samples are read back: medians and quartiles are computed from them again.
            Times(list(seconds["samples"]) if seconds else []),
            found["peak_bytes"],
            found["scaled_from_heads"],
            found["error"],
            found["plain_error"],
            found["error_limit"],
            found["other_gradients_error"],
            Times(list(found["eager_samples"])),
            found["captured"],
            found["capture_error"] or "",
        )


@dataclass
class BenchRow:
    """Results of one candidate in one setting."""

    name: str
    family: str
    what: str
    passes: dict[str, Pass]

    @classmethod
    def start(cls, candidate: Candidate) -> BenchRow:
        """A row with nothing measured yet."""
        passes = {which: Pass() for which in PASSES}
        return cls(candidate.name, candidate.family, candidate.what, passes)

    def reasons(self, *statuses: Status) -> list[str]:
        """Why passes with these statuses have no time; a reason that both passes share appears once."""
        found = {w: p.reason for w, p in self.passes.items() if p.reason and p.status in statuses}
        # The same reason for both passes, such as "not installed", needs no pass in front of it.
        if len(found) == len(PASSES) and len(set(found.values())) == 1:
            return [found[FORWARD]]
        return [f"{which}: {reason}" for which, reason in found.items()]


@dataclass
class Measured:
    """Results of all candidates in one setting."""

    setting: Setting
    rows: list[BenchRow]
    rounds: int = 0
    seconds: float = 0.0

    def find(self, name: str) -> BenchRow | None:
        """The row of the named candidate, or None."""
        return next((row for row in self.rows if row.name == name), None)

    def fastest(self, family: str, which: str) -> BenchRow | None:
        """The fastest candidate of a family in a pass, or None."""
        rows = [row for row in self.rows if row.family == family and row.passes[which].timed()]
        return min(rows, key=lambda row: row.passes[which].times.median, default=None)

    def yardstick(self, which: str) -> BenchRow | None:
        """The dot candidate that ratios are taken over, or None."""
        # A fixed order rather than the fastest dot, so that ratios of different settings have the same
        # baseline where possible.
        usual = [row for name in YARDSTICKS if (row := self.find(name)) is not None]
        timed = (row for row in usual if row.passes[which].timed())
        return next(timed, None) or self.fastest("dot", which)

    def ratio(self, row: BenchRow | None, over: BenchRow | None, which: str) -> Times | None:
        """Ratios of the times of two rows, round by round; None if either has no time."""
        if row is None or over is None:
            return None
        mine, theirs = row.passes[which], over.passes[which]
        return mine.times.over(theirs.times) if mine.timed() and theirs.timed() else None

    def over(self, row: BenchRow, which: str) -> dict[str, Any]:
        """Ratios over the yardstick and over the faster textbook, each with the name of its baseline."""
        found = {}
        bases = {"dot": self.yardstick(which), "textbook": self.fastest("textbook", which)}
        for name, base in bases.items():
            ratio = self.ratio(row, base, which)
            if ratio is not None and base is not None:
                found[name] = {
                    "of": base.name,
                    "ratio": ratio.median,
                    "q1": ratio.quartiles[0],
                    "q3": ratio.quartiles[1],
                    # A ratio of an eager time and a device time must be recognisable as such.
                    "not_captured": [
                        x.name for x in (row, base) if x.passes[which].captured is False
                    ],
                }
        return found

    def as_eager(self) -> Measured:
        """A copy with eager times in place of device times."""
        rows = [
            replace(row, passes={w: replace(p, times=p.eager) for w, p in row.passes.items()})
            for row in self.rows
        ]
        return replace(self, rows=rows)

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON, with the ratios."""
        rows = [
            {
                "name": row.name,
                "family": row.family,
                "what": row.what,
                "passes": {
                    which: p.as_dict() | {"over": self.over(row, which)}
                    for which, p in row.passes.items()
                },
            }
            for row in self.rows
        ]
        return {
            "key": self.setting.key,
            "setting": self.setting.as_dict(),
            "rounds": self.rounds,
            "seconds": round(self.seconds, 3),
            "rows": rows,
        }

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Measured:
        """The results that `as_dict` wrote."""
        if not all(isinstance(row["name"], str) for row in found["rows"]):
            raise TypeError("the name of a row is not a string")
        rows = [
            BenchRow(
                row["name"],
                row["family"],
                row["what"],
                {which: Pass.from_dict(row["passes"][which]) for which in (FORWARD, BOTH)},
            )
            for row in found["rows"]
        ]
        return cls(Setting(**found["setting"]), rows, found["rounds"], found["seconds"])
