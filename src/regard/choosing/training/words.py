"""A verdict as sentences in English and Chinese.

Committed results hold the English sentences of `recommendation`.
"""

from __future__ import annotations

import math

from regard.choosing.training.verdict import FEW_SEEDS, MOST_SEEDS, CandidateRow, Outcome, Verdict
from regard.measuring.memory import show
from regard.measuring.statistics import Estimate
from regard.measuring.words import number, seconds
from regard.text import Text

# Metrics that are shares of 1 and shown in percentage points. R² is not one: it may be negative.
SHARES = ("accuracy", "ndcg")
METRICS = {
    "accuracy": Text("accuracy", "准确率"),
    "r2": Text("R²", "R²"),
    "ndcg": Text("NDCG", "NDCG"),
}

WON = Text("winner", "胜者")
# The remark on scaled dot if neither it nor an alternative won.
KEPT = {
    Outcome.SAME: Text("null, not beaten: use it", "基准，未被超过：用它"),
    Outcome.UNDECIDED: Text("null, not decided: use it for now", "基准，未能判定：暂时用它"),
}
# "As good" is short for a deficit below `matters`, as the sentence before the table says in full.
CHEAPEST = Text("cheapest that is as good", "同样好的候选中最便宜")
DUST = 1e-9  # a half-width below this fraction of the mean is rounding and shown as 0


def recommendation(verdict: Verdict) -> list[Text]:
    """The recommendation: the score to use and its lead, its cost, and if undecided how to decide.

    If nothing was learned, the first sentence says so.
    """
    told = [first_sentence(verdict), second_sentence(verdict)]
    if undecided(verdict):
        told.insert(1, meanwhile(verdict))
    return told if verdict.learned else [nothing_learned(verdict), *told]


def nothing_learned(verdict: Verdict) -> Text:
    """A sentence that compares the best candidate with guessing, and says what to check."""
    best, guess = best_and_guess(verdict)
    return Text(
        f"No score learned anything: the best has {best.en}, guessing gives {guess}. Check that target "
        "belongs to query and key.",
        f"没有任何打分函数学到东西：最好的是 {best.zh}，瞎猜是 {guess}。请检查 target 是否与 query 和 key 对应。",
    )


def best_and_guess(verdict: Verdict) -> tuple[Text, str]:
    """The quality of the best finalist, and that of guessing."""
    assert verdict.chance is not None
    best = max(row.mean().value for row in verdict.rows if row.status == "final")
    if verdict.metric in SHARES:
        shown = f"{100 * best:.1f}%"
        named = shown if verdict.metric == "accuracy" else f"{metric_of(verdict).en} {shown}"
        return Text(named, named), f"{100 * verdict.chance.value:.1f}%"
    named = f"{metric_of(verdict).en} {fixed(best, 3)}"
    return Text(named, named), f"{verdict.chance.value:g}"


def first_sentence(verdict: Verdict) -> Text:
    """The sentence that names the score to use and the evidence for it."""
    label, metric = verdict.row(verdict.winner).candidate.label, metric_of(verdict)
    count, matters = len(verdict.seeds), enough(verdict)
    if verdict.runner_up is None or verdict.margin is None or verdict.over_null is None:
        return Text(
            f"Use {label.en}: no alternative came through.",
            f"用{label.zh}：没有别的候选完成训练。",
        )
    other = verdict.row(verdict.runner_up).candidate.label
    if verdict.outcome is Outcome.ALTERNATIVE:
        ahead = spread(verdict, verdict.over_null)
        return Text(
            f"Use {label.en}: it is ahead of scaled dot by {ahead.en} of {metric.en} over {count} "
            f"seeds, more than noise and as much as matters ({matters.en}).",
            f"用{label.zh}：在 {count} 个种子上，{metric.zh}比缩放点积高 {ahead.zh}，"
            f"超出噪声，并达到实质差异（{matters.zh}）。",
        )
    if verdict.outcome is Outcome.NULL:
        ahead = spread(verdict, verdict.margin)
        return Text(
            f"Use {label.en}: it is ahead of the best alternative, {other.en}, by {ahead.en} of "
            f"{metric.en} over {count} seeds.",
            f"用{label.zh}：在 {count} 个种子上，{metric.zh}比最好的替代者（{other.zh}）高 {ahead.zh}。",
        )
    ahead = lead(verdict, verdict.over_null)
    best = Text(
        f"the best alternative, {other.en}, is {ahead.en} of {metric.en}",
        f"最好的替代者（{other.zh}）的{metric.zh}{ahead.zh}",
    )
    if verdict.outcome is Outcome.SAME:
        return Text(
            f"Use {label.en}: there is no difference that matters ({matters.en} would); {best.en}.",
            f"用{label.zh}：无实质差异（{matters.zh}以上才算）；{best.zh}。",
        )
    return Text(
        f"Not decided: {best.en} over {count} seed{plural(count)}, so a difference that matters "
        f"({matters.en}) is neither shown nor ruled out.",
        f"未能判定：在 {count} 个种子上，{best.zh}；实质差异（{matters.zh}）既未得到证实，也不能排除。",
    )


