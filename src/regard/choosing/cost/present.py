"""A cost report on a terminal: the answer first, then the table, then the details."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from regard.choosing.cost.answer import QUESTION, answer
from regard.choosing.cost.results import CostReport, CostRow
from regard.measuring.times import Times
from regard.measuring.words import listed, number

MIB = 2**20
TITLE = "bold cyan"


class CostColumn(NamedTuple):
    """One column of the table: its heading, and a function from a row and the baseline to a cell."""

    heading: str
    cell: Callable[[CostRow, CostRow | None], str]
    right: bool = True


def show_report(report: CostReport, console: Console) -> None:
    """Print the whole report."""
    console.print(Text.assemble(("regard choose", "bold"), f"  {heading(report)}"))
    console.print(Text(f"on {where(report)}", style="dim"))
    console.print()
    if report.interrupted:
        console.print(Text(interrupted(report), style="bold yellow"))
        console.print()
    console.print(Text(QUESTION, style=TITLE))
    for sentence in answer(report):
        bullet(console, "-", sentence)
    console.print()
    shown = sorted(report.of("measured"), key=by_time) + report.of("failed")
    if shown:
        console.print(table(report, shown, console))
    show_left_out(report, console)
    show_rules(report, console)
    console.print(Text("How it was measured", style=TITLE))
    for note in report.notes:
        bullet(console, "-", note, style="dim")


def heading(report: CostReport) -> str:
    """The sizes of the shape, spelled as on the command line."""
    s = report.shape
    same = s.len_q == s.len_k
    parts = [f"d_q={s.d_q}", f"d_k={s.d_k}"]
    parts += [f"len={s.len_q}"] if same else [f"len_q={s.len_q}", f"len_k={s.len_k}"]
    parts += [f"heads={s.heads}"]
    parts += [] if s.key_heads == s.heads else [f"key_heads={s.key_heads}"]
    parts += [f"d_v={s.d_v}", f"width={s.width}", f"hidden={s.hidden}", f"rank={s.rank}"]
    parts += [f"batch={s.batch}", s.dtype] + (["causal"] if s.causal else [])
    return " ".join(parts)


def where(report: CostReport) -> str:
    """The machine, versions and duration, in one line."""
    m = report.machine
    threads = f"{m['threads']} thread{'' if m['threads'] == 1 else 's'}"
    place = m["name"] if m["device"] == "cuda" else f"{m['name']}, {threads} on {m['cores']} cores"
    return f"{place}, torch {m['torch']}, regard {m['regard']}, {report.seconds:.0f} s"


def interrupted(report: CostReport) -> str:
    """A sentence about how many scores were timed before the interrupt."""
    done = sum(row.timed() for row in report.rows)
    total = len(report.rows) - len(report.of("refused"))
    few = ", some from few rounds" if done else ""
    return f"Interrupted: {done} of {total} scores have times{few}."


def by_time(row: CostRow) -> float:
    """A sort key that puts the fastest first and untimed rows last."""
    return row.both.median if row.timed() else float("inf")


def table(report: CostReport, rows: list[CostRow], console: Console) -> Table:
    """The table with as many columns as fit into the console; no cell is truncated."""
    # Measured without the console's limit: a table that has to shrink would report that it fits.
    unbounded = console.options.update(max_width=1000)
    for columns in (WIDE_COLUMNS, COLUMNS):
        for gap in (2, 1):
            grid = build(report, rows, columns, gap)
            if Measurement.get(console, unbounded, grid).maximum <= console.width:
                return grid
    return build(report, rows, NARROW_COLUMNS, 1, wrap=True)


def build(
    report: CostReport, rows: list[CostRow], columns: list[CostColumn], gap: int, wrap: bool = False
) -> Table:
    """The table with these columns; `wrap` folds cells that are too wide."""
    # The box already puts one space between columns.
    padding = (0, gap - 1, 0, 0)
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=padding, show_edge=False)
    for column in columns:
        justify = "right" if column.right else "left"
        grid.add_column(
            Text(column.heading),
            justify=justify,
            no_wrap=not wrap,
            overflow="fold",
            vertical="bottom",
        )
    base = report.baseline
    for row in rows:
        style = "bold" if row is base else "yellow" if row.candidate.textbook else ""
        style = "red" if row.status == "failed" else style
        # As `Text`, because rich would parse brackets in a string as markup.
        grid.add_row(*(Text(c.cell(row, base)) for c in columns), style=style)
    return grid


def time_cell(times: Times, row: CostRow) -> str:
    """Milliseconds and spread; `-` for a row without a time or with a failed check."""
    if not row.timed():
        return "-"
    spread = "" if times.spread is None else f" ±{100 * times.spread:.0f}%"
    return f"{number(1e3 * times.median)}{spread}"


def range_cell(times: Times, row: CostRow) -> str:
    """Milliseconds and quartiles."""
    if not row.timed():
        return "-"
    low, high = (number(1e3 * x) for x in times.quartiles)
    return f"{number(1e3 * times.median)} [{low}, {high}]"


def ratio_cell(row: CostRow, base: CostRow | None, part: str) -> str:
    """The ratio of times over the baseline."""
    if base is None or not (row.timed() and base.timed()):
        return "-"
    return f"{number(getattr(row, part).over(getattr(base, part)).median)}x"


def memory_cell(count: int | None) -> str:
    """Bytes as MiB."""
    return "-" if count is None else number(count / MIB)


def error_cell(error: float | None) -> str:
    """The error with one digit; further digits would be noise."""
    return "-" if error is None else f"{error:.0e}"


def count_cell(count: int | None) -> str:
    """A count abbreviated with k, M or G."""
    if count is None:
        return "-"
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}" if count < 1000 * size else f"{count // size}{unit}"
    return str(count)


NAME = CostColumn("score", lambda row, _: row.candidate.label, right=False)
ENGINE = CostColumn("engine", lambda row, _: row.engine or "-", right=False)
ERROR = CostColumn("error", lambda row, _: error_cell(row.error))
RATIO = CostColumn("ratio", lambda row, base: ratio_cell(row, base, "both"))
BOTH_MEMORY = CostColumn("peak\nMiB", lambda row, _: memory_cell(row.both_memory))
COLUMNS = [
    NAME,
    CostColumn("params", lambda row, _: count_cell(row.parameters)),
    CostColumn("forward\nms", lambda row, _: time_cell(row.forward, row)),
    CostColumn("fwd+bwd\nms", lambda row, _: time_cell(row.both, row)),
    RATIO,
    BOTH_MEMORY,
    ERROR,
    ENGINE,
]
NARROW_COLUMNS = [
    NAME,
    CostColumn("fwd+bwd\nms", lambda row, _: number(1e3 * row.both.median) if row.timed() else "-"),
    RATIO,
    BOTH_MEMORY,
    ERROR,
]
WIDE_COLUMNS = [
    NAME,
    CostColumn("params", lambda row, _: "-" if row.parameters is None else f"{row.parameters:,}"),
    CostColumn("forward, ms\n[quartiles]", lambda row, _: range_cell(row.forward, row)),
    CostColumn("fwd+bwd, ms\n[quartiles]", lambda row, _: range_cell(row.both, row)),
    RATIO,
    CostColumn("peak MiB\nforward", lambda row, _: memory_cell(row.forward_memory)),
    CostColumn("peak MiB\nfwd+bwd", lambda row, _: memory_cell(row.both_memory)),
    CostColumn("error\noutput", lambda row, _: error_cell(row.error)),
    CostColumn("error\ngradient", lambda row, _: error_cell(row.gradient_error)),
    ENGINE,
]


def show_left_out(report: CostReport, console: Console) -> None:
    """Print the scores that refused, were skipped or failed, with their reasons."""
    groups = refusal_groups(report.of("refused"))
    if groups:
        console.print()
        console.print(Text("Scores that refuse this shape", style=TITLE))
    for names, reason in groups:
        more = " (the others likewise)" if len(names) > 1 else ""
        bullet(console, "x", f"{listed(names)}: {reason}{more}")
    for status, title in (("skipped", "What was skipped"), ("failed", "What failed its check")):
        rows = report.of(status)  # type: ignore[arg-type] # both are statuses
        if rows:
            console.print()
            console.print(Text(title, style=TITLE))
        for row in rows:
            bullet(console, "x", f"{row.candidate.label}: {row.reason}")
    console.print()


def refusal_groups(rows: list[CostRow]) -> list[tuple[list[str], str]]:
    """Labels of rows whose reasons differ only in the score's name, with the first row's reason."""
    groups: dict[str, tuple[list[str], str]] = {}
    for row in rows:
        # The reasons name their own score, as in "score 'dot' needs ...".
        same = row.reason.replace(repr(row.candidate.key), "")
        groups.setdefault(same, ([], row.reason))[0].append(row.candidate.label)
    return list(groups.values())


def show_rules(report: CostReport, console: Console) -> None:
    """Print the rule of thumb of every score once."""
    console.print(Text("When each is the right one (rules of thumb and their claims)", style=TITLE))
    rules: dict[str, str] = {}  # a projected score shares the rule of the plain one
    for row in report.rows:
        rules.setdefault(row.candidate.rule, row.candidate.label)
    margin = max(len(label) for label in rules.values()) + 4
    for rule, label in rules.items():
        paragraph(console, f"  {label}".ljust(margin), rule, mark_style="bold")
    console.print()


def bullet(console: Console, mark: str, text: str, style: str = "") -> None:
    """Print a bullet point."""
    paragraph(console, f" {mark} ", text, style=style)


def paragraph(
    console: Console, mark: str, text: str, style: str = "", mark_style: str = ""
) -> None:
    """Print wrapped text with a hanging indent. rich's own padding would fill each line with spaces."""
    room = max(console.width - len(mark), 12)
    lines = textwrap.wrap(text, room, break_on_hyphens=False)
    for i, line in enumerate(lines):
        head = " " * len(mark) if i else mark
        console.print(Text.assemble((head, mark_style), (line, style)), soft_wrap=True)
