"""Claims on a terminal: the list, the outcome of a run, the details of one claim. Needs rich."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as Line

from regard.claims.absent import absent_sentence
from regard.claims.claim import Claim, ClaimVerdict
from regard.claims.report.amounts import row
from regard.claims.report.entries import command
from regard.claims.report.words import VERDICTS, WORDS, key_of
from regard.claims.running.runner import ClaimRunner
from regard.claims.running.store import Result
from regard.claims.running.version import code_version
from regard.text import Language, Text

TITLE = "bold cyan"
INKS = {
    ClaimVerdict.HOLDS: "green",
    ClaimVerdict.CONDITIONS: "yellow",
    ClaimVerdict.FAILS: "red",
    ClaimVerdict.UNDECIDED: "blue",
    None: "dim",
}
STATEMENT = Text("claim", "论断")
VERDICT = Text("last verdict", "最近结论")
NOW = Text("verdict", "结论")
WAS = Text("was: {}", "上次：{}")
FAILED = Text("failed", "运行出错")
OUTDATED = Text(
    "* measured with a different version of the code: `regard claims run` runs it again.",
    "* 由其他版本的代码测得：`regard claims run` 会重新运行。",
)
HINT = Text(
    "`regard claims show ID` shows the details of a claim; `regard claims run` runs them all.",
    "`regard claims show ID` 查看某条论断的详情；`regard claims run` 运行全部论断。",
)
COUNTS = Text("{} run, {} kept, {} failed.", "运行 {} 条，沿用 {} 条，出错 {} 条。")
AGAIN = Text(
    "Kept claims already had a current result; --again runs them too.",
    "沿用的论断已有与当前代码一致的结果；加 --again 可重新运行。",
)


def show_list(
    claims: Iterable[Claim], results: dict[str, Result], language: Language, console: Console
) -> None:
    """Print every claim with its last verdict."""
    table = grid(language, VERDICT)
    outdated = False
    group = ""
    for claim in claims:
        if group not in ("", claim.id[0]):
            table.add_section()
        group = claim.id[0]
        result = results.get(claim.id)
        old = result is not None and result.code != code_version(claim)
        outdated |= old
        shown = verdict_line(verdict_of(result), language)
        table.add_row(claim.id, Line(claim.statement.of(language)), shown.append("*" * old))
    console.print(table)
    console.print()
    console.print(Line(counts((verdict_of(results.get(c.id)) for c in claims), language)))
    for text in [OUTDATED] * outdated + [absent_sentence(), HINT]:
        console.print(Line(text.of(language), style="dim"))


def show_run(runner: ClaimRunner, language: Language, console: Console) -> None:
    """Print the outcome of a run: claims that ran, claims whose results were kept, failures."""
    results = runner.ran | runner.kept
    table = grid(language, NOW)
    for name, claim in runner.claims.items():
        if name in runner.failed:
            why = Line(runner.failed[name], style="red")
            table.add_row(name, said(claim, why, language), Line(FAILED.of(language), "bold red"))
        elif name in results:
            judged = results[name].judgement
            # Any verdict but "holds" needs its reason: a condition, a contradiction, or what is missing.
            more = "" if judged.verdict is ClaimVerdict.HOLDS else judged.because.of(language)
            shown = verdict_line(judged.verdict, language)
            if (was := runner.changed(name)) is not None:
                shown.append(f"\n{WAS.of(language).format(word(was, language))}", "bold")
            table.add_row(name, said(claim, Line(more, style="dim"), language), shown)
    console.print(table)
    console.print()
    console.print(Line(counts((r.judgement.verdict for r in results.values()), language)))
    amounts = len(runner.ran), len(runner.kept), len(runner.failed)
    again = f" {AGAIN.of(language)}" if runner.kept else ""
    console.print(Line(COUNTS.of(language).format(*amounts) + again, style="dim"))


def show_claim(claim: Claim, result: Result | None, language: Language, console: Console) -> None:
    """Print everything about one claim except its figure."""
    console.print(Line.assemble((claim.id, "bold"), f"  {claim.statement.of(language)}"))
    shown = verdict_line(verdict_of(result), language)
    if result is not None:
        size = WORDS["full" if result.full else "quick"].of(language)
        seed = f"{WORDS['seed'].of(language)} {result.seed}"
        shown.append(f"  ({size}, {seed}, {result.finished[:10]})", "dim")
        shown.append(f"\n{result.judgement.because.of(language)}")
        if result.code != code_version(claim):
            shown.append(f"\n{OUTDATED.of(language)}", "dim")
    paragraph(console, WORDS["verdict"], shown, language)
    paragraph(console, WORDS["criterion"], claim.criterion, language)
    if result is not None and result.judgement.facts:
        paragraph(console, WORDS["numbers"], "", language)
        console.print(Padding(facts(result, language), (0, 0, 0, 2), expand=False))
    paragraph(console, WORDS["control"], claim.control, language)
    paragraph(console, WORDS["meaning"], claim.meaning, language)
    paragraph(
        console, WORDS["run" if result is None else "rerun"], command(claim.id, result), language
    )


def as_json(claim: Claim, result: Result | None, language: Language) -> dict[str, Any]:
    """A claim and its result as JSON for other programs; the verdict is in English in every language."""
    found: dict[str, Any] = {
        "id": claim.id,
        "statement": claim.statement.of(language),
        "criterion": claim.criterion.of(language),
        "verdict": None,
    }
    if result is None:
        return found
    return found | {
        "verdict": result.judgement.verdict.value,
        "because": result.judgement.because.of(language),
        "size": "full" if result.full else "quick",
        "seed": result.seed,
        "seconds": result.seconds,
        "finished": result.finished,
        "current": result.code == code_version(claim),
    }


def grid(language: Language, verdict: Text) -> Table:
    """An empty table with the columns id, statement and verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("id", no_wrap=True, style="bold")
    table.add_column(STATEMENT.of(language), overflow="fold")
    table.add_column(verdict.of(language), overflow="fold", max_width=25)
    return table


