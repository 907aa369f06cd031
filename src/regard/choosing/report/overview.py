"""The first screen: the recommendation for all tasks in two sentences, and additive on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from regard.choosing.cost import Report
from regard.choosing.report.words import FIRST
from regard.choosing.suite import Answer, Suite
from regard.choosing.training.candidates import LABELS, kind_of
from regard.choosing.training.verdict import Outcome, Verdict
from regard.choosing.training.words import SHARES, recommendation
from regard.claims.text import Text
from regard.measuring.figure import size
from regard.measuring.words import listed, number, seconds


def summary(suite: Suite) -> list[Text]:
    """Two sentences for all tasks; of one task its own."""
    done = [(one, one.verdict) for one in suite.answers if one.verdict is not None]
    if len(suite.answers) == 1 and done:
        return recommendation(done[0][1])
    won = [pair for pair in done if pair[1].outcome is Outcome.ALTERNATIVE]
    kept = [one for one, verdict in done if verdict.outcome is not Outcome.ALTERNATIVE]
    found = [changes(won)] if won else []
    found += [stays(kept, won)] if kept or won else []
    return found + ([unanswered(suite.failed)] if suite.failed else [])


def changes(won: Sequence[tuple[Answer, Verdict]]) -> Text:
    """Which score for which data, by how much."""
    kinds: dict[Text, list[tuple[Answer, Verdict]]] = {}
    for answer, verdict in won:
        winner = verdict.row(verdict.winner).candidate
        known = winner.score in LABELS
        kind = kind_of(winner.score, winner.stabilizer) if known else winner.label
        kinds.setdefault(kind, []).append((answer, verdict))
    told = []
    for kind, pairs in kinds.items():
        names, gain = titles([answer for answer, _ in pairs]), gains([v for _, v in pairs])
        told.append(Text(f"{kind.en} for {names.en}{gain.en}", f"{names.zh}用{kind.zh}{gain.zh}"))
    return Text(
        f"Change from scaled dot to {listed([text.en for text in told])}.",
        f"这些情况换掉缩放点积：{'；'.join(text.zh for text in told)}。",
    )


def gains(verdicts: Sequence[Verdict]) -> Text:
    """From the smallest to the largest lead, where they can be compared."""
    leads = [100 * one.over_null.value for one in verdicts if one.over_null is not None]
    if not leads or any(one.metric not in SHARES for one in verdicts):
        return Text("", "")
    ends = dict.fromkeys(f"{x:.1f}" for x in (min(leads), max(leads)))
    return Text(f" (+{' to +'.join(ends)} points)", f"（+{' 到 +'.join(ends)} 个百分点）")


def stays(kept: Sequence[Answer], won: Sequence[tuple[Answer, Verdict]]) -> Text:
    """Where scaled dot stays, and what the others cost."""
    names, cost = titles(kept), costs([verdict for _, verdict in won])
    if not kept:
        return Text(
            f"An alternative beat it everywhere{cost.en}.", f"每一类数据上都有替代者胜出{cost.zh}。"
        )
    return Text(
        f"Stay with scaled dot for {names.en}: no alternative beats it there by more than noise"
        f"{cost.en}.",
        f"{names.zh}仍用缩放点积：没有替代者以超出噪声的幅度胜过它{cost.zh}。",
    )


def costs(verdicts: Sequence[Verdict]) -> Text:
    """How many times the time of scaled dot a step of the winners takes."""
    found = [one.times_null(one.row(one.winner)) for one in verdicts]
    ratios = [ratio for ratio in found if ratio is not None]
    if not ratios:
        return Text("", "")
    ends = dict.fromkeys(number(x) for x in (min(ratios), max(ratios)))
    return Text(
        f"; a training step of what wins takes {' to '.join(ends)} times its time",
        f"；胜出者训练一步的时间是它的 {' 到 '.join(ends)} 倍",
    )


def unanswered(failed: Sequence[Answer]) -> Text:
    """Tasks without a verdict."""
    names = titles(failed)
    return Text(f"There is no verdict for {names.en}.", f"{names.zh}没有结论。")


def titles(answers: Sequence[Answer]) -> Text:
    """The names of tasks."""
    if not answers:
        return Text("", "")
    found = [answer.task.title for answer in answers]
    return Text(listed([text.en for text in found]), "、".join(text.zh for text in found))


def first_rows(report: Report | None) -> list[tuple[Text, str, str, str]]:
    """Textbook additive against ours: name, time, memory, error."""
    if report is None:
        return []
    found = []
    for name, label in FIRST.items():
        row = report.find(name)
        if row is not None and row.timed():
            error = "-" if row.error is None else f"{row.error:.0e}"
            found.append((label, seconds(row.both.median), size(row.both_memory or 0), error))
    return found
