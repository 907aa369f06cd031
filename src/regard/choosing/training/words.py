"""A verdict in words, English and Chinese, and as a table in plain text."""

from __future__ import annotations

import math

from regard.choosing.training.verdict import Outcome, Row, Verdict
from regard.claims.text import Text
from regard.claims.tools.statistics import Estimate
from regard.measuring.memory import show
from regard.measuring.words import number, seconds

# Metrics that are shares of 1, told in points of a hundred.
SHARES = ("accuracy", "r2", "ndcg")
METRICS = {
    "accuracy": Text("accuracy", "准确率"),
    "r2": Text("r2", "R²"),
    "ndcg": Text("ndcg", "NDCG"),
}


def recommendation(verdict: Verdict) -> list[Text]:
    """Two sentences: what to use and by how much; what it costs, or what is cheaper."""
    return [first_sentence(verdict), second_sentence(verdict)]


def first_sentence(verdict: Verdict) -> Text:
    """What to use, and on what grounds."""
    label, metric = verdict.row(verdict.winner).candidate.label, metric_of(verdict)
    count = len(verdict.seeds)
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
            "seeds, more than noise.",
            f"用{label.zh}：在 {count} 个种子上，{metric.zh}比缩放点积高 {ahead.zh}，超出噪声。",
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
            f"Use {label.en}: there is no difference that matters ({best.en}).",
            f"用{label.zh}：没有要紧的差别，{best.zh}。",
        )
    return Text(
        f"Stay with {label.en}: {best.en} over {count} seed{plural(count)}, which may be noise; more "
        "seeds would tell.",
        f"仍用{label.zh}：在 {count} 个种子上，{best.zh}，这可能是噪声；种子再多些才能判定。",
    )


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
    digits = 1 if shares else 4
    between = f"[{factor * found.low:.{digits}f}, {factor * found.high:.{digits}f}]"
    return Text(*(f"{value:.{digits}f}{unit} {between}" for unit in units))


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
            f"no difference that matters: best other {ahead.en}",
            f"没有要紧的差别：最好的替代者 {ahead.zh}",
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
    factor = 100 if verdict.metric in SHARES else 1
    unit = "%" if verdict.metric in SHARES else ""
    if row.quality:
        found = row.mean()
        if not math.isfinite(found.low):
            return f"{factor * found.value:.4g}{unit}"
        return f"{factor * found.value:.4g}{unit} ±{factor * (found.high - found.value):.2g}"
    return ""


def standing(verdict: Verdict, row: Row) -> Text:
    """What became of it."""
    if row.status == "halved" and row.searched is not None:
        step = row.searched[0]
        return Text(f"left behind in the search, at step {step}", f"搜索中在第 {step} 步落选")
    if row.status == "failed":
        return Text(f"failed: {row.reason}", f"失败：{row.reason}")
    if row.status == "final":
        name = row.candidate.name
        marks = {
            verdict.winner: Text("winner", "胜者"),
            verdict.runner_up: Text("runner-up", "第二名"),
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
