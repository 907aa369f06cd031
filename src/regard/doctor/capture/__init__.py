"""Captures attention calls in any model.

Hooks, torch function modes and operators belong here, one file for each route; every route produces
a `Seen`. What is measured from a `Seen` is in `vitals`; the numbers are kept in `chart.py`.
"""

from __future__ import annotations

from regard.doctor.capture.active import Active
from regard.doctor.capture.capture import Capture
from regard.doctor.capture.mode import Mode

__all__ = ["Active", "Capture", "Mode"]
