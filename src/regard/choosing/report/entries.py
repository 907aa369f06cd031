"""The contents of the report for each task, in English and Chinese, before they become HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.choosing.claims import ClaimSummary, claim_summaries
from regard.choosing.report.charts import Drawing, cost_chart, curve_chart
from regard.choosing.report.words import (
    FINDINGS,
    NO_VERDICT,
    NOTES,
    NOTHING_LEARNED,
    OUTCOMES,
    TOO_FEW,
    VITALS,
)
from regard.choosing.suite import Answer, Suite
from regard.choosing.training.marks import NO_ATTENTION, margin, standing, use
from regard.choosing.training.phrases import level, parameters, plural, price, spread
from regard.choosing.training.rows import BaselineRow, CandidateRow
from regard.choosing.training.verdict import Verdict
from regard.choosing.training.words import opening, undecided
from regard.figures.render import size
from regard.measuring.words import number, seconds
from regard.text import Text

NONE = Text("-", "-")
USE = "# regard.attention(query, key, value, score), each of them (batch, 1, length, dim)"


@dataclass(frozen=True)
class Line:
    """One candidate's line in the tables of candidates and vitals."""

    label: Text
    quality: str
    ahead: Text
    time: str
    memory: str
    parameters: str
    rate: str
    standing: Text
    winner: bool
    vitals: list[str]
    findings: list[Text]
    notes: list[Text]

    @property
    def seen(self) -> bool:
        """Whether the doctor examined this candidate, or tried to."""
        return bool(self.notes) or any(value != "-" for value in self.vitals)


@dataclass(frozen=True)
class AnswerEntry:
    """The report's section on one task."""

    id: str
    name: Text
    prop: Text
    tone: str
    outcome: Text
    sentences: list[Text]
    winner: Text = NONE
    margin: Text = NONE
    price: str = "-"
    lines: list[Line] = field(default_factory=list)
    vital_names: list[Text] = field(default_factory=list)
    figures: list[Drawing] = field(default_factory=list)
    claims: list[ClaimSummary] = field(default_factory=list)
    code: str = ""
    how: Text = NONE


def entry(answer: Answer, place: int) -> AnswerEntry:
    """The section on a task; `place` numbers the tasks from 1."""
    task, verdict = answer.task, answer.verdict
    name = f"task-{place}"
    if verdict is None:
        tone, outcome = NO_VERDICT
        why = Text(answer.reason, answer.reason)
        return AnswerEntry(name, task.title, task.prop, tone, outcome, [why])
    tone, outcome = OUTCOMES[verdict.outcome]
    if not verdict.recommended:
        tone, outcome = TOO_FEW if verdict.learned is None else NOTHING_LEARNED
    winner = verdict.row(verdict.winner)
    shown = [vital for vital in VITALS if any(vital in vitals(row) for row in verdict.rows)]
    return AnswerEntry(
        id=name,
        name=task.title,
        prop=task.prop,
        tone=tone,
        outcome=outcome,
        sentences=opening(verdict),
        winner=use(verdict),
        margin=margin(verdict),
        price=price(verdict, winner) if verdict.recommended else "-",
        lines=[
            *(line(verdict, row, shown) for row in verdict.rows),
            *(baseline_line(verdict, row, len(shown)) for row in verdict.baselines),
        ],
        vital_names=[VITALS[vital] for vital in shown],
        figures=[cost_chart(verdict, name), curve_chart(verdict, name)],
        claims=claims(answer.claims),
        code=paste(verdict.code) if verdict.recommended else "",
        how=how(verdict),
    )


def how(verdict: Verdict) -> Text:
    """The numbers of seeds, steps and trainings, the rates and the duration."""
    settings, facts = verdict.facts["settings"], verdict.facts
    seeds, steps = len(verdict.seeds), settings["steps"]
    rates = ", ".join(f"{rate:g}" for rate in settings["rates"])
    beyond = sorted({row.rate for row in verdict.finalists if row.rate} - {*settings["rates"]})
    added = ", ".join(f"{rate:g}" for rate in beyond)
    wider = Text(f" and beyond them {added}", f"，以及更远的 {added}") if beyond else Text("", "")
    count, time = facts["trainings"], f"{facts['seconds']:.0f} s"
    return Text(
        f"{seeds} seed{plural(seeds)}, {steps} steps, rates {rates}{wider.en}, {count} trainings, {time}",
        f"{seeds} 个种子，{steps} 步，学习率 {rates}{wider.zh}，{count} 次训练，{time}",
    )


def vitals(row: CandidateRow) -> dict[str, float]:
    """The doctor's numbers for a candidate; empty if it was not examined."""
    return row.vitals.get("vitals", {}) if row.vitals else {}


def line(verdict: Verdict, row: CandidateRow, shown: list[str]) -> Line:
    """The line of one candidate."""
    cost, own, seen = row.cost, vitals(row), row.vitals or {}
    found = [finding(one) for one in seen.get("findings", [])]
    return Line(
        row.candidate.label,
        level(verdict, row) or "-",
        ahead(verdict, row),
        "-" if cost is None else seconds(cost.seconds),
        "-" if cost is None else size(cost.memory),
        f"{count:,}" if (count := parameters(row)) is not None else "-",
        "-" if row.rate is None else f"{row.rate:g}",
        standing(verdict, row),
        # Scaled dot is recommended for now if nothing was decided, but it has not won.
        row.candidate.name == verdict.winner and not undecided(verdict),
        [vital_number(own[vital]) if vital in own else "-" for vital in shown],
        list(dict.fromkeys(found)),
        [NOTES.get(note, Text(note, note)) for note in seen.get("notes", [])],
    )


def baseline_line(verdict: Verdict, row: BaselineRow, vitals: int) -> Line:
    """The line of a model without attention, which has a quality alone."""
    return Line(
        row.name, level(verdict, row) or "-", NONE, "-", "-", "-", "-", NO_ATTENTION, False,
        ["-"] * vitals, [], [],
    )  # fmt: skip


def finding(told: Mapping[str, str]) -> Text:
    """The title of a finding; its Chinese text is English if no translation is known."""
    return Text(told["title"], FINDINGS.get(told.get("disease", ""), told["title"]))


def vital_number(value: float) -> str:
    """A vital with three digits and its sign."""
    return f"−{number(-value)}" if value < 0 else number(value)


def ahead(verdict: Verdict, row: CandidateRow) -> Text:
    """The lead over scaled dot with its interval; a dash for candidates without one."""
    found = verdict.over(row)
    return NONE if found is None else spread(verdict, found)


def claims(names: tuple[str, ...]) -> list[ClaimSummary]:
    """The summaries of these claims; unknown ids are left out."""
    known = claim_summaries()
    return [known[name] for name in names if name in known]


def paste(code: str) -> str:
    """The code with a comment on how to call the score."""
    return code if code.startswith("#") else f"{code}\n{USE}\n"


def versions(suite: Suite) -> list[tuple[str, Any]]:
    """The machine and versions, as name and value."""
    for answer in suite.answers:
        if answer.verdict is not None:
            known = answer.verdict.facts["machine"]
            # The load at the start says little about a run of minutes.
            return [(key, value) for key, value in known.items() if key != "load"]
    return []
