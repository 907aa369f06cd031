"""Formatting of facts: values with intervals and units, rounded to the digits that are known."""

from __future__ import annotations

import math
from typing import NamedTuple

from regard.claims.claim import Fact
from regard.claims.report.words import UNITS
from regard.text import Language

# Significant digits of a number without an interval, and of one written with a power of ten, where the
# order of magnitude matters most.
PLAIN_DIGITS, POWER_DIGITS = 4, 2
MOST_DIGITS = 6
SMALLEST, LARGEST = 1e-3, 1e6  # numbers outside this range are written with a power of ten
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
TIGHT_UNITS = ("", "%", "×", "°")  # units written without a space before them
NO_BREAK = "\N{NO-BREAK SPACE}"


class FactRow(NamedTuple):
    """One row of the table of facts; `interval` is empty if the fact has none."""

    label: str
    value: str
    interval: str


def row(fact: Fact, language: Language) -> FactRow:
    """A fact in the reader's language."""
    low, high = fact.low, fact.high
    known = low is not None and high is not None and math.isfinite(high - low)
    decimals, power = digits(fact.value, (high - low) / 2 if known else 0.0)
    unit = UNITS[fact.unit].of(language) if fact.unit in UNITS else fact.unit
    space = "" if unit in TIGHT_UNITS else NO_BREAK
    return FactRow(
        fact.label.of(language),
        f"{written(fact.value, decimals, power)}{space}{unit}",
        f"[{written(low, decimals, power)}, {written(high, decimals, power)}]" if known else "",
    )


def digits(value: float, half: float) -> tuple[int, int]:
    """The number of decimals, and the power of ten to divide by first.

    The value is written to two digits of half its interval. Without an interval it gets four
    significant digits, or two before a power of ten; a whole number is written in full.
    """
    largest = max(abs(value), half)
    if largest == 0 or not math.isfinite(largest):
        return 0, 0
    leading = math.floor(math.log10(largest))
    power = 0 if SMALLEST <= largest < LARGEST else leading
    if half == 0 and value == int(value) and power == 0:
        return 0, 0
    wanted = leading - math.floor(math.log10(half)) + 2 if half else PLAIN_DIGITS
    if power and not half:
        wanted = POWER_DIGITS
    return max(power - leading + min(wanted, MOST_DIGITS) - 1, 0), power


def written(x: float, decimals: int, power: int) -> str:
    """A number as text: `1,024`, `−0.25`, `1.3 × 10⁻⁷`."""
    text = f"{x / 10.0**power:,.{decimals}f}"
    # A small negative number may round to "-0.00".
    if not any(digit in text for digit in "123456789"):
        text = text.removeprefix("-")
    scale = f"{NO_BREAK}×{NO_BREAK}10{str(power).translate(RAISED)}" if power else ""
    return text.replace("-", "−") + scale
