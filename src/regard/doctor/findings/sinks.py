"""One key that takes much of the weight: when that counts, and when its value makes it a no-op."""

from __future__ import annotations

from torch import Tensor

from regard.doctor.findings.evidence import Evidence

MOST, MOST_SOURCE = (
    0.5,
    "one key with more than half of the mean weight (arXiv 2309.17453; rule ours)",
)
SHORT, SHORT_SOURCE = 0.5, "ours: half of the length of other values (after arXiv 1906.04341)"
# Of few queries or keys one always gets much.
FEW = 8


def says_something(e: Evidence) -> Tensor:
    """(H,): the heads whose largest sink has a long value, or a value that was not measured."""
    return ~(e.now("sink_value") < SHORT)
