"""The table of a comparison for a terminal of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text as Line

from regard.measuring.words import seconds
from regard.recipes.comparing.sentences import how, sentences
from regard.text import Language, Text

if TYPE_CHECKING:
    from rich.console import Console

    from regard.recipes.comparing.results import Compared, ComparedRow

KINDS = {
    "score": Text("score", "打分"),
    "control": Text("no attention", "无注意力"),
    "baseline": Text("baseline", "基线"),
}
HEAD = (
    Text("contender", "参与者"),
    Text("to {}", "与{}之差"),
    Text("train", "训练"),
    Text("predict", "预测"),
    Text("parameters", "参数"),
)


def show_compared(found: Compared, language: Language, console: Console) -> None:
    """Print the verdict and the table."""
    console.print(Line(found.title.of(language), style="bold"))
    for one in sentences(found):
        console.print(Line(one.of(language)))
    console.print()
    console.print(grid(found, language))
    for name, why in found.failed.items():
        console.print(Line(f"{name}: {why}", style="red"))
    console.print(Line(how(found).of(language), style="dim"))


def grid(found: Compared, language: Language) -> Table:
    """The rows, the best first; the reference in bold."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    name, difference, train, predict, parameters = (one.of(language) for one in HEAD)
    reference = found.row(found.reference).title.of(language)
    table.add_column(name, overflow="fold", min_width=14)
    table.add_column(found.metric.title.of(language), justify="right", overflow="fold")
    table.add_column(difference.format(reference), justify="right", overflow="fold")
    for title in (train, predict, parameters):
        table.add_column(title, justify="right", overflow="fold")
    for row in found.rows:
        title = Line(row.title.of(language), "bold" if row.name == found.reference else "")
        if row.kind != "score":
            title.append(f" ({KINDS[row.kind].of(language)})", "dim")
        table.add_row(
            title,
            level(found, row),
            change(found, row),
            seconds(row.train_seconds),
            seconds(row.predict_seconds),
            f"{row.parameters:,}" if row.parameters else "-",
        )
    return table


def level(found: Compared, row: ComparedRow) -> str:
    """The mean quality and half the width of its interval."""
    half = (row.value.high - row.value.low) / 2
    return f"{found.metric.show(row.value.value)} ±{found.metric.show(half)}"


def change(found: Compared, row: ComparedRow) -> str:
    """The difference to the reference with its interval."""
    if row.difference is None:
        return "-"
    value, low, high = (found.metric.show(x, sign=True) for x in row.difference)
    return f"{value} [{low}, {high}]"
