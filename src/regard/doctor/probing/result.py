"""What a probe found: data, and three tables of it for a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from regard.doctor.probing import inputs, keys
from regard.doctor.probing.inputs import InputAttack
from regard.doctor.probing.keys import KeyAttack
from regard.doctor.probing.positions import Shifted
from regard.doctor.report.numbers import harmless, plain, shortened, shown

WIDTH, NAME, CELL = 80, 24, 8


class Probe(NamedTuple):
    """What the attention of a model withstands.

    Attributes:
        keys: one key gets longer; one entry for each call that could be attacked.
        inputs: the inputs get smaller and larger.
        scaled: what was multiplied for that.
        positions: everything moves by some places.
        notes: what could not be tried, and why.
    """

    keys: list[KeyAttack]
    inputs: list[InputAttack]
    scaled: str
    positions: Shifted
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Strict JSON: NaN is null, and an infinity "inf"."""
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

    def __str__(self) -> str:
        """Three tables, 80 columns wide."""
        parts = [key_table(self.keys), input_table(self.inputs, self.scaled)]
        parts.append(position_table(self.positions))
        notes = [
            textwrap.fill(harmless(x), WIDTH, initial_indent="- ", subsequent_indent="  ")
            for x in self.notes
        ]
        parts.append("\n".join(notes))
        return "\n\n".join(part for part in parts if part)


def numbers(x: Any) -> Any:
    """All floats as JSON has them."""
    if isinstance(x, float):
        return plain(x)
    if isinstance(x, dict):
        return {name: numbers(value) for name, value in x.items()}
    return [numbers(value) for value in x] if isinstance(x, tuple | list) else x


def row(name: str, cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"{name:<{NAME}}" + "".join(f"{cell:>{CELL}}" for cell in cells)


def title(site: str) -> str:
    """A site on a line of its own: their names are long, and alike at both ends."""
    return shortened(harmless(site), WIDTH)


def percent(share: float) -> str:
    """A share, `-` where there is none."""
    return "-" if math.isnan(share) else "> 10x" if share > 10 else f"{share:.0%}"


def moved(x: float) -> str:
    """How far an output moved; an infinity says that it is no number any more."""
    return "NaN" if math.isinf(x) else percent(x)


def key_table(attacks: list[KeyAttack]) -> str:
    """Queries captured, and below them how far the output moved."""
    if not attacks:
        return ""
    lines = ["One key gets longer. A query is captured when the key has half of its weight."]
    lines.append(row("", [*(f"x{c:g}" for c in keys.FACTORS), "half at"]))
    for x in attacks:
        half = f"> {keys.FACTORS[-1]:g}" if math.isinf(x.c50) else f"x{shown(x.c50)}"
        lines.append(title(x.site))
        lines.append(row("  queries captured", [*(percent(y) for y in x.captured), half]))
        lines.append(row("  the output moves by", [moved(y) for y in x.moved]))
    return "\n".join(lines)


def input_table(attacks: list[InputAttack], scaled: str) -> str:
    """The largest logit and the entropy at each factor, and the range withstood."""
    if not attacks:
        return ""
    lines = [f"Inputs multiplied ({scaled})."]
    lines.append(row("", [f"x{c:g}" for c in inputs.FACTORS]))
    for x in attacks:
        held = "not even x1" if x.range is None else f"x{x.range[0]:g} to x{x.range[1]:g}"
        lines.append(f"{shortened(harmless(x.site), WIDTH - 28)}: withstands {held}")
        lines.append(row("  largest logit", [shown(y) for y in x.logit_max]))
        lines.append(row("  entropy", [shown(y) for y in x.entropy]))
        if any(x.broken):
            lines.append(row("  NaN or Inf", [str(n) if n else "" for n in x.broken]))
    return "\n".join(lines)


def position_table(shifted: Shifted) -> str:
    """The share of weight that went elsewhere."""
    if not shifted.how:
        return ""
    ways = {
        "position_ids": "Positions count from a later start. 0%: it sees distances alone.",
        "rolled": "The input is rolled round, the output back. 0%: it cannot tell places.",
    }
    lines = [ways[shifted.how], row("", [f"+{s}" for s in shifted.shifts])]
    for x in shifted.sites:
        lines += [title(x.site), row("  weight gone elsewhere", [percent(y) for y in x.changed])]
    lines.append(row("the output moves by", [moved(y) for y in shifted.moved]))
    return "\n".join(lines)
