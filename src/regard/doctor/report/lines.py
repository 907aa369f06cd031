"""Styled lines of text, printed by rich if it is installed and as plain text otherwise.

A line is a list of pieces, each a text and the name of its style.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any

from regard.doctor.report.numbers import Number, cells, fitting, real

Line = list[tuple[str, str]]

STYLES = {
    "": "",
    "title": "bold",
    "dim": "dim",
    "failure": "bold red",
    "warning": "yellow",
    "note": "cyan",
    "good": "green",
    "none": "bold",
    "site": "bold",
}
BLOCKS = "▁▂▃▄▅▆▇█"
NARROWEST, USUAL, WIDEST = 60, 80, 110
JOINTS = ("/", ".", ",", "_", "-")  # a word longer than a line is cut after one of these
# Smallest range of a sparkline, as a share of its largest number: noise of a few percent stays flat.
LEAST_RANGE = 0.2


def plain_text(lines: Iterable[Line]) -> str:
    """The lines as text without styles."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def rich_text(lines: Iterable[Line]) -> Any:
    """The lines as a `rich.text.Text`, whose contents rich does not read as markup."""
    from rich.text import Text

    out = Text(no_wrap=True, overflow="crop", end="")
    for line in lines:
        for text, style in line:
            out.append(text, STYLES[style])
        out.append("\n")
    return out


def has_rich() -> bool:
    """Whether rich can be imported."""
    return importlib.util.find_spec("rich") is not None


def put(lines: list[Line], file: IO[str] | None = None) -> None:
    """Print lines, with colours if the file is a terminal and NO_COLOR is not set."""
    file = sys.stdout if file is None else file
    if file is None:  # sys.stdout is None in a process without standard output, such as pythonw
        return
    if has_rich() and file.isatty() and not os.environ.get("NO_COLOR"):
        from rich.console import Console

        Console(file=file, highlight=False).print(rich_text(lines), end="", soft_wrap=True)
        return
    text = plain_text(lines)
    encoding = getattr(file, "encoding", None) or "utf-8"
    # Encodings such as cp1252 lack the blocks of bars: replace them, do not raise.
    file.write(text.encode(encoding, "replace").decode(encoding))
    file.flush()


def width_of(file: IO[str] | None = None) -> int:
    """The width to print at: from COLUMNS, else the terminal, else 80; between 60 and 110."""
    file = sys.stdout if file is None else file
    columns = USUAL
    if file is not None and file.isatty():
        try:
            columns = os.get_terminal_size(file.fileno()).columns or USUAL
        except (OSError, ValueError):  # an object with isatty() but without a file descriptor
            columns = USUAL
    if os.environ.get("COLUMNS"):
        columns = shutil.get_terminal_size((columns, 24)).columns
    return min(max(columns, NARROWEST), WIDEST)


def wrapped(text: str, width: int, first: str = "", rest: str = "", style: str = "") -> list[Line]:
    """A paragraph wrapped to `width` with an indent; only words longer than a line are cut."""
    room = max(width - max(cells(first), cells(rest)), 20)
    found = [""]
    for word in text.split():
        if not found[-1] or cells(found[-1]) + 1 + cells(word) <= room:
            found[-1] = f"{found[-1]} {word}".lstrip()
        else:
            found.append(word)
        while cells(found[-1]) > room:
            head = fitting(found[-1], room)
            end = max(head.rfind(joint) for joint in JOINTS) + 1 or len(head)
            found[-1:] = [head[:end], found[-1][end:]]
    return [[(rest if i else first, ""), (line, style)] for i, line in enumerate(found)]


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Text filled with spaces to `width` terminal cells; wide characters count as two."""
    fill = " " * max(width - cells(text), 0)
    return fill + text if right else text + fill


def bar(x: Number, most: float, width: int) -> str:
    """A bar of block characters for a number from 0 to `most`; infinity fills it."""
    value = real(x)
    if not value > 0 or not most > 0:
        return " " * width
    eighths = 8 * width if value >= most else max(round(8 * width * value / most), 1)
    full, part = divmod(eighths, 8)
    partial = "▏▎▍▌▋▊▉"[part - 1] if part else ""
    return ("█" * full + partial).ljust(width)


def sparkline(values: list[float], width: int) -> str:
    """The last values as one block character each, scaled to their range; NaN is left out."""
    there = [x for x in values if x == x][-width:]
    finite = [x for x in there if abs(x) != float("inf")]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    lacking = LEAST_RANGE * max(abs(low), abs(high)) - (high - low)
    if lacking > 0:
        low, high = low - lacking / 2, high + lacking / 2
    return "".join(_blocks(there, low, high)).rjust(width)


def _blocks(values: list[float], low: float, high: float) -> Iterator[str]:
    for x in values:
        if x == float("inf") or x == float("-inf"):
            yield "!"
        else:
            share = (x - low) / (high - low) if high > low else 0.5
            yield BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)]
