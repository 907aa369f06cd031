"""Benchmarks of additive attention on this machine: our engines and every peer, in one run.

Run `regard bench` or `python -m regard.bench`. The latter needs only torch, and matplotlib for charts.
What belongs here: suites, candidates, the error gate, tables and charts. Clocks, memory counters and
machine facts are shared with other commands and live in `measuring`.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    from regard.bench.options import parser

    options = parser().parse_args(arguments)
    # Imported after parsing: it loads torch, which --help and usage errors do without.
    from regard.bench.command import carry_out

    return carry_out(options)
