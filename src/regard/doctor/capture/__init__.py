"""How attention is seen in any model: the routes, each of which hands over a `Seen`."""

from __future__ import annotations

from regard.doctor.capture.capture import Capture
from regard.doctor.capture.mode import Mode
from regard.doctor.capture.rest import Rest

__all__ = ["Capture", "Mode", "Rest"]
