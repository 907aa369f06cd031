"""How attention calls are caught in any model.

Here belong hooks, torch function modes and operators: one file for each route, each of which gives a
`Seen`. What is measured of a `Seen` is in `vitals`; where the numbers are kept is in `chart.py`.
"""

from __future__ import annotations

from regard.doctor.capture.active import Active
from regard.doctor.capture.capture import Capture
from regard.doctor.capture.mode import Mode

__all__ = ["Active", "Capture", "Mode"]
