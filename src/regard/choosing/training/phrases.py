"""The phrases that sentences, tables and charts of a verdict share, in English and Chinese."""

from __future__ import annotations

import math
from collections.abc import Mapping

from regard.choosing.training.asking import named
from regard.choosing.training.rows import BaselineRow, CandidateRow
from regard.choosing.training.verdict import Verdict
from regard.measuring import words
from regard.measuring.memory import show
from regard.measuring.statistics import Estimate
from regard.measuring.words import number, seconds
from regard.text import Text

# Metrics that are shares of 1 and shown in percentage points. R² is not one: it may be negative.
SHARES = ("accuracy", "ndcg", "mrr")
METRICS = {
    "accuracy": Text("accuracy", "准确率"),
    "r2": Text("R²", "R²"),
    "ndcg": Text("NDCG", "NDCG"),
    "mrr": Text("MRR", "MRR"),
}
DUST = 1e-9  # a half-width below this fraction of the mean, or a lead below it, is rounding: shown as 0


def metric_of(verdict: Verdict) -> Text:
    """The name of the metric in both languages."""
    return METRICS.get(verdict.metric, Text(verdict.metric, verdict.metric))


def spread(verdict: Verdict, found: Estimate) -> Text:
    """A difference with its interval as text, in points if the metric is a share."""
    shares = verdict.metric in SHARES
    factor, units = (100, Text(" points", " 个百分点")) if shares else (1, Text("", ""))
    value = round(factor * found.value, 10)  # 1.875 and 1.8749999999 are one number
    if not math.isfinite(found.low):
        told, why = f"{value:z.3g}" if abs(value) > DUST else "0", no_interval(verdict)
        unit = " point" if shares and told in ("1", "-1") else units.en
        return Text(f"{told}{unit} ({why.en})", f"{told}{units.zh}（{why.zh}）")
    digits = 1 if shares else digits_of(verdict)
    between = f"[{fixed(factor * found.low, digits)}, {fixed(factor * found.high, digits)}]"
    return Text(*(f"{fixed(value, digits)}{unit} {between}" for unit in units))


def no_interval(verdict: Verdict) -> Text:
    """Why a difference has no interval."""
    count = len(verdict.seeds)
    return Text(f"no interval: {count} seed{plural(count)}", f"只有 {count} 个种子，没有区间")


def signed(verdict: Verdict, found: Estimate) -> Text:
    """A difference with its interval and its sign as text: `+2.0 points [1.1, 2.9]`."""
    told = spread(verdict, found)
    plus = "+" if float(told.en.split()[0]) > 0 else ""
    return Text(f"{plus}{told.en}", f"{plus}{told.zh}")


def fixed(value: float, digits: int) -> str:
    """The value with a fixed number of decimals; a value that rounds to zero has no sign."""
    return f"{value:z.{digits}f}"


def digits_of(verdict: Verdict) -> int:
    """Number of decimals for a metric that is not a share."""
    return 3 if verdict.metric == "r2" else 4


def enough(verdict: Verdict) -> Text:
    """The smallest difference that matters, as text with its unit."""
    if verdict.metric not in SHARES:
        metric = metric_of(verdict)
        return Text(f"{verdict.matters:g} of {metric.en}", f"{metric.zh} {verdict.matters:g}")
    points = f"{100 * verdict.matters:g}"
    return Text(f"{points} point{'' if points == '1' else 's'}", f"{points} 个百分点")


def led(
    verdict: Verdict, found: Estimate, other: Text | None = None, metric: Text | None = None
) -> Text:
    """A lead in words: `ahead of cosine by 2.0 points [1.1, 2.9] of accuracy`, or behind, or level."""
    way = found if found.value >= 0 else Estimate(-found.value, -found.high, -found.low)
    by = spread(verdict, way)
    within = by if math.isfinite(found.low) else no_interval(verdict)
    what, which = ("", "") if metric is None else (f" of {metric.en}", f" in {metric.en}")
    sign = 0 if float(by.en.split()[0]) == 0 else found.value
    level = Text(f"{which} ({within.en})", f"（{within.zh}）")
    return words.led(sign, Text(f"{by.en}{what}", by.zh), level, other)


