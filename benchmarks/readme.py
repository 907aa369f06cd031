"""Writes the tables of README.md from committed results: `python benchmarks/readme.py`.

With --check nothing is written, and the exit status says whether README.md is up to date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def cpu_table() -> str:
    """The bars of cpu_bars.json as a Markdown table."""
    found = json.loads((RESULTS / "cpu_bars.json").read_text())
    lines = [
        "| on 2 CPU cores | measured | bar |",
        "|---|---|---|",
    ]
    for bar in found["bars"]:
        sign = "≤" if bar["at_most"] else "≥"
        missed = "" if bar["met"] else " **missed**"
        lines.append(
            f"| {bar['name']} | {bar['value']:.3g}{bar['unit']}{missed} "
            f"| {sign} {bar['bar']:g}{bar['unit']} |"
        )
    lines += ["", f"{found['setting']}; torch {found['torch']}. `make bench` measures it again."]
    return "\n".join(lines)


TABLES = {"cpu": cpu_table}


def filled(text: str) -> str:
    """The README with every table between its markers replaced."""
    for name, table in TABLES.items():
        pattern = rf"(<!-- {name}: .*?-->\n).*?(<!-- /{name} -->)"
        text, count = re.subn(
            pattern, lambda m, t=table: f"{m[1]}{t()}\n{m[2]}", text, flags=re.DOTALL
        )
        if count != 1:
            raise SystemExit(f"README.md has {count} places for the table {name!r}, not one")
    return text


def main() -> int:
    """Write or check."""
    readme = ROOT / "README.md"
    old = readme.read_text()
    new = filled(old)
    if "--check" in sys.argv:
        return 0 if new == old else 1
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
