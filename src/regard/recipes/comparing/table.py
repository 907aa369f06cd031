"""The table of a comparison for a terminal of 80 columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text as Line

from regard.measuring.words import seconds
from regard.recipes.comparing.sentences import SAME, how, sentences
from regard.text import Language, Text

if TYPE_CHECKING:
    from rich.console import Console

    from regard.recipes.comparing.results import Compared, ComparedRow

KINDS = {
    "score": Text("score", "打分"),
    "control": Text("no attention", "无注意力"),
    "baseline": Text("baseline", "基线"),
}
QUICK = Text(
    "This was the quick comparison: fewer settings, seeds and epochs than the full one.",
    "这是快速比较：设置、种子和轮数都少于完整比较。",
)
WIDE = 100  # columns from which a terminal has room for every number
# A Chinese character with the punctuation after it, or a word with the spaces after it.
PIECE = re.compile(r"[\u2e80-\uffef][，。：；、）]*\s*|[^\s\u2e80-\uffef]+[，。：；、）]*\s*|\s+")
HEAD = (
    Text("contender", "参与者"),
    Text("to {}", "与{}之差"),
    Text("train", "训练"),
    Text("predict", "预测"),
    Text("parameters", "参数"),
)


def show_compared(found: Compared, language: Language, console: Console) -> None:
    """Print the verdict and the table."""

    def say(text: str, style: str = "") -> None:
        console.print(Line("\n".join(filled(text, console.width)), style=style))

    say(found.title.of(language), "bold")
    for one in sentences(found):
        say(one.of(language))
    console.print()
    console.print(grid(found, language, console.width))
    for name, why in found.failed.items():
        say(f"{name}: {why}", "red")
    say(how(found).of(language), "dim")
    if not found.full:
        say(QUICK.of(language), "dim")


def grid(found: Compared, language: Language, width: int) -> Table:
    """The rows, the best first; the reference in bold. A narrow terminal has no room for the time of predicting."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    wide = width >= WIDE
    name, difference, train, predict, size = (one.of(language) for one in HEAD)
    reference = found.row(found.reference).title.of(language)
    table.add_column(name, overflow="fold", min_width=14)
    table.add_column(found.metric.title.of(language), justify="right", overflow="fold")
    table.add_column(difference.format(reference), justify="right", overflow="fold")
    for title in (train, predict, size) if wide else (train, size):
        table.add_column(title, justify="right", overflow="fold")
    for row in found.rows:
        name, kind = titled(row, language)
        title = Line(name, "bold" if row.name == found.reference else "").append(kind, "dim")
        times = [seconds(row.train_seconds), seconds(row.predict_seconds)]
        value = level(found, row) if wide else short_level(found, row)
        numbers = value, change(found, row).of(language), *times[: 1 + wide], parameters(row)
        table.add_row(title, *numbers)
    return table


def level(found: Compared, row: ComparedRow) -> str:
    """The mean quality with its interval, whose sides differ where a bound of the metric cuts one off."""
    value, low, high = map(found.metric.show, row.value)
    return f"{value} [{low}, {high}]"


def short_level(found: Compared, row: ComparedRow) -> str:
    """The mean quality and the sides of its interval, shorter than `level`: `98.0 +2.0 −4.2`, or `50.0 ±1.0`."""
    show, (value, low, high) = found.metric.show, row.value
    up, down = show(high - value), show(value - low)
    return f"{show(value)} ±{up}" if up == down else f"{show(value)} +{up} −{down}"


def change(found: Compared, row: ComparedRow) -> Text:
    """The difference to the reference with its interval; without one where it has no width."""
    if row.difference is None:
        return Text("-", "-")
    value, low, high = (found.metric.show(x, sign=True) for x in row.difference)
    if row.difference.low == row.difference.high:
        value = value if float(value.replace("−", "-")) else found.metric.show(0.0)
        return Text(f"{value} ({SAME.en})", f"{value}（{SAME.zh}）")
    return Text(f"{value} [{low}, {high}]", f"{value} [{low}, {high}]")


def titled(row: ComparedRow, language: Language) -> tuple[str, str]:
    """The title of a row, and what follows it in a fainter hand: its kind, if it is no score."""
    title, kind = row.title.of(language), KINDS[row.kind].of(language)
    if row.kind == "score":
        return title, ""
    for end, mark in ((")", "; "), ("）", "；")):
        if title.endswith(end):  # one pair of brackets for both
            return title.removesuffix(end), f"{mark}{kind}{end}"
    return title, f" ({kind})"


def parameters(row: ComparedRow) -> str:
    """The number of parameters; a dash for a method that has none to count."""
    return f"{row.parameters:,}" if row.parameters else "-"


def filled(text: str, width: int) -> list[str]:
    """The text in lines; Chinese, which has no spaces, is broken anywhere but before a mark of punctuation."""
    lines = [""]
    for piece in PIECE.findall(text):
        if cell_len(lines[-1] + piece.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]
