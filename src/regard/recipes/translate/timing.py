"""Epochs at equal time, from the seconds of an epoch of each score.

`measure_timing.py` writes them to `timing.json` beside this file, with the machine that it measured. Without that file
no row is at equal time.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("timing.json")
NEAR = 0.05  # a smaller difference is the noise of the clock, and no reason for a row of its own


@cache
def seconds() -> dict[str, float]:
    """Seconds of an epoch by the name of the score; empty if nothing was measured."""
    return json.loads(FILE.read_text(encoding="utf-8"))["seconds"] if FILE.exists() else {}


def epochs_in_time(name: str, reference: str, epochs: int) -> int | None:
    """How many epochs of a score fit into `epochs` of the reference.

    None if they are as many, the score is faster, or it was not measured.
    """
    known = seconds()
    if name not in known or reference not in known or known[name] <= (1 + NEAR) * known[reference]:
        return None
    return max(round(epochs * known[reference] / known[name]), 1)
