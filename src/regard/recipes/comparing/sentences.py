"""The verdict of a comparison in sentences: what to use, what is not decided, and what beats attention."""

from __future__ import annotations

import math

from regard.measuring import words
from regard.measuring.statistics import Estimate
from regard.recipes.comparing.results import Compared, ComparedRow
from regard.text import Text

WIDE_SHARE = (
    0.1  # of the reference's quality: an interval that goes further to each side says little
)
LEAST_SEEDS = 3  # fewer seeds say too little about the noise of seeds to recommend by

# In the place of an interval without width, which reads as an exact one.
SAME = Text("the same on every seed", "各种子相同")
ROLES = {
    "control": Text("which has no attention", "它没有注意力"),
    "baseline": Text("the best baseline", "最好的基线"),
}


def sentences(found: Compared) -> list[Text]:
    """The verdict, the most important sentence first: that is the second one where attention loses."""
    told = [about_scores(found)]
    if (others := about_others(found)) is not None:
        told.insert(0 if attention_loses(found) else 1, others)
    if found.failed:
        names = ", ".join(found.failed)
        told.append(Text(f"Without a result: {names}.", f"没有结果：{names}。"))
    return told


def winner(found: Compared) -> ComparedRow | None:
    """The score to use in place of the reference: the best one that is shown to be ahead; None if none is."""
    if len(found.seeds) < LEAST_SEEDS:
        return None
    ahead = [row for row in others(found) if (lead := lead_of(found, row)) and lead.above(0)]
    return ahead[0] if ahead else None


def to_use(found: Compared) -> str | None:
    """Name of the row to use: what beats every score, or the score that is shown to be best; None: not decided."""
    if found.against is not None and attention_loses(found):
        return found.against[1]
    best = winner(found)
    if best is not None:
        return best.name
    return found.reference if reference_leads(found) else None


def reference_leads(found: Compared) -> bool:
    """Whether the reference is shown to be ahead of every other score."""
    leads = [lead_of(found, row) for row in others(found)]
    enough = len(found.seeds) >= LEAST_SEEDS and bool(leads)
    return enough and all(lead is not None and lead.below(0) for lead in leads)


def others(found: Compared) -> list[ComparedRow]:
    """The scores beside the reference, the best first."""
    return [row for row in found.rows if row.kind == "score" and row.name != found.reference]


def lead_of(found: Compared, row: ComparedRow) -> Estimate | None:
    """How far a row is ahead of the reference; greater is better."""
    return None if row.difference is None else found.gain(row.difference)


def about_scores(found: Compared) -> Text:
    """Which score to use, if one is to be used at all."""
    reference, rows = found.row(found.reference).title, others(found)
    few = len(found.seeds) < LEAST_SEEDS
    loses = attention_loses(found)
    use = Text("Of the scores use", "打分函数中使用") if loses else Text("Use", "使用")
    if (best := winner(found)) is not None:
        lead = led(found, lead_of(found, best), reference)
        return Text(
            f"{use.en} {best.title.en}: it is {lead.en} ({found.metric.title.en}).",
            f"{use.zh}{best.title.zh}：{lead.zh}（{found.metric.title.zh}）。",
        )
    if not rows:
        return Text(
            f"No other score was compared with {reference.en}.",
            f"没有其他打分函数与{reference.zh}比较。",
        )
    if reference_leads(found):
        return Text(
            f"{use.en} {reference.en}: it is ahead of every other score.",
            f"{use.zh}{reference.zh}：它领先于所有其他打分函数。",
        )
    lead = led(found, lead_of(found, rows[0]))
    why = Text("", "")
    if few:
        count = len(found.seeds)
        why = Text(
            f" {count} seed{'s' * (count > 1)} decide{'s' * (count == 1)} nothing; --seeds {LEAST_SEEDS} or more may.",
            f"{count} 个种子不足以判定；请用 --seeds {LEAST_SEEDS} 或更多。",
        )
    elif too_few_rows(found, rows[0]):
        count = min(found.test_rows)
        why = Text(
            f" The {count:,} test rows are too few to tell.",
            f"测试数据仅 {count:,} 条，不足以判断。",
        )
    return Text(
        f"Not decided: no score is shown to be ahead of {reference.en}. The best other score, "
        f"{rows[0].title.en}, is {lead.en} ({found.metric.title.en}). {use.en} {reference.en} for now.{why.en}",
        f"未能判定：没有打分函数被证实优于{reference.zh}。其余中最好的{rows[0].title.zh}"
        f"{lead.zh}（{found.metric.title.zh}）。暂用{reference.zh}。{why.zh}",
    )


