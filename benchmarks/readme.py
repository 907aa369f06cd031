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
    rows = [
        "| on 2 CPU cores | measured | bar |",
        "|---|---|---|",
    ]
    for bar in found["bars"]:
        sign = "≤" if bar["at_most"] else "≥"
        missed = "" if bar["met"] else " **missed**"
        rows.append(
            f"| {bar['name']} | {bar['value']:.3g}{bar['unit']}{missed} "
            f"| {sign} {bar['bar']:g}{bar['unit']} |"
        )
    rows += ["", f"{found['setting']}; torch {found['torch']}. `make bench` measures it again."]
    return "\n".join(rows)


def gpu_table() -> str:
    """The bars of h200.json as a Markdown table, with the chart; nothing where there is no file."""
    path = RESULTS / "h200.json"
    if not path.exists():
        return ""
    found = json.loads(path.read_text())
    about = found["machine"]
    rows = [
        f"| on one {about['name']} | a ratio over | device time | eager call | bar |",
        "|---|---|---|---|---|",
    ]
    notes = list(dict.fromkeys(bar["note"] for bar in found["bars"] if bar["note"]))
    for bar in found["bars"]:
        over = bar["of"] + (f" [{notes.index(bar['note']) + 1}]" if bar["note"] else "")
        missed = " **missed**" if bar["met"] is False else ""
        limit = bar["bar_text"].replace("<=", "≤").replace(">=", "≥")
        measured = f"{bar['measured_text']}{missed} | {bar['eager_text']}"
        rows.append(f"| {bar['name']} | {over} | {measured} | {limit} |")
    setting = (
        "bf16, batch 4, 16 heads, length 4096, value dim 64, a and b standard normal, |v|₁ = 5, all "
        f"work counted from projected a and b to the output; torch {about['torch']}, triton "
        f"{about['triton']}. Bars are held against device time. Dot at d=64 is another score: the "
        "ratio says what additive attention costs beside it, not that the two learn the same. [How it "
        "is measured, and why some bars are missed](docs/benchmarks.md)."
    )
    rows += ["", " ".join([*(f"[{i}] {note}." for i, note in enumerate(notes, 1)), setting])]
    for kind, text in CHARTS.items():
        chart = RESULTS / f"h200-{kind}.png"
        if chart.exists():
            rows += ["", f"![{text}]({chart.relative_to(ROOT).as_posix()})"]
    return "\n".join(rows)


CHARTS = {"time": "Time of a call by length, ours beside the peers"}
TABLES = {"cpu": cpu_table, "gpu": gpu_table}


def lines(text: str) -> str:
    """The text with its last line ended; nothing stays nothing."""
    return f"{text}\n" if text else ""


def filled(text: str) -> str:
    """The README with every table between its markers replaced."""
    for name, table in TABLES.items():
        pattern = rf"(<!-- {name}: .*?-->\n).*?(<!-- /{name} -->)"
        text, count = re.subn(
            pattern, lambda m, t=table: f"{m[1]}{lines(t())}{m[2]}", text, flags=re.DOTALL
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
