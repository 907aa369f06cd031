"""Numbers and names, formatted for JSON and for readers."""

from __future__ import annotations

import math
import unicodedata

# A float as strict JSON holds it: NaN is null, an infinity is "inf" or "-inf".
Number = float | str | None
DIGITS = 4  # significant digits in reports
LETTERS = (1000, 3, 1)  # letters kept of each part of a path, tried in this order


def plain(x: float, digits: int = DIGITS) -> Number:
    """A number for strict JSON, rounded; integers have no decimal point."""
    if math.isnan(x):
        return None
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    x = float(f"{x:.{digits}g}")
    return int(x) if x.is_integer() and abs(x) < 1e15 else x


def real(x: Number) -> float:
    """The float that `plain` converted."""
    return math.nan if x is None else float(x)


def shown(x: Number) -> str:
    """A number with about three digits for a reader; `-` if nothing was measured."""
    x = real(x)
    if math.isnan(x):
        return "-"
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    if x == 0:
        return "0"
    size = abs(x)
    if size >= 1e5 or size < 1e-3:
        mantissa, exponent = f"{x:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if size >= 99.95 or x.is_integer():
        # Halves away from zero, as JavaScript rounds in the page: Python's format takes the even neighbour.
        return f"{math.copysign(math.floor(size + 0.5), x):.0f}"
    return f"{x:.1f}" if size >= 9.995 else f"{x:.2f}" if size >= 0.0995 else f"{x:.2g}"


def cells(text: str) -> int:
    """The number of terminal cells that a text takes."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def harmless(text: str) -> str:
    """The text with control characters escaped, so that it cannot move the cursor or reverse a line."""
    return "".join(
        c if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else ascii(c)[1:-1]
        for c in text
    )


def shortened(text: str, width: int) -> str:
    """A module's path in at most `width` cells: parts abbreviated, or else the middle left out.

    Numbers and the last part stay as long as possible, because they tell layers apart.
    """
    for letters in LETTERS:
        text = abbreviated(text, letters)
        if cells(text) <= width:
            return text
    head = fitting(text, (width - 1) // 3)
    tail = fitting(text[::-1], width - 1 - cells(head))[::-1]
    return f"{head}…{tail}"


def shortened_alike(texts: list[str], width: int) -> list[str]:
    """Paths for a column of a table, all abbreviated as far as the longest needs it."""
    for letters in LETTERS:
        found = [abbreviated(text, letters) for text in texts]
        if all(cells(text) <= width for text in found):
            return found
    return [shortened(text, width) for text in texts]


def abbreviated(path: str, letters: int) -> str:
    """A module's path with `letters` letters of each part but the last; numbers stay."""
    *parts, last = path.split(".")
    return ".".join([*(part if part.isdigit() else part[:letters] for part in parts), last])


def fitting(text: str, width: int) -> str:
    """The longest beginning of a text that fits into `width` cells."""
    used = 0
    for i, sign in enumerate(text):
        used += cells(sign)
        if used > width:
            return text[:i]
    return text


def counted(count: int, noun: str) -> str:
    """A count with its noun: `1 head`, `2 heads`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def ranges(numbers: list[int] | tuple[int, ...]) -> str:
    """Numbers as ranges: `0-3, 7`."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)