def said(claim: Claim, more: Line, language: Language) -> Line:
    """The statement with `more` on the next line, if there is any."""
    line = Line(claim.statement.of(language))
    return line.append("\n").append_text(more) if more else line


def verdict_of(result: Result | None) -> ClaimVerdict | None:
    """The verdict of a result, or None if there is no result."""
    return None if result is None else result.judgement.verdict


def word(verdict: ClaimVerdict | None, language: Language) -> str:
    """A verdict in the reader's language."""
    return VERDICTS[key_of(verdict)].of(language)


def verdict_line(verdict: ClaimVerdict | None, language: Language) -> Line:
    """A verdict in the reader's language and in its colour; text appended later stays uncoloured."""
    return Line().append(word(verdict, language), INKS[verdict])


def counts(verdicts: Iterable[ClaimVerdict | None], language: Language) -> str:
    """The number of each verdict: `holds: 20, does not hold here: 2`."""
    found = Counter(verdicts)
    parts = [f"{word(verdict, language)}: {found[verdict]}" for verdict in INKS if found[verdict]]
    return ", ".join(parts)


def facts(result: Result, language: Language) -> Table:
    """A table of the numbers that decide the verdict, with their intervals."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for fact in result.judgement.facts:
        label, value, interval = row(fact, language)
        table.add_row(Line(label), Line(value), Line(interval, style="dim"))
    return table


def paragraph(console: Console, title: Text, text: Text | Line | str, language: Language) -> None:
    """Print a title and below it an indented text."""
    console.print()
    console.print(Line(title.of(language), style=TITLE))
    if isinstance(text, Text):
        text = text.of(language)
    if text:
        shown = text if isinstance(text, Line) else Line(text)
        console.print(Padding(shown, (0, 0, 0, 2), expand=False))
