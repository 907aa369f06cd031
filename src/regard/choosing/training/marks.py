"""What tables say of a verdict: the score to use, its margin, and a remark on each candidate."""

from __future__ import annotations

from regard.choosing.training.phrases import extras, odd_seeds, signed, sizes_differ
from regard.choosing.training.rows import CandidateRow, Outcome
from regard.choosing.training.unlearned import best_row, control_named, guessing, quality_named
from regard.choosing.training.verdict import Verdict
from regard.choosing.training.words import null_named, undecided
from regard.measuring.statistics import Estimate
from regard.text import Text

WON = Text("winner", "胜者")
# The remark on the candidate to use if neither scaled dot nor an alternative won.
KEPT = {
    Outcome.SAME: Text("null, not beaten: use it", "基准，未被超过：用它"),
    Outcome.UNDECIDED: Text("null, not decided: use it for now", "基准，未能判定：暂时用它"),
}
FOR_NOW = Text("not decided: use it for now", "未能判定：暂时用它")
# "As good" is short for a deficit below `matters`, as the sentence before the table says in full.
CHEAPEST = Text("cheapest that is as good", "同样好的候选中最便宜")
NO_ATTENTION = Text("without attention", "不用注意力")


def use(verdict: Verdict) -> Text:
    """The score to use, as a table shows it."""
    if not verdict.recommended:
        return Text("no recommendation", "无法推荐")
    label = verdict.row(verdict.winner).candidate.label
    return Text(f"{label.en}, for now", f"暂用{label.zh}") if undecided(verdict) else label


def margin(verdict: Verdict) -> Text:
    """The winner's lead over its null, or the best alternative's, as a table shows it."""
    if verdict.over_null is None or verdict.margin is None or verdict.runner_up is None:
        return Text("nothing to compare with", "没有可比较的候选")
    if not verdict.recommended:
        return unlearned(verdict)
    ahead = signed(verdict, verdict.over_null)
    if verdict.outcome is Outcome.ALTERNATIVE:
        return ahead
    if verdict.outcome is Outcome.NULL:
        value, low, high = verdict.margin
        ahead = signed(verdict, Estimate(-value, -high, -low))
        return Text(f"best other: {ahead.en}", f"最好的替代者：{ahead.zh}")
    if verdict.outcome is Outcome.SAME:
        return Text(
            f"best other: {ahead.en}, too little to matter",
            f"最好的替代者：{ahead.zh}，无实质差异",
        )
    null = verdict.null_row()
    if null is not None and null.candidate.name != verdict.winner:
        return Text(f"not decided: {ahead.en}", f"未能判定：{ahead.zh}")
    return Text(f"not decided; best other: {ahead.en}", f"未能判定；最好的替代者：{ahead.zh}")


def unlearned(verdict: Verdict) -> Text:
    """Why nothing is recommended, as a table shows it."""
    best = quality_named(verdict, best_row(verdict))
    if verdict.beats_guessing and verdict.control:
        shuffled = control_named(verdict)
        other = Text(f"with shuffled targets {shuffled.en}", f"打乱目标后是 {shuffled.zh}")
    else:
        guess = guessing(verdict)
        other = Text(f"guessing gives {guess}", f"瞎猜是 {guess}")
    what = Text("nothing learned", "什么也没学到")
    if verdict.learned is None:
        what = Text("too few rows or seeds to tell", "数据行或种子太少，无法断定")
    return Text(
        f"{what.en}: the best has {best.en}, {other.en}",
        f"{what.zh}：最好的是 {best.zh}，{other.zh}",
    )


def standing(verdict: Verdict, row: CandidateRow) -> Text:
    """The remark on a candidate: its place in the final, or why it is not in it."""
    if row.status == "halved" and row.searched is not None:
        step = row.searched[0]
        if step == verdict.facts.get("settings", {}).get("steps"):
            return Text("not among the finalists", "未进入决赛")
        return Text(f"dropped at step {step}", f"第 {step} 步落选")
    if row.status == "failed":
        return Text(f"failed: {row.reason}", f"失败：{row.reason}")
    if row.status == "final":
        told = [*places(verdict, row), *remarks(verdict, row)]
        return Text(", ".join(text.en for text in told), "，".join(text.zh for text in told))
    return Text(row.status, "时间不够，未轮到" if row.status == "not reached" else row.status)


def places(verdict: Verdict, row: CandidateRow) -> list[Text]:
    """The place of a finalist: winner, runner-up, cheapest; none if nothing is recommended."""
    if not verdict.recommended:
        return []
    name, null = row.candidate.name, verdict.null_row()
    second = Text("runner-up", "第二名")
    marks = {verdict.winner: WON, verdict.runner_up: second}
    if verdict.outcome in (Outcome.SAME, Outcome.UNDECIDED):
        kept = null is None or null.candidate.name == verdict.winner
        best = Text("best alternative", "最好的替代者") if kept else second
        first = KEPT[verdict.outcome] if kept else FOR_NOW
        marks = {verdict.winner: first, verdict.runner_up: best}
    told = [marks[name]] if name in marks else []
    return [*told, CHEAPEST] if name == verdict.cheapest != verdict.winner else told


def remarks(verdict: Verdict, row: CandidateRow) -> list[Text]:
    """What else a reader must know of a finalist: another null, outlying seeds, further metrics."""
    told, null = [], verdict.null_of(row)
    if null is not None and null is not verdict.null_row():
        label = null_named(verdict, row)
        told.append(Text(f"compared with {label.en}", f"与{label.zh}比较"))
    elif null is not None and (sizes := sizes_differ(row, null)) is not None:
        told.append(sizes)
    odd = odd_seeds(verdict, row)
    told += [] if odd is None else [odd]
    more = extras(row)
    return [*told, Text(more, more)] if more else told