def meanwhile(verdict: Verdict) -> Text:
    """The sentence on what to use while nothing is decided, and on how to decide."""
    label, now = verdict.row(verdict.winner).candidate.label, len(verdict.seeds)
    steps = verdict.facts.get("settings", {}).get("steps")
    longer = Text("longer trainings", "更长的训练")
    if steps is not None:
        longer = Text(
            f"longer trainings (--steps {2 * steps})", f"更长的训练（--steps {2 * steps}）"
        )
    count = verdict.seeds_to_decide
    if not verdict.learned:
        how = Text(
            f"more seeds do not decide between guesses; {longer.en} may help",
            f"各候选都在瞎猜，增加种子无法判定；{longer.zh}可能有用",
        )
    elif count is not None:
        how = Text(
            f"if leads and noise stay as they are, {count} seeds decide it (--seeds {count}); "
            f"{longer.en} may, too",
            f"若领先幅度和噪声不变，{count} 个种子即可判定（--seeds {count}）；{longer.zh}也可能有用",
        )
    elif now < 2:
        how = Text(
            f"one seed does not tell the noise: --seeds {FEW_SEEDS} does",
            f"只有一个种子无法估计噪声：请用 --seeds {FEW_SEEDS}",
        )
    else:
        how = Text(
            f"more than {MOST_SEEDS} seeds would be needed to decide it; {longer.en} may do",
            f"要判定需要 {MOST_SEEDS} 个以上的种子；{longer.zh}可能有用",
        )
    return Text(
        f"Use {label.en}, the null, meanwhile; {how.en}.", f"暂时使用基准{label.zh}；{how.zh}。"
    )


def undecided(verdict: Verdict) -> bool:
    """Whether the comparison did not decide."""
    return verdict.outcome is Outcome.UNDECIDED


def use(verdict: Verdict) -> Text:
    """The score to use, as a table shows it."""
    label = verdict.row(verdict.winner).candidate.label
    return Text(f"{label.en}, for now", f"暂用{label.zh}") if undecided(verdict) else label


def enough(verdict: Verdict) -> Text:
    """The smallest difference that matters, as text with its unit."""
    if verdict.metric not in SHARES:
        metric = metric_of(verdict)
        return Text(f"{verdict.matters:g} of {metric.en}", f"{metric.zh} {verdict.matters:g}")
    points = f"{100 * verdict.matters:g}"
    return Text(f"{points} point{'' if points == '1' else 's'}", f"{points} 个百分点")


def lead(verdict: Verdict, found: Estimate) -> Text:
    """A lead in words: ahead or behind, and by how much."""
    if found.value >= 0:
        by = spread(verdict, found)
        return Text(f"ahead by {by.en}", f"领先 {by.zh}")
    by = spread(verdict, Estimate(-found.value, -found.high, -found.low))
    return Text(f"behind by {by.en}", f"落后 {by.zh}")


def second_sentence(verdict: Verdict) -> Text:
    """The sentence on the winner's cost and the cheapest candidate that is as good."""
    winner, cheapest = verdict.row(verdict.winner), verdict.row(verdict.cheapest)
    cost = cost_words(winner)
    if cheapest is winner or winner.cost is None or cheapest.cost is None:
        return Text(
            f"Nothing cheaper is shown to be as good: a training step takes {cost.en}.",
            f"没有确认同样好而更便宜的候选：训练一步{cost.zh}。",
        )
    ratio = cheapest.cost.seconds / winner.cost.seconds
    if ratio > 0.95:
        return Text(
            "Nothing cheaper by more than 5% is shown to be as good: a training step takes "
            f"{cost.en}.",
            f"没有确认同样好而便宜 5% 以上的候选：训练一步{cost.zh}。",
        )
    label = cheapest.candidate.label
    return Text(
        f"A training step takes {cost.en}; the cheapest that is not behind by as much as matters is "
        f"{label.en}, at {ratio:.2f} times that.",
        f"训练一步{cost.zh}；落后幅度小于实质差异的候选中，最便宜的是{label.zh}，"
        f"耗时是前者的 {ratio:.2f} 倍。",
    )