def cost_words(row: CandidateRow) -> Text:
    """Time, memory and parameters of a training step, as text."""
    if row.cost is None:
        return Text("an unknown time", "耗时未知")
    time, space, count = seconds(row.cost.seconds), show(row.cost.memory), row.cost.parameters
    return Text(
        f"{time} and {space} ({count:,} parameters)",
        f"耗时 {time}，内存峰值 {space}，参数 {count:,} 个",
    )


def price(verdict: Verdict, row: CandidateRow) -> str:
    """The time of a step, followed by its ratio over that of scaled dot."""
    ratio = verdict.times_null(row)
    if row.cost is None or ratio is None:
        return "-"
    time = seconds(row.cost.seconds)
    return time if row is verdict.null_row() else f"{time} ({number(ratio)}x)"


def level(verdict: Verdict, row: CandidateRow | BaselineRow) -> str:
    """The mean quality of a candidate or baseline and the half-width of its interval, as text."""
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


def plural(count: int) -> str:
    """The plural ending: `s`, or empty for a count of 1."""
    return "" if count == 1 else "s"


def amount(verdict: Verdict, value: float) -> str:
    """A quality as text: percent for a share."""
    return f"{100 * value:z.1f}%" if verdict.metric in SHARES else fixed(value, digits_of(verdict))


def option(verdict: Verdict, name: str, value: int) -> str:
    """A setting as the user gives it: `seeds=8` in Python, `--seeds 8` on the command line."""
    return named(name, value, verdict.asked_by)


def seeds_named(verdict: Verdict, odd: Mapping[int, float]) -> Text:
    """Seeds and their qualities: `seed 3: 51.2%`."""
    told = [(seed, amount(verdict, value)) for seed, value in odd.items()]
    return Text(
        ", ".join(f"seed {seed}: {value}" for seed, value in told),
        "，".join(f"种子 {seed}：{value}" for seed, value in told),
    )


def odd_seeds(verdict: Verdict, row: CandidateRow) -> Text | None:
    """The outlying seeds of a finalist: `stuck in 1 of 5 seeds (seed 3: 51.2%)`; None if it has none."""
    odd, middle = row.outlying(verdict.matters), row.mean().value
    if not odd:
        return None
    count, which = len(row.quality), seeds_named(verdict, odd)
    if max(odd.values()) < middle:
        what = Text("stuck in", "卡住")
    elif min(odd.values()) > middle:
        what = Text("far better in", "明显更好")
    else:
        what = Text("far off in", "相差很大")
    return Text(
        f"{what.en} {len(odd)} of {count} seeds ({which.en})",
        f"{count} 个种子中有 {len(odd)} 个{what.zh}（{which.zh}）",
    )


def sizes_differ(row: CandidateRow, null: CandidateRow) -> Text | None:
    """The numbers of parameters of a finalist and its null, if they differ by more than 10%."""
    own, other = parameters(row), parameters(null)
    if not own or not other or abs(own - other) <= 0.1 * other:
        return None
    return Text(f"{own:,} parameters against {other:,}", f"参数 {own:,} 个对 {other:,} 个")


def parameters(row: CandidateRow) -> int | None:
    """The number of parameters of the whole model with this candidate."""
    if row.parameters is not None:
        return row.parameters
    return None if row.cost is None else row.cost.parameters


def extras(row: CandidateRow) -> str:
    """Further metrics of a finalist, such as `MRR 81.2%`; empty if it has none."""
    found = row.extra_means().items()
    return ", ".join(f"{METRICS[name].en} {100 * value:.1f}%" for name, value in found)
