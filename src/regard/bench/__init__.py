"""Additive attention on this machine: ours beside every peer, as ratios from one run.

`regard bench` or `python -m regard.bench`; the latter needs torch alone, and matplotlib for charts.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    from regard.bench.options import parser

    options = parser().parse_args(arguments)
    from regard.bench.command import carry_out  # behind help and mistakes, which need no torch

    return carry_out(options)
