"""Numbers and lists for a person."""

from __future__ import annotations


def seconds(x: float) -> str:
    """A time with its unit, three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if x >= size:
            return f"{number(x / size)} {unit}"
    return f"{number(x / 1e-6)} µs"


def duration(seconds: float) -> str:
    """How long somebody waits: minutes or seconds."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def number(x: float) -> str:
    """Three significant digits, without an exponent for anything from 0.001 up."""
    if x >= 99.95:
        return f"{x:.0f}"
    return f"{x:.1f}" if x >= 9.995 else f"{x:.2f}" if x >= 0.0995 else f"{x:.2g}"


def listed(names: list[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
