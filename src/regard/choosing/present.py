"""The results of `regard choose` on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.choosing.cost import CostReport
from regard.choosing.cost.answer import busy, times
from regard.choosing.cost.present import TITLE, bullet
from regard.choosing.suite import SHAPE, Answer, Suite
from regard.choosing.training.intervals import LEAST_SEEDS
from regard.choosing.training.marks import margin, use
from regard.choosing.training.paste import imports
from regard.choosing.training.phrases import enough, plural, price
from regard.choosing.training.rows import Outcome
from regard.choosing.training.table import as_text
from regard.measuring.memory import show
from regard.measuring.words import duration, seconds

LONGEST_NAME = 18
WIDEST_TABLE = 120  # columns; the eye loses its line in a wider one


def show_first_look(report: CostReport, console: Console) -> None:
    """Print the cost of additive attention on this machine: the textbook's, ours, and scaled dot's."""
    theirs, ours = report.find("textbook_additive"), report.find("additive")
    console.print(Text("Additive attention on this machine", style=TITLE))
    console.print(Text(f"  {SHAPE}: forward and backward, peak memory, error", style="dim"))
    for row in (theirs, ours, report.find("scaled_dot")):
        if row is None or not row.timed():
            continue
        label = {"additive": "additive, ours"}.get(row.candidate.key, row.candidate.label)
        console.print(
            f"  {label:<20} {seconds(row.both.median):>8} {show(row.both_memory or 0):>11} "
            f"{row.error:>8.0e}"
        )
    if theirs and ours and theirs.timed() and ours.timed():
        time = theirs.both.over(ours.both).median
        space = (theirs.both_memory or 0) / max(ours.both_memory or 1, 1)
        console.print(
            f"  the textbook's takes {times(time)} the time (median of paired rounds) and {times(space)} "
            "the memory",
            soft_wrap=True,
        )
    if said := busy(report):
        bullet(console, "-", said, style="dim")
    console.print()


def show_suite(suite: Suite, console: Console) -> None:
    """Print a table of all tasks, or the full verdict if there is only one task."""
    answers = suite.answers
    if len(answers) == 1 and answers[0].verdict is not None:
        console.print(Text(f"Which score for {answers[0].task.name}?", style=TITLE))
        console.print(as_text(answers[0].verdict, console.width), soft_wrap=True, markup=False)
    else:
        console.print(Text("Which score for which data?", style=TITLE))
        console.print(answer_table(answers, console.width))
        show_codes(answers, console)
    for answer in suite.failed:
        bullet(console, "x", f"{answer.task.name}: {answer.reason}")
    console.print()
    bullet(console, "-", note(answers), style="dim")


def show_codes(answers: list[Answer], console: Console) -> None:
    """Print the code of every winning alternative, below the imports that they need."""
    won = [
        (answer.task.name, answer.verdict.row(answer.verdict.winner).candidate.code)
        for answer in answers
        if answer.verdict is not None and answer.verdict.outcome is Outcome.ALTERNATIVE
    ]
    if won:
        console.print(imports([code for _, code in won]), soft_wrap=True, markup=False, end="")
    for name, code in won:
        console.print(f"score = {code}  # {name}", soft_wrap=True, markup=False, highlight=False)


def answer_table(answers: list[Answer], width: int) -> Table:
    """A table with one row for each task: property of the data, winner, margin, time of a step."""
    room = min(width, WIDEST_TABLE)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, width=room)
    # In 80 columns a third holds a lead with its interval in one piece, `+30.0 points [27.4, 32.6]`.
    table.add_column("your data", ratio=5)
    table.add_column("use", ratio=4)
    table.add_column("over scaled dot", width=room // 3)
    table.add_column("a step", justify="right", no_wrap=True)
    for answer in answers:
        verdict = answer.verdict
        if verdict is None:
            table.add_row(named(answer), "-", "no verdict", "-")
            continue
        cost = price(verdict, verdict.row(verdict.winner)) if verdict.recommended else "-"
        cells = (use(verdict).en, margin(verdict).en, cost)
        table.add_row(named(answer), *cells)
    return table


def named(answer: Answer) -> str:
    """The name of a task and the property of data that it represents."""
    return f"{answer.task.name}: {answer.task.prop.en}"


def note(answers: list[Answer]) -> str:
    """A note on how the candidates were compared."""
    verdicts = [one.verdict for one in answers if one.verdict is not None]
    counts = sorted({len(one.seeds) for one in verdicts})
    seeds = "-".join(str(x) for x in dict.fromkeys((counts[0], counts[-1]))) if counts else "no"
    over = f"{seeds} seed{plural(counts[-1] if counts else 0)}"
    matters = " or ".join(dict.fromkeys(enough(one).en for one in verdicts))
    if counts and counts[-1] < LEAST_SEEDS:
        interval = f"With fewer than {LEAST_SEEDS} seeds they have no interval."
    else:
        interval = "The 95% intervals are for new seeds and new rows, and hold for all alternatives together."
    # The table of several tasks has ratios in brackets; that of one task has times only.
    ratio = "; in brackets over that of scaled dot in the same model" if len(answers) > 1 else ""
    return (
        f"Differences are paired over {over} and over the test rows. {interval} Every candidate had the same "
        "data, steps and learning rates to try, and is compared with the scaled dot of its heads and width, "
        "the null: an alternative wins only if its lead exceeds noise and is large enough to matter"
        f"{f' ({matters} or more)' if matters else ''}. A step is the time of a training step of the whole "
        f"model on this machine (forward, backward, optimiser){ratio}. What a score costs by itself is what "
        "`regard choose --shape` measures: the time of a forward and backward pass over that of scaled dot at "
        "the same length, heads and width."
    )


def line(answer: Answer) -> str:
    """One line about a finished task, printed while other tasks run."""
    if answer.verdict is None:
        return f"{answer.task.name}: {answer.reason}"
    label = use(answer.verdict).en
    took = duration(answer.verdict.facts["seconds"])
    return f"{answer.task.name.ljust(LONGEST_NAME)} {label}; {margin(answer.verdict).en}; {took}"