def too_few_rows(found: Compared, row: ComparedRow) -> bool:
    """Whether the difference of a row to the reference is so uncertain that equality is no finding."""
    if row.difference is None:
        return False
    _, low, high = row.difference
    return (high - low) / 2 > WIDE_SHARE * abs(found.row(found.reference).value.value)


def attention_loses(found: Compared) -> bool:
    """Whether a control or baseline is shown to be ahead of every score."""
    if found.against is None or len(found.seeds) < LEAST_SEEDS:
        return False
    return found.against[2].below(0)


def about_others(found: Compared) -> Text | None:
    """The best score beside the best row that is none: our model without attention, or another method."""
    if found.against is None:
        return None
    score, other, lead = found.against
    best, rival = found.row(score).title, found.row(other).title
    told, role = led(found, lead), ROLES[found.row(other).kind]
    if attention_loses(found):
        return Text(
            f"Use {rival.en}, {role.en}: no score beats it here. The best one, {best.en}, is {told.en}.",
            f"使用{rival.zh}（{role.zh}）：在此没有打分函数胜过它。最好的{best.zh}{told.zh}。",
        )
    if lead.above(0) and len(found.seeds) >= LEAST_SEEDS:
        told = led(found, lead, Text(f"{rival.en}, {role.en},", f"{rival.zh}（{role.zh}）"))
        return Text(
            f"The best score, {best.en}, is {told.en}.", f"最好的打分函数{best.zh}{told.zh}。"
        )
    return Text(
        f"No score is shown to beat {rival.en}: the best one, {best.en}, is {told.en}.",
        f"没有打分函数被证实胜过{rival.zh}：最好的{best.zh}{told.zh}。",
    )


def led(found: Compared, lead: Estimate | None, other: Text | None = None) -> Text:
    """A lead in words: ahead of another row, behind it or level, and by how much."""
    if lead is None or not math.isfinite(lead.value):
        return Text("not comparable", "无法比较")
    way = Estimate(-lead.value, -lead.high, -lead.low) if lead.value < 0 else lead
    value, low, high = (found.metric.show(x) for x in way)
    width = Text(f" [{low}, {high}]", f" [{low}, {high}]")
    if way.low == way.high:
        width = Text(f", {SAME.en}", f"，{SAME.zh}")
    by = Text(f"{value}{width.en}", f"{value}{width.zh}")
    if float(value):
        return words.led(lead.value, by, Text("", ""), other)
    # Not "level": nothing shows that they are equal.
    return Text(f"neither ahead nor behind: {by.en}", f"不相上下：{by.zh}")


def how(found: Compared) -> Text:
    """How the numbers were made, in two sentences, and what to mind."""
    rows = " / ".join(f"{x:,}" for x in dict.fromkeys(found.test_rows))
    count = len(found.seeds)
    told = Text(
        f"{count} seed{'s' * (count > 1)}, {rows} test rows. Settings were chosen on validation rows from the first "
        "seed, never on test rows. Intervals are 95% intervals for new seeds and new test rows; those of "
        "differences hold for all rows of the table together.",
        f"{count} 个种子，{rows} 条测试数据。设置由第一个种子在验证数据上选定，从不使用测试数据。区间为针对新种子和新测试数据的 "
        "95% 区间；差值的区间对表中各行同时成立。",
    )
    if count == 1:
        told = Text(
            f"{told.en} With one seed they are for new test rows alone.",
            f"{told.zh}只有一个种子时，区间仅针对新的测试数据。",
        )
    if any(row.value.low == row.value.high for row in found.rows):
        told = Text(
            f"{told.en} An interval without width says that all test rows agreed, not that the value is exact.",
            f"{told.zh}宽度为零的区间只说明所有测试数据结果一致，并不表示数值精确。",
        )
    return told
