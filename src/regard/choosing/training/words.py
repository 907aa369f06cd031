"""A verdict in words, English and Chinese."""

from __future__ import annotations

import math

from regard.choosing.training.verdict import FEW_SEEDS, MOST_SEEDS, CandidateRow, Outcome, Verdict
from regard.measuring.memory import show
from regard.measuring.statistics import Estimate
from regard.measuring.words import number, seconds
from regard.text import Text

# Metrics that are shares of 1, told in points of a hundred. R² is none: it may be negative.
SHARES = ("accuracy", "ndcg")
METRICS = {
    "accuracy": Text("accuracy", "准确率"),
    "r2": Text("R²", "R²"),
    "ndcg": Text("NDCG", "NDCG"),
}

WON = Text("winner", "胜者")
# What scaled dot is where it did not win.
KEPT = {
    Outcome.SAME: Text("null, not beaten: use it", "基准，未被超过：用它"),
    Outcome.UNDECIDED: Text("null, not decided: use it for now", "基准，未能判定：暂时用它"),
}


# Not behind by as much as matters; the sentence before the table has all these words.
CHEAPEST = Text("cheapest that is as good", "同样好的里最便宜")
DUST = 1e-9  # of a mean: an interval that reaches less far is rounding


def recommendation(verdict: Verdict) -> list[Text]:
    """What to use and by how much; what it costs, or what is cheaper; if undecided, how to decide.

    That nothing was learned is said before all of it.
    """
    told = [first_sentence(verdict), second_sentence(verdict)]
    if undecided(verdict):
        told.insert(1, meanwhile(verdict))
    return told if verdict.learned else [nothing_learned(verdict), *told]


def nothing_learned(verdict: Verdict) -> Text:
    """How good the best is beside guessing, and what to look at."""
    best, guess = best_and_guess(verdict)
    return Text(
        f"No score learned anything: the best has {best.en}, guessing gives {guess}. Check that target "
        "belongs to query and key.",
        f"没有任何打分学到东西：最好的是 {best.zh}，瞎猜是 {guess}。请检查 target 是否与 query 和 key 对应。",
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
    """What to use, and on what grounds."""
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
            f"超出噪声，也达到要紧的幅度（{matters.zh}）。",
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
            f"用{label.zh}：没有要紧的差别（{matters.zh}才算）；{best.zh}。",
        )
    return Text(
        f"Not decided: {best.en} over {count} seed{plural(count)}, so a difference that matters "
        f"({matters.en}) is neither shown nor ruled out.",
        f"未能判定：在 {count} 个种子上，{best.zh}；要紧的差别（{matters.zh}）既未得到证实，也不能排除。",
    )


def meanwhile(verdict: Verdict) -> Text:
    """What to use as long as it is not decided, and how to decide it."""
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
            f"都在瞎猜时，增加种子无从判定；{longer.zh}可能有用",
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
            f"一个种子看不出噪声：请用 --seeds {FEW_SEEDS}",
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
    """Whether the trials leave it open."""
    return verdict.outcome is Outcome.UNDECIDED


def use(verdict: Verdict) -> Text:
    """The score to use, in a table."""
    label = verdict.row(verdict.winner).candidate.label
    return Text(f"{label.en}, for now", f"暂用{label.zh}") if undecided(verdict) else label


def enough(verdict: Verdict) -> Text:
    """The smallest difference that matters, with its unit."""
    if verdict.metric not in SHARES:
        metric = metric_of(verdict)
        return Text(f"{verdict.matters:g} of {metric.en}", f"{metric.zh} {verdict.matters:g}")
    points = f"{100 * verdict.matters:g}"
    return Text(f"{points} point{'' if points == '1' else 's'}", f"{points} 个百分点")


def lead(verdict: Verdict, found: Estimate) -> Text:
    """Ahead or behind, and by how much."""
    if found.value >= 0:
        by = spread(verdict, found)
        return Text(f"ahead by {by.en}", f"领先 {by.zh}")
    by = spread(verdict, Estimate(-found.value, -found.high, -found.low))
    return Text(f"behind by {by.en}", f"落后 {by.zh}")


def second_sentence(verdict: Verdict) -> Text:
    """Its price, and who is cheaper and not behind by as much as matters."""
    winner, cheapest = verdict.row(verdict.winner), verdict.row(verdict.cheapest)
    cost = cost_words(winner)
    if cheapest is winner or winner.cost is None or cheapest.cost is None:
        return Text(
            f"Nothing cheaper is shown to be as good: a training step takes {cost.en}.",
            f"没有更便宜而又确认同样好的：训练一步要 {cost.zh}。",
        )
    ratio = cheapest.cost.seconds / winner.cost.seconds
    if ratio > 0.95:
        return Text(
            "Nothing cheaper by more than 5% is shown to be as good: a training step takes "
            f"{cost.en}.",
            f"没有便宜 5% 以上而又确认同样好的：训练一步要 {cost.zh}。",
        )
    label = cheapest.candidate.label
    return Text(
        f"A training step takes {cost.en}; the cheapest that is not behind by as much as matters is "
        f"{label.en}, at {ratio:.2f} times that.",
        f"训练一步要 {cost.zh}；落后不到要紧幅度的候选里最便宜的是{label.zh}，时间是它的 {ratio:.2f} 倍。",
    )


def cost_words(row: CandidateRow) -> Text:
    """Time, memory and parameters."""
    if row.cost is None:
        return Text("an unknown time", "的时间未知")
    time, space, count = seconds(row.cost.seconds), show(row.cost.memory), row.cost.parameters
    return Text(
        f"{time} and {space}, with {count:,} parameters",
        f"{time} 和 {space}，参数 {count:,} 个",
    )


def metric_of(verdict: Verdict) -> Text:
    """The name of what is compared."""
    return METRICS.get(verdict.metric, Text(verdict.metric, verdict.metric))


def spread(verdict: Verdict, found: Estimate) -> Text:
    """A difference with its interval, in points where the metric is a share."""
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
    """With so many digits behind the point; what rounds to zero has no sign."""
    return f"{value:z.{digits}f}"


def digits_of(verdict: Verdict) -> int:
    """Behind the point, for a metric that is no share."""
    return 3 if verdict.metric == "r2" else 4


def margin(verdict: Verdict) -> Text:
    """How the winner stands to scaled dot."""
    if verdict.over_null is None or verdict.margin is None or verdict.runner_up is None:
        return Text("nothing to compare with", "没有可比的")
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
            f"没有要紧的差别（{enough(verdict).zh}）：最好的替代者 {ahead.zh}",
        )
    return Text(f"not decided: best other {ahead.en}", f"未能判定：最好的替代者 {ahead.zh}")


def price(verdict: Verdict, row: CandidateRow) -> str:
    """The time of a step, and times that of scaled dot."""
    ratio = verdict.times_null(row)
    if row.cost is None or ratio is None:
        return "-"
    time = seconds(row.cost.seconds)
    return time if row is verdict.null_row() else f"{time} ({number(ratio)}x)"


def level(verdict: Verdict, row: CandidateRow) -> str:
    """The quality of a candidate."""
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
    """What became of it."""
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
    """`s`, or nothing for one."""
    return "" if count == 1 else "s"
