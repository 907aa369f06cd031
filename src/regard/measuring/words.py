"""Numbers, times and lists formatted for a reader."""

from __future__ import annotations

from regard.text import Text


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


def led(sign: float, by: Text, level: Text, other: Text | None = None) -> Text:
    """A lead in words: `ahead of cosine by 2.0 points [1.1, 2.9]`, or behind, or level.

    Args:
        sign: above 0 for ahead, below 0 for behind, 0 for level.
        by: how far, as a positive amount.
        level: what follows the word "level", with the space or mark before it.
        other: ahead of what; None where the sentence has said so.
    """
    if sign == 0:
        words = Text("level", "持平")
        if other is not None:
            words = Text(f"level with {other.en}", f"与{other.zh}持平")
        return Text(f"{words.en}{level.en}", f"{words.zh}{level.zh}")
    words = Text("ahead", "领先") if sign > 0 else Text("behind", "落后")
    if other is not None:
        words = Text(
            f"{words.en} of {other.en}" if sign > 0 else f"behind {other.en}",
            f"比{other.zh}{words.zh}",
        )
    return Text(f"{words.en} by {by.en}", f"{words.zh} {by.zh}")


def listed(names: list[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
