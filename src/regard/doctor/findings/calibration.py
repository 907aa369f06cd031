"""How sure a finding is: the share of alarms of its disease that were right on models with a known answer.

`python -m tests.doctor.calibration` counts them, on planted diseases and on healthy models. How many signs agree,
and for how many steps, decides whether there is a finding; among findings it did not tell right from wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

# Right alarms and all, by disease: benchmarks/results/doctor-sureness.json, which a test compares.
COUNTS: Mapping[str, tuple[int, int]] = {
    "broken-numbers": (9, 9),
    "masked-rows": (3, 3),
    "inverted-mask": (9, 9),
    "missing-mask": (6, 6),
    "unscaled-logits": (9, 9),
    "growing-logits": (3, 3),
    "large-logits": (9, 9),
    "key-norm-hijack": (3, 3),
    "collapsed-entropy": (3, 3),
    "dead-softmax": (3, 3),
    "saturated-tanh": (6, 6),
    "dead-gradient": (6, 6),
    "no-gradient": (21, 21),
    "identical-heads": (3, 3),
    "washed-out-positions": (6, 6),
    "collapsed-positions": (6, 6),
    "rank-collapse": (3, 3),
    "malignant-sink": (3, 3),
}
# The same of broken laws, all together.
LAW_COUNTS = (834, 834)


def sure(disease: str) -> float:
    """The share of right alarms of a disease; 0.5 where none were counted, as for one that is always a note."""
    return share(*COUNTS.get(disease, (0, 0)))


def share(right: int, total: int) -> float:
    """(right + 1) / (total + 2), Laplace's rule of succession: it never says 100%."""
    return round((right + 1) / (total + 2), 3)
