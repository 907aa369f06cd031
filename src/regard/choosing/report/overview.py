"""The report's first screen: the recommendation for all tasks, and additive attention on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from regard.choosing.cost import CostReport
from regard.choosing.report.words import FIRST, WORDS
from regard.choosing.suite import Answer, Suite
from regard.choosing.training.candidates import LABELS, kind_of
from regard.choosing.training.intervals import LEAST_SEEDS
from regard.choosing.training.judging import MOST_SEEDS
from regard.choosing.training.phrases import SHARES, enough, option
from regard.choosing.training.rows import Outcome
from regard.choosing.training.unlearned import CHECK
from regard.choosing.training.verdict import Verdict
from regard.choosing.training.words import opening, undecided
from regard.figures.render import size
from regard.measuring.words import listed, number, seconds
from regard.text import Text


def summary(suite: Suite) -> list[Text]:
    """The recommendation for all tasks; with one task, the sentences of its verdict."""
    every = [(one, one.verdict) for one in suite.answers if one.verdict is not None]
    if len(suite.answers) == 1 and every:
        return opening(every[0][1])
    done = [pair for pair in every if pair[1].recommended]
    lost = [answer for answer, verdict in every if verdict.learned is False]
    small = [answer for answer, verdict in every if verdict.learned is None]
    won = [pair for pair in done if pair[1].outcome is Outcome.ALTERNATIVE]
    kept = [pair for pair in done if pair[1].outcome in (Outcome.NULL, Outcome.SAME)]
    unsettled = [pair for pair in done if undecided(pair[1])]
    found = [nothing_learned(lost)] if lost else []
    found += [too_few(small)] if small else []
    found += [changes(won)] if won else []
    found += [stays(kept)] if kept else []
    found += [not_decided(unsettled)] if unsettled else []
    return found + ([unanswered(suite.failed)] if suite.failed else [])


def nothing_learned(answers: Sequence[Answer]) -> Text:
    """A sentence about tasks on which the best candidate is no better than guessing."""
    names = titles(answers)
    return Text(
        f"No recommendation for {names.en}: no score is shown to have learned more than guessing. {CHECK.en}",
        f"{names.zh}无法推荐：没有任何打分函数被证实比瞎猜学得更多。{CHECK.zh}",
    )


def too_few(answers: Sequence[Answer]) -> Text:
    """A sentence about tasks whose best candidate seems to have learned, which is not shown."""
    names = titles(answers)
    return Text(
        f"No recommendation for {names.en}: too few rows or seeds to show that a score learned. Give more.",
        f"{names.zh}无法推荐：数据行或种子太少，无法证实有打分函数学到东西。请增加。",
    )


def changes(won: Sequence[tuple[Answer, Verdict]]) -> Text:
    """A sentence that names the winning score for each task and its lead."""
    # Tasks with the same winner are named together; sizes, such as hidden widths, do not tell winners
    # apart here.
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
    cost = costs([verdict for _, verdict in won])
    return Text(
        f"Change from scaled dot to {listed([text.en for text in told])}{cost.en}.",
        f"以下情况不用缩放点积：{'；'.join(text.zh for text in told)}{cost.zh}。",
    )


def gains(verdicts: Sequence[Verdict]) -> Text:
    """The range of leads in points; empty if the metrics are not shares and cannot be compared."""
    leads = [100 * one.over_null.value for one in verdicts if one.over_null is not None]
    if not leads or any(one.metric not in SHARES for one in verdicts):
        return Text("", "")
    ends = dict.fromkeys(f"{x:.1f}" for x in (min(leads), max(leads)))
    return Text(f" (+{' to +'.join(ends)} points)", f"（+{' 到 +'.join(ends)} 个百分点）")


def stays(kept: Sequence[tuple[Answer, Verdict]]) -> Text:
    """A sentence about tasks for which scaled dot remains the choice."""
    names, matters = titles([answer for answer, _ in kept]), thresholds([v for _, v in kept])
    return Text(
        f"Stay with scaled dot for {names.en}: no alternative has a lead there that exceeds noise and "
        f"is large enough to matter ({matters.en}).",
        f"{names.zh}仍用缩放点积：没有替代者的领先幅度既超出噪声、又达到实质差异（{matters.zh}）。",
    )


def not_decided(pairs: Sequence[tuple[Answer, Verdict]]) -> Text:
    """A sentence about tasks whose intervals are too wide for a decision, and what to do."""
    names, matters = titles([answer for answer, _ in pairs]), thresholds([v for _, v in pairs])
    needs = [verdict.seeds_to_decide for _, verdict in pairs]
    known = [need for need in needs if need is not None]
    seeds = Text("", "")
    if len(known) == len(needs):
        given = option(pairs[0][1], "seeds", max(known))
        seeds = Text(f" ({given})", f"（{given}）")
    elif all(len(verdict.seeds) >= LEAST_SEEDS for _, verdict in pairs):
        seeds = Text(f" (more than {MOST_SEEDS})", f"（超过 {MOST_SEEDS} 个）")
    steps = " (--steps)" if pairs[0][1].asked_by == "command" else " (steps=)"
    return Text(
        f"Not decided for {names.en}: a difference that matters ({matters.en}) is neither shown nor "
        f"ruled out. For now use what the table names; more seeds{seeds.en} or longer trainings{steps} may "
        "decide it.",
        f"{names.zh}未能判定：实质差异（{matters.zh}）既未得到证实，也不能排除。暂用表中所列；"
        f"增加种子{seeds.zh}或加长训练{steps}可能得出结论。",
    )


def fair(suite: Suite) -> Text:
    """How the comparison was made fair, and the smallest difference that matters."""
    verdicts = [one.verdict for one in suite.answers if one.verdict is not None]
    if not verdicts:
        return WORDS["fair"]
    matters = thresholds(verdicts)
    return Text(
        f"{WORDS['fair'].en} The smallest difference that matters is {matters.en}.",
        f"{WORDS['fair'].zh}实质差异指不低于 {matters.zh}。",
    )


def thresholds(verdicts: Sequence[Verdict]) -> Text:
    """The smallest differences that matter, each once."""
    found = list(dict.fromkeys(enough(verdict) for verdict in verdicts))
    return Text(" or ".join(text.en for text in found), "或 ".join(text.zh for text in found))


def costs(verdicts: Sequence[Verdict]) -> Text:
    """The range of the winners' step times over scaled dot's; empty if they are unknown."""
    found = [one.times_null(one.row(one.winner)) for one in verdicts]
    ratios = [ratio for ratio in found if ratio is not None]
    if not ratios:
        return Text("", "")
    ends = dict.fromkeys(number(x) for x in (min(ratios), max(ratios)))
    return Text(
        f"; a training step of these takes {' to '.join(ends)} times the time of scaled dot",
        f"；它们训练一步的耗时是缩放点积的 {' 到 '.join(ends)} 倍",
    )


def unanswered(failed: Sequence[Answer]) -> Text:
    """A sentence about tasks without a verdict."""
    names = titles(failed)
    return Text(f"There is no verdict for {names.en}.", f"{names.zh}没有结论。")


def titles(answers: Sequence[Answer]) -> Text:
    """The titles of tasks as a list in words."""
    if not answers:
        return Text("", "")
    found = [answer.task.title for answer in answers]
    return Text(listed([text.en for text in found]), "、".join(text.zh for text in found))


def textbook_ratio(report: CostReport | None) -> Text | None:
    """The textbook's time over ours, as the median of paired ratios; None if a time is missing."""
    theirs, ours = (
        report.find(name) if report else None for name in ("textbook_additive", "additive")
    )
    if not theirs or not ours or not theirs.timed() or not ours.timed():
        return None
    ratio = number(theirs.both.over(ours.both).median)
    return Text(
        f"The textbook's takes {ratio} times the time of ours: the median of the ratios of calls timed one "
        "after the other. Each time in the table is a median by itself.",
        f"教科书写法的耗时是本库的 {ratio} 倍：逐轮先后计时之比的中位数。表中的耗时是各自的中位数。",
    )


def first_rows(report: CostReport | None) -> list[tuple[Text, str, str, str]]:
    """Rows of the first table: label, time, memory and error of textbook additive, ours, scaled dot."""
    if report is None:
        return []
    found = []
    for name, label in FIRST.items():
        row = report.find(name)
        if row is not None and row.timed():
            error = "-" if row.error is None else f"{row.error:.0e}"
            found.append((label, seconds(row.both.median), size(row.both_memory or 0), error))
    return found
