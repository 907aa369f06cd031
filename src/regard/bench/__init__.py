"""Additive attention on this machine: ours beside every peer, as ratios from one run.

`regard bench` or `python -m regard.bench`; the latter needs torch alone, and matplotlib for charts.
"""

from regard.bench.command import main

__all__ = ["main"]
