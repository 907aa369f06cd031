"""Laws: relations between runs of one model that hold for every correct model, whatever its weights.

One file for each law belongs here: its statement, its test, when it applies, what it is compared with, and
its texts. `bench.py` makes the passes that laws share, `recording.py` sees them, `blame.py` says where a
change enters. Numbers of ordinary runs are in `vitals`. A new law is its file and its line in `LAWS`.
"""

from __future__ import annotations

from regard.doctor.laws import (
    distribution,
    evaluation,
    gradients,
    matters,
    order,
    own_token,
    padding,
    precision,
    samples,
    steps,
    visibility,
)
from regard.doctor.laws.law import Law, LawVerdict, Ruling

__all__ = ["LAWS", "Law", "LawVerdict", "Ruling"]

# In this order they are tested and shown.
LAWS: tuple[Law, ...] = (
    visibility.LAW,
    padding.LAW,
    samples.LAW,
    distribution.LAW,
    own_token.LAW,
    order.LAW,
    gradients.LAW,
    evaluation.LAW,
    matters.LAW,
    steps.LAW,
    precision.LAW,
)
