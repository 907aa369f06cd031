"""What the report says of each task, before it becomes HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from regard.choosing.cost import Report
from regard.choosing.report.charts import cost_chart, curve_chart
from regard.choosing.suite import Answer, Suite
from regard.choosing.training.verdict import Outcome, Row, Verdict, compared
from regard.choosing.training.words import level, recommendation, spread, standing
from regard.claims.registry import survey
from regard.measuring.figure import size
from regard.measuring.words import number, seconds

# Colours of the claims' report for kinds of answers.
KEYS = {
    Outcome.ALTERNATIVE: ("holds", "an alternative wins"),
    Outcome.NULL: ("holds", "scaled dot wins"),
    Outcome.SAME: ("conditions", "no difference that matters"),
    Outcome.UNDECIDED: ("undecided", "not decided"),
}
VITALS = {
    "logit_max": "largest logit",
    "entropy": "entropy",
    "max_weight": "largest weight",
    "jacobian": "softmax gradient",
    "key_spread": "longest key / others",
    "c50": "hijack factor",
    "tanh_saturated": "tanh saturated",
}
PASTE = """import regard
from regard.stabilize import {imports}

score = {code}
"""
PLAIN_PASTE = """import regard

score = {code}
"""
STABILIZERS = ("ClippedKeys", "Normalized", "SoftCapped", "Tempered", "UnitKeys")


@dataclass(frozen=True)
class Line:
    """One candidate in the table."""

    label: str
    quality: str
    ahead: str
    time: str
    memory: str
    parameters: str
    rate: str
    standing: str
    winner: bool
    vitals: list[str]
    findings: list[str]


@dataclass(frozen=True)
class Claimed:
    """A claim that bears on a task."""

    id: str
    statement: str
    meaning: str


@dataclass(frozen=True)
class Entry:
    """One task."""

    id: str
    name: str
    prop: str
    key: str
    outcome: str
    sentences: list[str]
    winner: str
    margin: str
    lines: list[Line] = field(default_factory=list)
    vital_names: list[str] = field(default_factory=list)
    figures: list[tuple[Markup, float, str]] = field(default_factory=list)
    claims: list[Claimed] = field(default_factory=list)
    code: str = ""
    how: str = ""
    reason: str = ""


def entry(answer: Answer, place: int) -> Entry:
    """What is said of a task."""
    task, verdict = answer.task, answer.verdict
    name = f"task-{place}"
    if verdict is None:
        return Entry(
            name, task.name, task.prop, "not_run", "no verdict", [answer.reason], "-", "-",
            reason=answer.reason,
        )  # fmt: skip
    key, outcome = KEYS[verdict.outcome]
    winner = verdict.row(verdict.winner)
    shown = [vital for vital in VITALS if any(vital in vitals(row) for row in verdict.rows)]
    found = verdict.over_null if verdict.outcome is not Outcome.NULL else verdict.margin
    settings = verdict.facts["settings"]
    return Entry(
        id=name,
        name=task.name,
        prop=task.prop,
        key=key,
        outcome=outcome,
        sentences=recommendation(verdict),
        winner=winner.candidate.label,
        margin="-" if found is None else spread(verdict, found),
        lines=[line(verdict, row, shown) for row in verdict.rows],
        vital_names=[VITALS[vital] for vital in shown],
        figures=[cost_chart(verdict, name), curve_chart(verdict, name)],
        claims=claims(task.claims or by_outcome(winner)),
        code=paste(winner.candidate.code),
        how=(
            f"{len(verdict.seeds)} seeds, {settings['steps']} steps, rates "
            f"{', '.join(f'{rate:g}' for rate in settings['rates'])}, "
            f"{verdict.facts['trainings']} trainings, {verdict.facts['seconds']:.0f} s"
        ),
    )


def vitals(row: Row) -> dict[str, float]:
    """The doctor's numbers, where it looked."""
    return row.vitals.get("vitals", {}) if row.vitals else {}


def line(verdict: Verdict, row: Row, shown: list[str]) -> Line:
    """One candidate."""
    cost, own = row.cost, vitals(row)
    found = [one["title"] for one in (row.vitals or {}).get("findings", [])]
    return Line(
        row.candidate.label,
        level(verdict, row) or "-",
        ahead(verdict, row),
        "-" if cost is None else seconds(cost.seconds),
        "-" if cost is None else size(cost.memory),
        "-" if cost is None else f"{cost.parameters:,}",
        "-" if row.rate is None else f"{row.rate:g}",
        standing(verdict, row),
        row.candidate.name == verdict.winner,
        [vital_number(own[vital]) if vital in own else "-" for vital in shown],
        list(dict.fromkeys(found)),
    )


def vital_number(value: float) -> str:
    """Three digits, signs kept."""
    return f"−{number(-value)}" if value < 0 else number(value)


def ahead(verdict: Verdict, row: Row) -> str:
    """Over scaled dot, paired, with the interval that holds for all at once."""
    null = verdict.null_row()
    done = null is not None and row.status == "final" and row is not null
    if null is None or not done:
        return "-"
    several = sum(one.status == "final" for one in verdict.rows) - 1
    first, second = ([one.quality[seed] for seed in verdict.seeds] for one in (row, null))
    return spread(verdict, compared(first, second, several))


def by_outcome(winner: Row) -> tuple[str, ...]:
    """Claims for a task of the user's: those of the rules for the score that won."""
    from regard.choosing.rules import RULES

    found = [name for rule in RULES if rule.score == winner.candidate.score for name in rule.claims]
    return tuple(dict.fromkeys(found))


def claims(names: tuple[str, ...]) -> list[Claimed]:
    """Statements and what they mean for choosing."""
    known = survey().claims
    return [
        Claimed(name, known[name].statement.en, known[name].meaning.en)
        for name in names
        if name in known
    ]


def paste(code: str) -> str:
    """Python that runs as it stands."""
    if code.startswith("#"):
        return code
    names = [name for name in STABILIZERS if f"{name}(" in code]
    if not names:
        return PLAIN_PASTE.format(code=code)
    return PASTE.format(code=code, imports=", ".join(names))


def first_rows(report: Report | None) -> list[tuple[str, str, str, str]]:
    """Textbook additive against ours: name, time, memory, error."""
    if report is None:
        return []
    found = []
    for name, label in (
        ("textbook_additive", "additive as the textbook has it"),
        ("additive", "additive, ours"),
        ("scaled_dot", "scaled dot"),
    ):
        row = report.find(name)
        if row is not None and row.timed():
            error = "-" if row.error is None else f"{row.error:.0e}"
            found.append((label, seconds(row.both.median), size(row.both_memory or 0), error))
    return found


def versions(suite: Suite) -> list[tuple[str, Any]]:
    """What it was measured on."""
    for answer in suite.answers:
        if answer.verdict is not None:
            known = answer.verdict.facts["machine"]
            return [(key, value) for key, value in known.items() if key != "load"]
    return []
