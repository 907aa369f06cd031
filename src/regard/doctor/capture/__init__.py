"""How attention is seen in any model: the routes, each of which hands over a `Seen`."""

from __future__ import annotations

from regard.doctor.capture.active import Active
from regard.doctor.capture.capture import Capture
from regard.doctor.capture.mode import Mode

__all__ = ["Active", "Capture", "Mode"]
