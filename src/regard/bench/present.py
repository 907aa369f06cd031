"""The results as plain text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from regard.bench.bars import BarOutcome
from regard.bench.candidate import BOTH, FORWARD, PASSES
from regard.bench.results import BenchRow, Measured, Pass
from regard.measuring.words import number

WIDTH = 80
MIB = 2**20
LEGEND = (
    "Times are medians in ms, on a GPU of the device's own work. ~: scaled up from fewer heads. *: an "
    "eager time, because the call could not be captured in a CUDA graph. dot: time over that of plain "
    "dot product attention (d=64, backend named above each table), which is another formula. txt: "
    "time over that of the faster textbook. MiB: peak memory above the inputs, forward+backward. Errors are "
    "relative, against fp64: of the output (out) and of the gradient of a (da)."
)
GROUPS = f"{'':17}{'forward':^21} {'forward+backward':^21}{'peak':>8}{'error':^12}".rstrip()
COLUMNS = f"{'':17}{'ms':>7}{'dot':>7}{'txt':>7} {'ms':>7}{'dot':>7}{'txt':>7}{'MiB':>8}{'out':>6}{'da':>6}"


def table(m: Measured) -> str:
    """The table of one setting: a line for each candidate, then the reasons for missing times."""
    lines = textwrap.wrap(m.setting.title(), WIDTH)
    bases = {which: m.yardstick(which) for which in PASSES}
    names = sorted({row.name for row in bases.values() if row is not None})
    facts = [f"dot = {' / '.join(names)}", f"rounds: {m.rounds}"] if names else []
    lines.append("; ".join([*facts, "in every column smaller is better"]))
    lines += [GROUPS, COLUMNS]
    shown = [row for row in m.rows if any(p.timed() for p in row.passes.values())]
    lines += [line(m, row) for row in shown]
    lines += eager_lines(shown)
    for row in m.rows:
        for reason in row.reasons("skipped", "failed", "pending"):
            lines += bullet(f"{row.name}: {reason}")
        for which, p in row.passes.items():
            if p.capture_error:
                lines += bullet(f"{row.name}, {which}: not captured: {p.capture_error}")
    return "\n".join(lines)


def eager_lines(rows: list[BenchRow]) -> list[str]:
    """Lines with the eager times of a GPU, forward and forward+backward; empty on the CPU."""
    found = []
    for row in rows:
        times = [row.passes[which].eager_ms() for which in PASSES]
        if any(t is not None for t in times):
            cells = "/".join("-" if t is None else number(t) for t in times)
            found.append(f"{row.name} {cells}")
    return (
        textwrap.wrap(
            f"eager, ms: {', '.join(found)}", WIDTH, initial_indent="  ", subsequent_indent="    "
        )
        if found
        else []
    )


def left_out(settings: Iterable[Measured]) -> str:
    """A list of candidates that were unavailable in some setting, each reason once."""
    found: dict[tuple[str, str], int] = {}
    total = 0
    for m in settings:
        total += 1
        for row in m.rows:
            for reason in row.reasons("unavailable"):
                found[row.name, reason] = found.get((row.name, reason), 0) + 1
    lines = []
    for (name, reason), count in found.items():
        where = "" if count == total else f" ({count} of {total} settings)"
        lines += bullet(f"{name}: {reason}{where}")
    return "\n".join(lines)


def bullet(text: str) -> list[str]:
    """The text as wrapped lines of a bullet point."""
    return textwrap.wrap(
        text, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False
    )


def line(m: Measured, row: BenchRow) -> str:
    """One line of the table: times, ratios, memory and errors of a candidate."""
    cells = f"{row.name:<17}"
    for which in PASSES:
        over = m.over(row, which)
        cells += f"{time_cell(row.passes[which]):>7}"
        cells += f"{ratio_cell(over.get('dot')):>7}{ratio_cell(over.get('textbook')):>7}"
        cells += " " if which == FORWARD else ""
    both = row.passes[BOTH]
    cells += f"{'-' if both.bytes is None or not both.timed() else number(both.bytes / MIB):>8}"
    cells += f"{error_cell(row.passes[FORWARD]):>6}{error_cell(both):>6}"
    return cells.rstrip()


def time_cell(p: Pass) -> str:
    """Milliseconds with their marks; `-` for a pass without a time or with a failed check."""
    if not p.timed():
        return "-"
    marks = f"{'~' if p.scaled_from else ''}{'*' if p.captured is False else ''}"
    return f"{marks}{number(1e3 * p.times.median)}"


def ratio_cell(over: dict[str, Any] | None) -> str:
    """A ratio of times in at most 6 columns."""
    if over is None:
        return "-"
    ratio = over["ratio"]
    if ratio < 0.1:  # `number` would need 7 columns and touch the number before it
        return f"{ratio:.3f}x" if ratio >= 5e-4 else "<.001x"
    return f"{number(ratio)}x"


def error_cell(p: Pass) -> str:
    """The error with one digit; further digits would be noise."""
    return "-" if p.error is None else f"{p.error:.0e}"


def bars_table(outcomes: list[BarOutcome]) -> str:
    """The table of bars: measured number, the same from eager times, bar, aim, met or missed."""
    lines = [f"{'':<34}{'measured':>9}{'eager':>9}{'bar':>12}{'aim':>9}"]
    for o in outcomes:
        word = "met" if o.met else "MISSED"
        what = f"{o.name}, over {o.of}" if o.of else o.name
        what += f" ({o.note})" if o.note else ""
        head, *rest = textwrap.wrap(what, 33, break_on_hyphens=False)
        numbers = f"{o.measured_text:>9}{o.eager_text:>9}{o.bar_text:>12}{o.aim:>9}"
        lines.append(f"{head:<34}{numbers} {word}")
        lines += [f"  {part}" for part in rest]
    return "\n".join(lines)


def legend() -> str:
    """The explanation of the columns, wrapped."""
    return textwrap.fill(LEGEND, WIDTH)
