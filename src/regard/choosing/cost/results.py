"""Measured costs as plain values, and their JSON form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from regard.choosing.cost.candidates import CostCandidate
from regard.choosing.cost.shape import Shape
from regard.measuring.times import Times, finite

SCHEMA = "regard.choose/1"
# `pending` remains only if a run was interrupted.
Status = Literal["pending", "measured", "refused", "skipped", "failed"]


@dataclass
class CostRow:
    """Costs and errors of one candidate.

    Attributes:
        status: whether it was measured; if not, `reason` says why.
        engine: the engine that ran; "eager" for the textbook.
        error: relative error of the output against fp64; `plain_error` is that of plain PyTorch in
            the same dtype. `gradient_error` is the worst of all gradients.
        forward: seconds for a forward pass without gradients.
        both: seconds for a forward and a backward pass.
        forward_memory: peak bytes above the inputs in a forward pass; `both_memory` for both passes.
    """

    candidate: CostCandidate
    status: Status = "pending"
    reason: str = ""
    engine: str | None = None
    parameters: int | None = None
    error: float | None = None
    plain_error: float | None = None
    gradient_error: float | None = None
    plain_gradient_error: float | None = None
    forward: Times = field(default_factory=Times)
    both: Times = field(default_factory=Times)
    forward_memory: int | None = None
    both_memory: int | None = None

    def timed(self) -> bool:
        """Whether there is a time to show; never for a candidate whose error check failed."""
        return self.status == "measured" and bool(self.forward.samples and self.both.samples)

    def as_dict(self, baseline: CostRow | None) -> dict[str, Any]:
        """Fields for JSON, with times in seconds and memory in bytes."""
        shown = self.timed()
        ratio = shown and baseline is not None and baseline.timed()
        return {
            "name": self.candidate.key,
            "label": self.candidate.label,
            "textbook": self.candidate.textbook,
            "status": self.status,
            "reason": self.reason or None,
            "rule_of_thumb": self.candidate.rule,
            "engine": self.engine,
            "parameters": self.parameters,
            "error": finite(self.error),
            "plain_error": finite(self.plain_error),
            "gradient_error": finite(self.gradient_error),
            "plain_gradient_error": finite(self.plain_gradient_error),
            "forward_seconds": self.forward.as_dict() if shown else None,
            "forward_backward_seconds": self.both.as_dict() if shown else None,
            "forward_ratio": self.forward.over(baseline.forward).median if ratio else None,
            "forward_backward_ratio": self.both.over(baseline.both).median if ratio else None,
            "forward_peak_bytes": self.forward_memory,
            "forward_backward_peak_bytes": self.both_memory,
        }


@dataclass
class CostReport:
    """The costs of all candidates at one shape."""

    shape: Shape
    machine: dict[str, Any]
    seed: int
    rows: list[CostRow]
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def baseline(self) -> CostRow | None:
        """The row that ratios are over: scaled dot, or projected scaled dot if the plain one refuses."""
        for key in ("scaled_dot", "projected_scaled_dot"):
            row = self.find(key)
            if row is not None and row.status != "refused":
                return row
        return None

    def find(self, key: str) -> CostRow | None:
        """The row of the candidate with that key, or None."""
        return next((row for row in self.rows if row.candidate.key == key), None)

    def of(self, status: Status) -> list[CostRow]:
        """The rows with a status."""
        return [row for row in self.rows if row.status == status]

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON."""
        base = self.baseline
        return {
            "schema": SCHEMA,
            "shape": self.shape.as_dict(),
            "machine": self.machine,
            "seed": self.seed,
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 3),
            "baseline": None if base is None else base.candidate.key,
            "results": [row.as_dict(base) for row in self.rows],
            "notes": self.notes,
        }
