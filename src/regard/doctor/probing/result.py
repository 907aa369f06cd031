"""The result of a probe: its data, and three tables of it for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from regard.doctor.probing import inputs, keys
from regard.doctor.probing.inputs import InputAttack
from regard.doctor.probing.keys import KeyAttack
from regard.doctor.probing.positions import Shifted
from regard.doctor.report.lines import USUAL, plain_text, wrapped
from regard.doctor.report.numbers import harmless, plain, shortened, shown

NAME, CELL = 24, 8  # columns of a table


class Probe(NamedTuple):
    """What the attention of a model withstands.

    Attributes:
        keys: the attack by a longer key, for each call where it was possible.
        inputs: the attack by scaled inputs, for each call.
        scaled: what was multiplied to scale the inputs.
        positions: the attack by shifted positions.
        notes: what could not be tried, and why.
    """

    keys: list[KeyAttack]
    inputs: list[InputAttack]
    scaled: str
    positions: Shifted
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """The result as strict JSON: NaN becomes null, and an infinity "inf"."""
        return {
            "key_factors": list(keys.FACTORS),
            "keys": [numbers(x._asdict()) for x in self.keys],
            "input_factors": list(inputs.FACTORS),
            "scaled": self.scaled,
            "inputs": [numbers(x._asdict()) for x in self.inputs],
            "positions": {
                "how": self.positions.how,
                "shifts": list(self.positions.shifts),
                "moved": numbers(self.positions.moved),
                "sites": [numbers(x._asdict()) for x in self.positions.sites],
            },
            "notes": self.notes,
        }

    def summary(self, width: int = USUAL) -> str:
        """Three tables in lines of at most `width` columns, which must be at least 60."""
        tables = [
            key_table(self.keys, width),
            input_table(self.inputs, self.scaled, width),
            position_table(self.positions, width),
            [line for note in self.notes for line in paragraph(note, width, "- ")],
        ]
        return "\n\n".join("\n".join(lines) for lines in tables if lines)

    def __str__(self) -> str:
        """The summary in lines of 80 columns."""
        return self.summary()


def numbers(x: Any) -> Any:
    """The same structure with all floats as JSON can hold them."""
    if isinstance(x, float):
        return plain(x)
    if isinstance(x, dict):
        return {name: numbers(value) for name, value in x.items()}
    return [numbers(value) for value in x] if isinstance(x, tuple | list) else x


def rows(name: str, cells: Sequence[str], columns: int, width: int) -> list[str]:
    """A line of a table with so many columns; a name that is too wide gets a line of its own."""
    room = min(NAME, width - columns * CELL)
    numbers = "".join(f"{cell:>{CELL}}" for cell in cells)
    if len(name) <= room:
        return [f"{name:<{room}}{numbers}"]
    return [name, " " * room + numbers]


def paragraph(text: str, width: int, first: str = "") -> list[str]:
    """Lines of text."""
    rest = " " * len(first)
    return plain_text(wrapped(harmless(text), width, first, rest)).splitlines()


def percent(share: float) -> str:
    """A share in percent; `-` for NaN, and `> 10x` above 10."""
    return "-" if math.isnan(share) else "> 10x" if share > 10 else f"{share:.0%}"


def moved(x: float) -> str:
    """How far an output moved in percent; an infinity means that it became NaN."""
    return "NaN" if math.isinf(x) else percent(x)


def key_table(attacks: list[KeyAttack], width: int) -> list[str]:
    """The table of longer keys: queries captured, and how far the output moved."""
    if not attacks:
        return []
    said = "One key gets longer. A query is captured when the key takes over half of its weight."
    head = [*(f"x{c:g}" for c in keys.FACTORS), "half at"]
    lines = [*paragraph(said, width), *rows("", head, len(head), width)]
    for x in attacks:
        half = f"> {keys.FACTORS[-1]:g}" if math.isinf(x.c50) else f"x{shown(x.c50)}"
        captured = [*(percent(y) for y in x.captured), half]
        # Each site has a line of its own: names are long, and alike at both ends.
        lines.append(shortened(harmless(x.site), width))
        lines += rows("  queries captured", captured, len(head), width)
        lines += rows("  the output moves by", [moved(y) for y in x.moved], len(head), width)
    return lines


def input_table(attacks: list[InputAttack], scaled: str, width: int) -> list[str]:
    """The table of scaled inputs: largest logit and entropy at each factor, range withstood."""
    if not attacks:
        return []
    head = [f"x{c:g}" for c in inputs.FACTORS]
    lines = [*paragraph(f"Inputs multiplied ({scaled}).", width), *rows("", head, len(head), width)]
    for x in attacks:
        held = "not even x1" if x.range is None else f"x{x.range[0]:g} to x{x.range[1]:g}"
        lines.append(f"{shortened(harmless(x.site), width - 28)}: withstands {held}")
        lines += rows("  largest logit", [shown(y) for y in x.logit_max], len(head), width)
        lines += rows("  entropy", [shown(y) for y in x.entropy], len(head), width)
        if any(x.broken):
            broken = [str(n) if n else "" for n in x.broken]
            lines += rows("  NaN or Inf", broken, len(head), width)
    return lines


def position_table(shifted: Shifted, width: int) -> list[str]:
    """The table of shifted positions: the share of weight that went to other keys."""
    if not shifted.how:
        return []
    ways = {
        "position_ids": "Positions count from a later start. 0%: a call sees distances alone.",
        "rolled": "The input is rolled round, the output back. 0%: a call ignores positions.",
    }
    count = len(shifted.shifts)
    lines = paragraph(ways[shifted.how], width)
    lines += rows("", [f"+{s}" for s in shifted.shifts], count, width)
    for x in shifted.sites:
        lines.append(shortened(harmless(x.site), width))
        lines += rows("  weight gone elsewhere", [percent(y) for y in x.changed], count, width)
    return lines + rows("the output moves by", [moved(y) for y in shifted.moved], count, width)
