"""Thresholds for sinks: when one key takes much of the weight, and when that is a no-op."""

from __future__ import annotations

from torch import Tensor

from regard.doctor.findings.evidence import Evidence

MOST, MOST_SOURCE = (
    0.5,
    "one key with more than half of the mean weight (arXiv 2309.17453; rule ours)",
)
SHORT, SHORT_SOURCE = 0.5, "ours: half the length of the other values (after arXiv 1906.04341)"
# Among fewer queries or keys than this, one key gets much of the weight in any case.
FEW = 8


def says_something(e: Evidence) -> Tensor:
    """(H,): whether the value of the largest sink is long, or was not measured."""
    return ~(e.now("sink_value") < SHORT)
