"""Hosts that laws and thresholds were not made with; see `hosts`."""

from __future__ import annotations


def hosts() -> tuple:
    """None yet: they are added when the laws are done."""
    return ()
