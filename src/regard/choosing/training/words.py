"""A verdict in words, English and Chinese, and as a table in plain text."""

from __future__ import annotations

import math

from regard.choosing.training.verdict import FEW_SEEDS, MOST_SEEDS, Outcome, Row, Verdict
from regard.claims.text import Text
from regard.claims.tools.statistics import Estimate
from regard.measuring.memory import show
from regard.measuring.words import number, seconds

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


def recommendation(verdict: Verdict) -> list[Text]:
    """What to use and by how much; what it costs, or what is cheaper; if undecided, how to decide."""
    told = [first_sentence(verdict), second_sentence(verdict)]
    return [told[0], meanwhile(verdict), told[1]] if undecided(verdict) else told


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
    if count is not None:
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
            f"it is so close that even {MOST_SEEDS} seeds would not decide it; {longer.en} may",
            f"相差太小，{MOST_SEEDS} 个种子也难以判定；{longer.zh}可能有用",
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
    """Its price, and who is cheaper within the noise."""
    winner, cheapest = verdict.row(verdict.winner), verdict.row(verdict.cheapest)
    cost = cost_words(winner)
    if cheapest is winner or winner.cost is None or cheapest.cost is None:
        return Text(
            f"Nothing within the noise is cheaper: a training step takes {cost.en}.",
            f"噪声范围内没有更便宜的：训练一步要 {cost.zh}。",
        )
    ratio = cheapest.cost.seconds / winner.cost.seconds
    if ratio > 0.95:
        return Text(
            f"Nothing within the noise is cheaper by more than 5%: a training step takes {cost.en}.",
            f"噪声范围内没有便宜 5% 以上的：训练一步要 {cost.zh}。",
        )
    label = cheapest.candidate.label
    return Text(
        f"A training step takes {cost.en}; the cheapest within the noise is {label.en}, at "
        f"{ratio:.2f} times that.",
        f"训练一步要 {cost.zh}；噪声范围内最便宜的是{label.zh}，时间是它的 {ratio:.2f} 倍。",
    )


def cost_words(row: Row) -> Text:
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
            f"{value:.3g}{units.en} (one seed: no interval)",
            f"{value:.3g}{units.zh}（只有一个种子，没有区间）",
        )
    digits = 1 if shares else digits_of(verdict)
    between = f"[{factor * found.low:.{digits}f}, {factor * found.high:.{digits}f}]"
    return Text(*(f"{value:.{digits}f}{unit} {between}" for unit in units))


def digits_of(verdict: Verdict) -> int:
    """Behind the point, for a metric that is no share."""
    return 3 if verdict.metric == "r2" else 4


def margin(verdict: Verdict) -> Text:
    """How the winner stands to scaled dot."""
    if verdict.over_null is None or verdict.margin is None or verdict.runner_up is None:
        return Text("nothing to compare with", "没有可比的")
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


def price(verdict: Verdict, row: Row) -> str:
    """The time of a step, and times that of scaled dot."""
    ratio = verdict.times_null(row)
    if row.cost is None or ratio is None:
        return "-"
    time = seconds(row.cost.seconds)
    return time if row is verdict.null_row() else f"{time} ({number(ratio)}x)"


def level(verdict: Verdict, row: Row) -> str:
    """The quality of a candidate."""
    if not row.quality:
        return ""
    found = row.mean()
    if verdict.metric == "r2":
        value, reach = f"{found.value:.3f}", f"{found.high - found.value:.3f}"
    elif verdict.metric in SHARES:
        value, reach = f"{100 * found.value:.4g}%", f"{100 * (found.high - found.value):.2g}"
    else:
        value, reach = f"{found.value:.4g}", f"{found.high - found.value:.2g}"
    return f"{value} ±{reach}" if math.isfinite(found.low) else value


def standing(verdict: Verdict, row: Row) -> Text:
    """What became of it."""
    if row.status == "halved" and row.searched is not None:
        step = row.searched[0]
        return Text(f"left behind in the search, at step {step}", f"搜索中在第 {step} 步落选")
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
        if name == verdict.cheapest:
            told.append(Text("cheapest within the noise", "噪声范围内最便宜"))
        return Text(", ".join(text.en for text in told), "，".join(text.zh for text in told))
    return Text(row.status, "时间不够，未轮到" if row.status == "not reached" else row.status)


def as_text(verdict: Verdict) -> str:
    """The recommendation, then a line for each candidate."""
    lines = [*(sentence.en for sentence in recommendation(verdict)), ""]
    width = max(len(row.candidate.label.en) for row in verdict.rows)
    for row in verdict.rows:
        time = "" if row.cost is None else seconds(row.cost.seconds)
        cells = (row.candidate.label.en.ljust(width), level(verdict, row).rjust(14), time.rjust(8))
        lines.append("  ".join((*cells, standing(verdict, row).en)).rstrip())
    return "\n".join([*lines, "", f"score = {verdict.code}"])


def plural(count: int) -> str:
    """`s`, or nothing for one."""
    return "" if count == 1 else "s"