def cost_words(row: CandidateRow) -> Text:
    """Time, memory and parameters of a training step, as text."""
    if row.cost is None:
        return Text("an unknown time", "耗时未知")
    time, space, count = seconds(row.cost.seconds), show(row.cost.memory), row.cost.parameters
    return Text(
        f"{time} and {space}, with {count:,} parameters",
        f"耗时 {time}，内存峰值 {space}，参数 {count:,} 个",
    )


def metric_of(verdict: Verdict) -> Text:
    """The name of the metric in both languages."""
    return METRICS.get(verdict.metric, Text(verdict.metric, verdict.metric))


def spread(verdict: Verdict, found: Estimate) -> Text:
    """A difference with its interval as text, in points if the metric is a share."""
    shares = verdict.metric in SHARES
    factor, units = (100, Text(" points", " 个百分点")) if shares else (1, Text("", ""))
    value = factor * found.value
    if not math.isfinite(found.low):
        return Text(
            f"{value:z.3g}{units.en} (one seed: no interval)",
            f"{value:z.3g}{units.zh}（只有一个种子，没有区间）",
        )
    digits = 1 if shares else digits_of(verdict)
    between = f"[{fixed(factor * found.low, digits)}, {fixed(factor * found.high, digits)}]"
    return Text(*(f"{fixed(value, digits)}{unit} {between}" for unit in units))


def fixed(value: float, digits: int) -> str:
    """The value with a fixed number of decimals; a value that rounds to zero has no sign."""
    return f"{value:z.{digits}f}"


def digits_of(verdict: Verdict) -> int:
    """Number of decimals for a metric that is not a share."""
    return 3 if verdict.metric == "r2" else 4


def margin(verdict: Verdict) -> Text:
    """The winner's lead over scaled dot, or the best alternative's, as a table shows it."""
    if verdict.over_null is None or verdict.margin is None or verdict.runner_up is None:
        return Text("nothing to compare with", "没有可比较的候选")
    if not verdict.learned:
        best, guess = best_and_guess(verdict)
        return Text(
            f"nothing learned: the best has {best.en}, guessing gives {guess}",
            f"什么也没学到：最好的是 {best.zh}，瞎猜是 {guess}",
        )
    if verdict.outcome is Outcome.ALTERNATIVE:
        ahead = spread(verdict, verdict.over_null)
        return Text(f"+{ahead.en}", f"+{ahead.zh}")
    if verdict.outcome is Outcome.NULL:
        ahead = spread(verdict, verdict.margin)
        return Text(f"the best other is {ahead.en} behind", f"最好的替代者落后 {ahead.zh}")
    ahead = spread(verdict, verdict.over_null)
    if verdict.outcome is Outcome.SAME:
        return Text(
            f"no difference that matters ({enough(verdict).en}): best other {ahead.en}",
            f"无实质差异（{enough(verdict).zh}）：最好的替代者 {ahead.zh}",
        )
    return Text(f"not decided: best other {ahead.en}", f"未能判定：最好的替代者 {ahead.zh}")


def price(verdict: Verdict, row: CandidateRow) -> str:
    """The time of a step, followed by its ratio over that of scaled dot."""
    ratio = verdict.times_null(row)
    if row.cost is None or ratio is None:
        return "-"
    time = seconds(row.cost.seconds)
    return time if row is verdict.null_row() else f"{time} ({number(ratio)}x)"


def level(verdict: Verdict, row: CandidateRow) -> str:
    """The mean quality of a candidate and the half-width of its interval, as text."""
    if not row.quality:
        return ""
    found = row.mean()
    reach = found.high - found.value
    if reach <= DUST * abs(found.value):
        reach = 0.0
    if verdict.metric == "r2":
        told = fixed(found.value, 3), fixed(reach, 3)
    elif verdict.metric in SHARES:
        told = f"{100 * found.value:z.4g}%", f"{100 * reach:.2g}"
    else:
        told = f"{found.value:z.4g}", f"{reach:.2g}"
    return " ±".join(told) if math.isfinite(found.low) else told[0]


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
        name = row.candidate.name
        marks = {verdict.winner: WON, verdict.runner_up: Text("runner-up", "第二名")}
        if verdict.outcome in (Outcome.SAME, Outcome.UNDECIDED):
            marks = {
                verdict.winner: KEPT[verdict.outcome],
                verdict.runner_up: Text("best alternative", "最好的替代者"),
            }
        told = [marks[name]] if name in marks else []
        if name == verdict.cheapest != verdict.winner:
            told.append(CHEAPEST)
        return Text(", ".join(text.en for text in told), "，".join(text.zh for text in told))
    return Text(row.status, "时间不够，未轮到" if row.status == "not reached" else row.status)


def plural(count: int) -> str:
    """The plural ending: `s`, or empty for a count of 1."""
    return "" if count == 1 else "s"
