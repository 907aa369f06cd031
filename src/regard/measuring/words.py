"""Numbers, times and lists formatted for a reader."""

from __future__ import annotations


def seconds(x: float) -> str:
    """A time with its unit and about three digits: `1.23 s`, `45.6 ms`, `789 µs`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if x >= size:
            return f"{number(x / size)} {unit}"
    return f"{number(x / 1e-6)} µs"


def duration(seconds: float) -> str:
    """A waiting time in whole seconds, or in whole minutes from 90 seconds on."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def number(x: float) -> str:
    """About three significant digits, without an exponent for anything from 0.001 up."""
    if x >= 99.95:
        return f"{x:.0f}"
    return f"{x:.1f}" if x >= 9.995 else f"{x:.2f}" if x >= 0.0995 else f"{x:.2g}"


def listed(names: list[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
